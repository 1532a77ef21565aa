//! What holds for weights on every backend.

use crate::{Error, MatrixPart, Result};

impl MatrixPart {
    /// Checks that there are as many bytes as type and shape say.
    ///
    /// Errors: `PartialBlock` where a row is no whole number of blocks, else `WrongSize`.
    pub(crate) fn check(&self) -> Result<()> {
        let what = || "a weight matrix".to_string();
        let block_len = self.dtype.block_len();
        if !self.n_in.is_multiple_of(block_len) {
            return Err(Error::PartialBlock { what: what(), dtype: self.dtype, len: self.n_in, block_len });
        }
        let n = self.n_experts.checked_mul(self.n_out).and_then(|n| n.checked_mul(self.n_in));
        let expected = n.and_then(|n| self.dtype.bytes_for(n)).unwrap_or(usize::MAX);
        if expected != self.bytes.len() {
            let shape = vec![self.n_experts, self.n_out, self.n_in];
            return Err(Error::WrongSize {
                what: what(),
                dtype: self.dtype,
                shape,
                expected,
                found: self.bytes.len(),
            });
        }
        Ok(())
    }
}
