//! Element types of a KV cache, and kernels that are compiled for each of them.

use crate::cuda::driver::{Driver, Kernel, KernelImage};
use crate::{DType, Error, Result};

/// Element types that a cache may have.
const CACHE_TYPES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::Q8_0];

/// Element types that the tensor cores multiply, Q8_0 after decoding to half precision.
pub(super) const TENSOR_CORE_TYPES: [DType; 3] = [DType::F16, DType::BF16, DType::Q8_0];

/// A kernel for each type of cache.
#[derive(Clone, Copy)]
pub(super) struct ByCacheType<A>([Kernel<A>; CACHE_TYPES.len()]);

impl<A> ByCacheType<A> {
    /// Kernels named `<name>_<type>`.
    pub(super) fn load(driver: &dyn Driver, image: KernelImage, name: &str) -> Result<Self> {
        let [a, b, c, d] = CACHE_TYPES.map(|t| image.kernel(driver, &format!("{name}_{t}"), 0));
        Ok(Self([a?, b?, c?, d?]))
    }

    /// Errors: `Unsupported` for a type that no cache has.
    pub(super) fn get(&self, dtype: DType) -> Result<Kernel<A>> {
        Ok(self.0[index(dtype)?])
    }
}

/// A kernel for each of `TENSOR_CORE_TYPES` and each of `N` head dimensions.
pub(super) struct ByTypeAndHead<A, const N: usize>([[Kernel<A>; N]; TENSOR_CORE_TYPES.len()]);

impl<A, const N: usize> ByTypeAndHead<A, N> {
    /// Kernels named `<name>_<type>_<head_dim>`; `shared_bytes`: their dynamic shared memory by head dimension.
    pub(super) fn load(
        driver: &dyn Driver,
        image: KernelImage,
        name: &str,
        head_dims: [usize; N],
        shared_bytes: impl Fn(usize) -> usize,
    ) -> Result<Self> {
        let kernels = TENSOR_CORE_TYPES.map(|t| {
            let kernel = |dim| image.kernel(driver, &format!("{name}_{t}_{dim}"), shared_bytes(dim));
            head_dims.into_iter().map(kernel).collect::<Result<Vec<_>>>()
        });
        let [a, b, c] = kernels.map(|of_type| {
            of_type.map(|k| k.try_into().unwrap_or_else(|_| unreachable!("one for each head size")))
        });
        Ok(Self([a?, b?, c?]))
    }

    /// The kernel for a type of cache and the head dimension at this index.
    pub(super) fn get(&self, dtype: DType, head: usize) -> Option<Kernel<A>> {
        TENSOR_CORE_TYPES.iter().position(|&t| t == dtype).map(|i| self.0[i][head])
    }
}

fn index(dtype: DType) -> Result<usize> {
    let i = CACHE_TYPES.iter().position(|&t| t == dtype);
    i.ok_or(Error::Unsupported { op: "a cache", dtype, backend: "cuda" })
}

/// Errors: `Unsupported` for a type that no cache has.
pub(in crate::cuda) fn check_cache_type(dtype: DType) -> Result<()> {
    index(dtype).map(|_| ())
}
