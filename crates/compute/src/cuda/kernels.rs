//! The compiled kernels and where each one is.

use super::driver::{Driver, Function, Image};
use super::gemm::{Number, TILES, Tile};
use super::prefill_attention::{Block, ON_TENSOR_CORES};
use super::skinny::SHAPES;
use crate::quant::QUANTS;
use crate::{DType, Error, Result};

macro_rules! images {
    ($($name:ident)*) => {$(
        #[allow(non_upper_case_globals)]
        static $name: Image = Image {
            name: stringify!($name),
            bytes: include_bytes!(concat!("../../prebuilt/", stringify!($name), ".fatbin")),
        };
    )*};
}
images!(
    attention decode_attention dequantize elementwise few gemm gemm_hopper matmul matvec moe norm operands
    prefill_attention prefill_attention_hopper ranks repack rope sample shares skinny
);

/// Static shared memory of the fused products, at most.
pub(super) const MATVEC_STATIC: usize = 1 << 10;

/// Static shared memory of products of a few rows, at most.
const FEW_STATIC: usize = 1 << 8;

/// Element types that are repacked when they are loaded.
pub(super) const PACKED: [DType; 5] = [DType::Q4_0, DType::Q8_0, DType::Q4_K, DType::Q5_K, DType::Q6_K];

/// Element types that a cache may have.
const CACHE_TYPES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::Q8_0];

/// Every kernel, by what it does.
pub(super) struct Kernels {
    pub(super) add: Function,
    pub(super) add_rows: Function,
    pub(super) select_rows: Function,
    pub(super) gated: Function,
    pub(super) activate: Function,
    pub(super) softcap: Function,
    pub(super) scale: Function,
    pub(super) scale_columns: Function,
    pub(super) put: Function,
    pub(super) norm_rows: Function,
    pub(super) rope_angles: Function,
    pub(super) gemm: Function,
    /// One row of activations, with so many threads: on a GPU alone, and on one among several.
    pub(super) matvec_256: [Function; 2],
    pub(super) matvec_384: [Function; 2],
    pub(super) matvec_512: [Function; 2],
    /// Up to 8 rows of activations.
    pub(super) matvec_8: Function,
    /// Dynamic shared memory that the fused products may ask for, in bytes.
    pub(super) matvec_shared: usize,
    /// Up to so many rows of activations with packed weights, and what rounds activations for them.
    pub(super) few_2: Function,
    pub(super) few_4: Function,
    pub(super) few_8: Function,
    pub(super) few_activations: Function,
    /// Dynamic shared memory that they may ask for, in bytes.
    pub(super) few_shared: usize,
    pub(super) moe_route: Function,
    pub(super) moe_group: Function,
    pub(super) moe_combine: Function,
    pub(super) attention_merge: Function,
    pub(super) likeliest: Function,
    pub(super) all_reduce: Function,
    pub(super) all_gather: Function,
    pub(super) spread_columns: Function,
    pub(super) sample_edit: Function,
    pub(super) sample_weigh: Function,
    pub(super) sample_choose: Function,
    /// To numbers that tensor cores multiply, in the order of [`Number::ALL`]: of rows of up to 4,096 elements, up to 16,384, and longer ones.
    activations: [[Function; 3]; Number::ALL.len()],
    /// To 8 bits where no norm comes before: of floats, and of tiles of BF16.
    pub(super) activation_bytes: Function,
    pub(super) bfloat_bytes: Function,
    /// Where the GPU can run them.
    pub(super) skinny: Option<SkinnyKernels>,
    /// In the order of [`TILES`] and [`Number::ALL`]; those that the GPU can run.
    by_tile: Vec<[Option<Function>; Number::ALL.len()]>,
    /// In the order of [`PACKED`].
    by_packed: Vec<PackedKernels>,
    /// Indexed by element type.
    by_type: Vec<TypeKernels>,
    /// In the order of [`CACHE_TYPES`].
    by_cache: Vec<CacheKernels>,
}

/// Kernels for a middling number of rows of activations.
pub(super) struct SkinnyKernels {
    pub(super) activations: Function,
    /// In the order of [`SHAPES`].
    pub(super) by_shape: Vec<Function>,
    /// The same of packed weights, where they have kernels of their own.
    pub(super) shares: Vec<Option<Function>>,
}

