//! `realizar-dynamo`: starts the worker and serves until it is told to end.

use clap::Parser;
use realizar_dynamo::{Args, RealizarEngine};
use std::sync::Arc;

fn main() -> anyhow::Result<()> {
    let (options, config) = Args::parse().into_options()?;
    dynamo_backend_common::run(Arc::new(RealizarEngine::new(options)), config)
}
