//! `realizar inspect --kernels`: which GPU kernel multiplies with which of a model's matrices.

use realizar_compute::DType;
use realizar_compute::cuda::{Arch, experts_kernel_for, kernel_for};
use realizar_model::source::TensorSource;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Rows of activations, on both sides of where another kernel may take over.
const ROWS: [usize; 9] = [1, 2, 8, 9, 64, 65, 256, 257, 4096];

/// The kernels of all matrices that have the same name but for their layer, the same type and the same shape.
#[derive(Serialize)]
pub(crate) struct MatrixKernels {
    /// Name with `*` for the layer.
    name: String,
    dtype: &'static str,
    /// Experts that the matrix is one of; 1 for a plain matrix.
    n_experts: usize,
    n_out: usize,
    n_in: usize,
    matrices: usize,
    /// By architecture and rows of activations.
    kernels: BTreeMap<&'static str, Vec<RowsKernel>>,
}

#[derive(Serialize)]
struct RowsKernel {
    rows: usize,
    kernel: &'static str,
}

/// The kernels of a model's matrices, and of those with all experts of a layer.
pub(crate) fn report(source: &dyn TensorSource) -> Vec<MatrixKernels> {
    let gated = source.tensors().iter().any(|t| t.shape.len() == 3 && t.name.contains("gate"));
    let mut groups: BTreeMap<(String, DType, [usize; 3]), usize> = BTreeMap::new();
    for t in source.tensors() {
        let shape = match t.shape[..] {
            [n_out, n_in] => [1, n_out, n_in],
            [n_experts, n_out, n_in] if t.name.contains("exp") => [n_experts, n_out, n_in],
            _ => continue,
        };
        *groups.entry((without_layer(&t.name), t.dtype, shape)).or_default() += 1;
    }
    let row = |((name, dtype, shape), matrices): ((String, DType, [usize; 3]), usize)| MatrixKernels {
        name,
        dtype: DType::name(dtype),
        n_experts: shape[0],
        n_out: shape[1],
        n_in: shape[2],
        matrices,
        kernels: Arch::ALL.map(|arch| (arch.name(), kernels(arch, dtype, shape, gated))).into(),
    };
    groups.into_iter().map(row).collect()
}

fn kernels(arch: Arch, dtype: DType, shape: [usize; 3], gated: bool) -> Vec<RowsKernel> {
    let of = |rows| {
        let kernel = match shape {
            [1, n_out, n_in] => kernel_for(arch, dtype, n_out, n_in, rows, false),
            experts => experts_kernel_for(arch, dtype, experts, gated, rows),
        };
        kernel.map(|kernel| RowsKernel { rows, kernel })
    };
    ROWS.into_iter().filter_map(of).collect()
}

/// A tensor's name with `*` for each of its numbers.
fn without_layer(name: &str) -> String {
    let parts = name.split('.').map(|p| if p.bytes().all(|b| b.is_ascii_digit()) { "*" } else { p });
    parts.collect::<Vec<_>>().join(".")
}

/// The report as tables, one for each architecture.
pub(crate) fn text(matrices: &[MatrixKernels]) -> String {
    let mut out = String::new();
    let name = matrices.iter().map(|m| m.name.len()).max().unwrap_or(0);
    for arch in Arch::ALL {
        let mut line = format!("{:<name$} {:<8} {:>17}", arch.name(), "type", "shape");
        ROWS.iter().for_each(|m| write!(line, "  {:<13}", format!("M = {m}")).expect("a string takes text"));
        for m in matrices {
            let shape = match m.n_experts {
                1 => format!("[{}, {}]", m.n_out, m.n_in),
                n => format!("[{n}, {}, {}]", m.n_out, m.n_in),
            };
            write!(line, "\n{:<name$} {:<8} {shape:>17}", m.name, m.dtype).expect("a string takes text");
            for k in &m.kernels[arch.name()] {
                write!(line, "  {:<13}", k.kernel).expect("a string takes text");
            }
        }
        line.lines().for_each(|l| writeln!(out, "{}", l.trim_end()).expect("a string takes text"));
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_share_a_line() {
        assert_eq!(without_layer("blk.12.attn_q.weight"), "blk.*.attn_q.weight");
        assert_eq!(without_layer("model.layers.0.mlp.up_proj.weight"), "model.layers.*.mlp.up_proj.weight");
        assert_eq!(without_layer("output.weight"), "output.weight");
    }
}
