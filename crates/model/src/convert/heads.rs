//! The order of the delta rule's value heads: those of one key head side by side in Hugging Face folders, one of each key head in turn in
//! most GGUF files.

use realizar_compute::{DeltaShape, HeadOrder};

/// A weight that has value heads along its rows or its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ValueHeads {
    n_k_heads: usize,
    /// Value heads of each key head.
    n_per_key: usize,
    /// Rows or columns of a head.
    head_len: usize,
    axis: Axis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Axis {
    /// From this row on.
    Rows(usize),
    Columns,
}

impl ValueHeads {
    /// How a weight is ordered, by the name that we give it, where GGUF has value heads in this order; `None` without value heads.
    pub(super) fn of(ours: &str, shape: &DeltaShape, order: HeadOrder) -> Option<Self> {
        let (head_len, axis) = match ours {
            "delta.qkv_proj" | "delta.conv" => (shape.v_dim, Axis::Rows(shape.qkv_len() - shape.v_len())),
            "delta.z_proj" => (shape.v_dim, Axis::Rows(0)),
            "delta.b_proj" | "delta.a_proj" | "delta.dt_bias" | "delta.a_log" => (1, Axis::Rows(0)),
            "delta.out_proj" => (shape.v_dim, Axis::Columns),
            _ => return None,
        };
        let (n_k_heads, n_per_key) = match order {
            HeadOrder::Tiled => (shape.n_k_heads, shape.n_v_heads / shape.n_k_heads),
            // All stay where they are.
            HeadOrder::Grouped => (shape.n_v_heads, 1),
        };
        Some(Self { n_k_heads, n_per_key, head_len, axis })
    }

    /// The bytes of a weight of `n_rows` rows in GGUF's order.
    pub(super) fn tile(&self, bytes: &[u8], n_rows: usize) -> Vec<u8> {
        let row_bytes = bytes.len() / n_rows;
        let n_heads = self.n_k_heads * self.n_per_key;
        let (kept, run, head_bytes) = match self.axis {
            Axis::Rows(first) => {
                (first * row_bytes, bytes.len() - first * row_bytes, self.head_len * row_bytes)
            }
            Axis::Columns => (0, row_bytes, row_bytes / n_heads),
        };
        let mut out = Vec::with_capacity(bytes.len());
        out.extend_from_slice(&bytes[..kept]);
        for heads in bytes[kept..].chunks_exact(run) {
            for i in 0..self.n_per_key {
                for k in 0..self.n_k_heads {
                    out.extend_from_slice(&heads[(k * self.n_per_key + i) * head_bytes..][..head_bytes]);
                }
            }
        }
        out
    }
}
