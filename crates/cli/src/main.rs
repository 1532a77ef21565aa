//! The `realizar` command.
#![forbid(unsafe_code)]

fn main() {}