/// Kernels for one packed layout.
#[derive(Clone, Copy)]
pub(super) struct PackedKernels {
    pub(super) repack: Function,
    /// To slabs for tensor cores, of 16 bits and of 8.
    pub(super) halves: Function,
    pub(super) bytes: Function,
    pub(super) dequantize: Function,
    pub(super) gemv_8: Function,
}

/// Kernels that read weights of one type.
#[derive(Clone, Copy)]
pub(super) struct TypeKernels {
    /// To slabs for tensor cores.
    pub(super) halves: Function,
    pub(super) dequantize: Function,
    /// One row of activations.
    pub(super) gemv_1: Function,
    /// Up to 8 rows of activations.
    pub(super) gemv_8: Function,
}

/// Kernels for a cache of one type.
#[derive(Clone, Copy)]
pub(super) struct CacheKernels {
    pub(super) store_kv: Function,
    pub(super) attention: Function,
    /// By the sizes of heads that the launchers list; for types that tensor cores can read, or that are decoded for them.
    pub(super) decode_attention: [Option<Function>; 3],
    pub(super) prefill_attention: [Option<Function>; 2],
}

impl Kernels {
    pub(super) fn load(driver: &dyn Driver) -> Result<Self> {
        let f = |image: &'static Image, name: &str| driver.function(image, name, 0);
        let matvec_shared = driver.max_shared_bytes() - MATVEC_STATIC;
        let one_row = |threads: usize| {
            let name = format!("matvec_{threads}");
            let f = |name: &str| driver.function(&matvec, name, matvec_shared as u32);
            Ok::<_, crate::Error>([f(&name)?, f(&format!("{name}_ranks"))?])
        };
        let few_shared = driver.max_shared_bytes() - FEW_STATIC;
        let by_type = QUANTS.iter().map(|s| {
            Ok(TypeKernels {
                halves: f(&operands, &format!("weights_{}", s.name))?,
                dequantize: f(&dequantize, &format!("dequantize_{}", s.name))?,
                gemv_1: f(&matmul, &format!("gemv_1_{}", s.name))?,
                gemv_8: f(&matmul, &format!("gemv_8_{}", s.name))?,
            })
        });
        let by_packed = PACKED.iter().map(|t| {
            Ok(PackedKernels {
                halves: f(&operands, &format!("weights_Packed_{t}"))?,
                bytes: f(&operands, &format!("bytes_Packed_{t}"))?,
                repack: f(&repack, &format!("repack_Packed_{t}"))?,
                dequantize: f(&dequantize, &format!("dequantize_Packed_{t}"))?,
                gemv_8: f(&matmul, &format!("gemv_8_Packed_{t}"))?,
            })
        });
        // A kernel for heads of one size over a cache that tensor cores can read.
        let on_tensor_cores = |image: &'static Image, dtype: DType, dim: usize, shared: usize| {
            if !ON_TENSOR_CORES.contains(&dtype) {
                return Ok(None);
            }
            driver.function(image, &format!("{}_{dtype}_{dim}", image.name), shared as u32).map(Some)
        };
        let decode = |dtype: DType, i: usize| {
            let dim = super::decode_attention::HEAD_DIMS[i];
            on_tensor_cores(&decode_attention, dtype, dim, super::decode_attention::shared_bytes(driver, dim))
        };
        let prefill = |dtype: DType, i: usize| {
            let dim = super::prefill_attention::HEAD_DIMS[i];
            let block = Block::on(driver);
            let image = if block.hopper { &prefill_attention_hopper } else { &prefill_attention };
            on_tensor_cores(image, dtype, dim, block.shared_bytes(dim))
        };
        let by_cache = CACHE_TYPES.iter().map(|t| {
            Ok(CacheKernels {
                store_kv: f(&rope, &format!("store_kv_{t}"))?,
                attention: f(&attention, &format!("attention_{t}"))?,
                decode_attention: [decode(*t, 0)?, decode(*t, 1)?, decode(*t, 2)?],
                prefill_attention: [prefill(*t, 0)?, prefill(*t, 1)?],
            })
        });
        let activations = |number: Number| -> Result<_> {
            let kernel = |longest: &str| f(&operands, &format!("activations_{}{longest}", number.name()));
            Ok([kernel("_4096")?, kernel("_16384")?, kernel("")?])
        };
        let by_tile = TILES.iter().map(|tile| {
            let image = match tile.hopper {
                false => &gemm,
                true if driver.is_hopper() => &gemm_hopper,
                true => return Ok([None; Number::ALL.len()]),
            };
            let kernel = |number| {
                let name = tile.kernel(number);
                name.map(|name| driver.function(image, &name, tile.shared_bytes() as u32)).transpose()
            };
            Ok([kernel(Number::F16)?, kernel(Number::BF16)?, kernel(Number::Int8)?])
        });
        let by_shape = SHAPES.iter().map(|shape| {
            driver.function(&skinny, &format!("skinny_{}", shape.rows), shape.shared_bytes as u32)
        });
        let by_shape_of_shares = SHAPES.iter().map(|shape| {
            let kernel =
                || driver.function(&shares, &format!("shares_{}", shape.rows), shape.shared_bytes as u32);
            shape.shares.then(kernel).transpose()
        });
        let skinny_kernels = match driver.is_hopper() {
            true => Some(SkinnyKernels {
                activations: f(&skinny, "skinny_activations")?,
                by_shape: by_shape.collect::<Result<_>>()?,
                shares: by_shape_of_shares.collect::<Result<_>>()?,
            }),
            false => None,
        };
        Ok(Self {
            add: f(&elementwise, "add")?,
            add_rows: f(&elementwise, "add_rows")?,
            select_rows: f(&elementwise, "select_rows")?,
            gated: f(&elementwise, "gated")?,
            activate: f(&elementwise, "activate")?,
            softcap: f(&elementwise, "softcap")?,
            scale: f(&elementwise, "scale")?,
            scale_columns: f(&elementwise, "scale_columns")?,
            put: f(&elementwise, "put")?,
            norm_rows: f(&norm, "norm_rows")?,
            rope_angles: f(&rope, "rope_angles")?,
            gemm: f(&matmul, "gemm")?,
            matvec_256: one_row(256)?,
            matvec_384: one_row(384)?,
            matvec_512: one_row(512)?,
            matvec_8: driver.function(&matvec, "matvec_8", matvec_shared as u32)?,
            matvec_shared,
            few_2: driver.function(&few, "few_2", few_shared as u32)?,
            few_4: driver.function(&few, "few_4", few_shared as u32)?,
            few_8: driver.function(&few, "few_8", few_shared as u32)?,
            few_activations: f(&few, "few_activations")?,
            few_shared,
            moe_route: f(&moe, "moe_route")?,
            moe_group: f(&moe, "moe_group")?,
            moe_combine: f(&moe, "moe_combine")?,
            attention_merge: f(&attention, "attention_merge")?,
            likeliest: f(&sample, "likeliest")?,
            all_reduce: f(&ranks, "all_reduce")?,
            all_gather: f(&ranks, "all_gather")?,
            spread_columns: f(&ranks, "spread_columns")?,
            sample_edit: f(&sample, "sample_edit")?,
            sample_weigh: f(&sample, "sample_weigh")?,
            sample_choose: f(&sample, "sample_choose")?,
            activations: [activations(Number::F16)?, activations(Number::BF16)?, activations(Number::Int8)?],
            activation_bytes: f(&operands, "activation_bytes")?,
            bfloat_bytes: f(&operands, "bfloat_bytes")?,
            skinny: skinny_kernels,
            by_tile: by_tile.collect::<Result<_>>()?,
            by_packed: by_packed.collect::<Result<_>>()?,
            by_type: by_type.collect::<Result<_>>()?,
            by_cache: by_cache.collect::<Result<_>>()?,
        })
    }

    pub(super) fn of_packed(&self, dtype: DType) -> PackedKernels {
        let i = PACKED.iter().position(|&t| t == dtype);
        self.by_packed[i.expect("a packed type")]
    }

    /// To numbers that tensor cores multiply, for rows of `n` elements.
    pub(super) fn of_activations(&self, number: Number, n: usize) -> Function {
        self.activations[number as usize][usize::from(n > 4096) + usize::from(n > 16384)]
    }

    pub(super) fn of_tile(&self, number: Number, tile: Tile) -> Function {
        let i = TILES.iter().position(|&t| t == tile).expect("a tile that is compiled");
        self.by_tile[i][number as usize].expect("a tile that the GPU can run")
    }

    pub(super) fn of_type(&self, dtype: DType) -> TypeKernels {
        self.by_type[dtype as usize]
    }

    /// Errors: `Unsupported` for a type that no cache has.
    pub(super) fn of_cache(&self, dtype: DType) -> Result<CacheKernels> {
        let i = CACHE_TYPES.iter().position(|&t| t == dtype);
        i.map(|i| self.by_cache[i]).ok_or(Error::Unsupported { op: "a cache", dtype, backend: "cuda" })
    }
}
