//! Times of operations at the sizes of real models, by the cases of the test `ops`; see its `perf`.
//!
//! `cargo bench -p realizar-compute --bench ops -- [cpu|gpu] [matmul] [experts] [heads] [attention] [delta_rule] [ssm_scan]`
#![allow(clippy::print_stdout, dead_code, missing_docs, unused_imports)]

#[path = "../tests/ops/main.rs"]
mod ops;

fn main() {
    ops::perf::main();
}
