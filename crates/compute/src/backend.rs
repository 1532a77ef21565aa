//! What a device must be able to do: every operation of a transformer's forward pass, with its shapes.
//!
//! Outputs come first, then inputs, then scalars. Operations never allocate: model code owns all buffers. Activations are `F32`.
//! A fused operation is a method with a default composition; a backend overrides it where it has it in one kernel, and model code
//! stays the same. The meaning of each required method is its loop in `reference.rs`.

use crate::sampling::Samplers;
use crate::{Batch, BatchLimits, DType, Profiler, Rank, Result, Tensor};
use bytes::Bytes;
use std::sync::atomic::{AtomicU64, Ordering};

/// One weight matrix, or a stack of one per expert, as it stands in a file.
#[derive(Clone, Debug)]
pub struct MatrixPart {
    /// Element type.
    pub dtype: DType,
    /// Experts; 1 for a plain matrix.
    pub n_experts: usize,
    /// Output features (rows).
    pub n_out: usize,
    /// Input features (columns).
    pub n_in: usize,
    /// Row-major `[n_experts, n_out, n_in]`; may be a range of a mapped file, with no alignment.
    pub bytes: Bytes,
}

/// Normalization over the last dimension.
#[derive(Debug)]
pub struct Norm<B: Backend> {
    /// Which mean is taken out.
    pub kind: NormKind,
    /// Factor, `[n]`.
    pub weight: Tensor<B>,
    /// Summand, `[n]`.
    pub bias: Option<Tensor<B>>,
    /// Added to the variance or mean square.
    pub eps: f32,
}

/// Kind of normalization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x²) + eps)` (Zhang and Sennrich 2019).
    Rms,
    /// `(x - mean(x)) / sqrt(var(x) + eps)` (Ba et al. 2016).
    Layer,
}

/// How rotary embedding pairs the elements of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// `(0, 1), (2, 3), …`
    Interleaved,
    /// `(0, dim/2), (1, dim/2 + 1), …`
    Half,
}

/// Function between the two matrices of a feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x · sigmoid(x)`
    Silu,
    /// Tanh approximation of GELU.
    GeluTanh,
    /// Exact GELU, by the error function.
    GeluErf,
    /// `max(x, 0)²`
    ReluSquared,
    /// `max(x, 0)`
    Relu,
}

/// Sizes of an attention block's heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; a divisor of `n_heads`.
    pub n_kv_heads: usize,
    /// Elements in a head.
    pub head_dim: usize,
}

impl Heads {
    /// Elements of a row that holds `[q, k, v]` of one token.
    pub fn qkv_len(&self) -> usize {
        (self.n_heads + 2 * self.n_kv_heads) * self.head_dim
    }
}

/// How attention weighs keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionParams {
    /// Head sizes.
    pub heads: Heads,
    /// Factor on query · key.
    pub scale: f32,
    /// `cap · tanh(score / cap)` on scaled scores.
    pub softcap: Option<f32>,
    /// A token sees itself and the `window - 1` tokens before it; all where `None`.
    pub window: Option<usize>,
}

/// Rotation of queries and keys, and their per-head norms before it.
#[derive(Clone, Copy)]
pub struct QkvPrep<'a, B: Backend> {
    /// Head sizes.
    pub heads: Heads,
    /// Norms of each query and key head, over `head_dim`.
    pub qk_norm: Option<(&'a Norm<B>, &'a Norm<B>)>,
    /// `[n_tokens, rope_dim]`, of [`Backend::rope_angles`]; no rotation where `None`.
    pub angles: Option<(&'a Tensor<B>, RopeStyle)>,
}

/// How tokens choose experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeParams {
    /// Experts per token.
    pub n_used: usize,
    /// Divide the chosen experts' probabilities by their sum.
    pub norm_topk: bool,
    /// Between gate and up.
    pub activation: Activation,
}

/// The product that ends a block, whose input the block computes.
pub struct OutProduct<'a, B: Backend> {
    /// Its weights.
    pub w: &'a B::Matrix,
    /// What is added to it.
    pub bias: Option<&'a Tensor<B>>,
    /// Room for its input.
    pub x: &'a mut Tensor<B>,
    /// Room for the product.
    pub product: &'a mut Tensor<B>,
    /// Whether each rank has a part of the product, and what counts is the sum of all ranks'.
    pub is_part: bool,
}

/// Buffers of [`Backend::moe`], each with room for `n_tokens · n_used` rows.
#[derive(Debug)]
pub struct MoeScratch<B: Backend> {
    /// Inputs in the order of their experts, `[rows, hidden_size]`.
    pub x: Tensor<B>,
    /// `[rows, 2 · intermediate_size]`.
    pub gate_up: Tensor<B>,
    /// `[rows, intermediate_size]`.
    pub hidden: Tensor<B>,
    /// `[rows, hidden_size]`.
    pub y: Tensor<B>,
}

/// Keys and values of one layer, in blocks.
#[derive(Debug)]
pub struct KvLayer<B: Backend> {
    /// `[n_blocks, n_kv_heads, block_size, head_dim]`, so that one head's pass over a block is one contiguous read. In which order
    /// the numbers of one head lie in its part of a block is the backend's own business.
    pub k: Tensor<B>,
    /// As `k`.
    pub v: Tensor<B>,
}

/// Which recorded sequence of operations is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GraphKey {
    /// Who owns all the memory that the operations use; a number that nobody else has.
    pub owner: u64,
    /// Tokens of the step.
    pub n_tokens: usize,
    /// Rows of logits of the step.
    pub n_logits: usize,
    /// What becomes of the logits.
    pub choosing: Choosing,
    /// Tells apart steps whose tokens belong to sequences in other ways; 0 where each is a sequence's one token.
    pub shape: u64,
}

/// What was chosen from a row of logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// A token: of [`Backend::choose_likeliest`] the one with the largest logit, the lowest of equal ones.
    Token(u32),
    /// A logit that is not a number, the first, or else one that is infinite.
    NotFinite {
        /// Of which token.
        token: u32,
        /// Not a number, as opposed to infinite.
        nan: bool,
    },
    /// All logits are minus infinity, which means never, or no token is allowed.
    Nothing,
}

impl Chosen {
    /// The token; 0 where none could be chosen.
    pub fn token_or_zero(self) -> u32 {
        match self {
            Self::Token(token) => token,
            _ => 0,
        }
    }
}

/// How a step ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Choosing {
    /// With logits.
    Nothing,
    /// With [`Backend::choose_likeliest`].
    Likeliest,
    /// With [`Backend::sample`].
    Sampled,
}

impl GraphKey {
    /// A number for [`GraphKey::owner`].
    pub fn new_owner() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }
}

/// Memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Not in use by anybody.
    pub free: usize,
    /// All.
    pub total: usize,
}

/// A device that can run a transformer.
///
/// Errors of operations: [`Error::Unsupported`](crate::Error::Unsupported) for an element type the backend lacks,
/// [`Error::Device`](crate::Error::Device) when the device fails. Shapes that contradict each other are a mistake of the caller and
/// panic with both shapes: everything that comes from a file was checked when it was loaded.
pub trait Backend: Sized + Send + Sync + 'static {
    /// Memory of a tensor.
    type Buffer: Send + Sync;
    /// A weight matrix in the layout that the backend's products want.
    type Matrix: Send + Sync;
    /// A step's batch where the device can read it.
    type Batch: Send;
    /// Tokens that were chosen, on their way to the host.
    type Choices: Send;

    /// Short name, such as `cpu`.
    fn name(&self) -> &'static str;

    /// The device in words, for people: model, instruction set or compute capability, threads.
    fn describe(&self) -> String;

    /// Memory of the device now.
    fn memory(&self) -> DeviceMemory;

    /// Bytes per second that the device's memory delivers by its clock and width, where the device tells them.
    fn memory_bandwidth(&self) -> Option<u64> {
        None
    }

    /// Which of the devices that share a model this is.
    fn rank(&self) -> Rank {
        Rank::ALONE
    }

    /// Whether every sum is taken in one order, so that a result does not depend on what is computed beside it.
    fn is_exact(&self) -> bool {
        false
    }

    /// Memory that operations take besides their tensors, about: what does not fit should be refused before it is loaded.
    fn scratch_bytes(&self) -> usize {
        0
    }

    /// Whether attention with such heads can run here.
    ///
    /// Errors: `UnsupportedSize`.
    fn check_heads(&self, _heads: Heads) -> Result<()> {
        Ok(())
    }

    /// A tensor of zeros.
    fn zeros(&self, dtype: DType, shape: &[usize]) -> Result<Tensor<Self>>;

    /// An `F32` tensor with these values.
    fn upload(&self, shape: &[usize], values: &[f32]) -> Result<Tensor<Self>>;

    /// Reads an `F32` tensor back; `out` has its length.
    fn download(&self, out: &mut [f32], x: &Tensor<Self>) -> Result<()>;

    /// One matrix from parts stacked along their outputs: `[sum of n_out, n_in]`. All parts have one `n_in` and `n_experts`.
    ///
    /// Errors: `WrongSize` or `PartialBlock` where a part's bytes are not what its type and shape say.
    fn matrix(&self, parts: Vec<MatrixPart>) -> Result<Self::Matrix>;

    /// Bytes of the matrix on the device.
    fn matrix_bytes(&self, w: &Self::Matrix) -> usize;

    /// Room for a batch within `limits`.
    fn new_batch(&self, limits: BatchLimits) -> Result<Self::Batch>;

    /// Hands a step's batch to the device.
    ///
    /// Errors: `BatchTooLarge`.
    fn stage(&self, staged: &mut Self::Batch, batch: &Batch) -> Result<()>;

    /// Keys and values for `n_blocks · block_size` tokens.
    fn kv_layer(
        &self,
        dtype: DType,
        n_blocks: usize,
        block_size: usize,
        heads: Heads,
    ) -> Result<KvLayer<Self>> {
        let shape = [n_blocks, heads.n_kv_heads, block_size, heads.head_dim];
        Ok(KvLayer { k: self.zeros(dtype, &shape)?, v: self.zeros(dtype, &shape)? })
    }

    /// Copies one block of keys and values over another.
    fn copy_block(&self, kv: &mut KvLayer<Self>, to: usize, from: usize) -> Result<()>;

    /// `y[n_tokens, hidden_size] = scale · table[token]`.
    fn embed(
        &self,
        y: &mut Tensor<Self>,
        table: &Self::Matrix,
        batch: &Self::Batch,
        scale: f32,
    ) -> Result<()>;

    /// `x[n_tokens, hidden_size] += table[position]`, with `table` `[n_positions, hidden_size]`.
    fn add_positions(&self, x: &mut Tensor<Self>, table: &Tensor<Self>, batch: &Self::Batch) -> Result<()>;

    /// `y[n_tokens, 2 · n] = [cos(p · f) · scale; sin(p · f) · scale]`, with `f` `[n]` the frequencies and `p` each token's position.
    ///
    /// Source: RoFormer (Su et al. 2021), eq. 15.
    fn rope_angles(
        &self,
        y: &mut Tensor<Self>,
        f: &Tensor<Self>,
        batch: &Self::Batch,
        scale: f32,
    ) -> Result<()>;

    /// `y = norm(x)`, rows of the same length.
    fn norm(&self, y: &mut Tensor<Self>, x: &Tensor<Self>, norm: &Norm<Self>) -> Result<()>;

    /// `x = norm(x)`.
    fn norm_in_place(&self, x: &mut Tensor<Self>, norm: &Norm<Self>) -> Result<()>;

    /// `y += norm(x)`; the contents of `x`, of the shape of `y`, are unspecified afterwards.
    fn add_norm(&self, y: &mut Tensor<Self>, x: &mut Tensor<Self>, norm: &Norm<Self>) -> Result<()> {
        self.norm_in_place(x, norm)?;
        self.add(y, x)
    }

    /// `y += x`.
    fn add(&self, y: &mut Tensor<Self>, x: &Tensor<Self>) -> Result<()>;

    /// `y[n_tokens, n_out] = x[n_tokens, n_in] · wᵀ + bias[n_out]`.
    fn matmul(
        &self,
        y: &mut Tensor<Self>,
        x: &Tensor<Self>,
        w: &Self::Matrix,
        bias: Option<&Tensor<Self>>,
    ) -> Result<()>;

    /// `y = norm(x) · wᵀ + bias`; the contents of `normed`, of the shape of `x`, are unspecified afterwards.
    fn norm_matmul(
        &self,
        y: &mut Tensor<Self>,
        normed: &mut Tensor<Self>,
        x: &Tensor<Self>,
        norm: &Norm<Self>,
        w: &Self::Matrix,
        bias: Option<&Tensor<Self>>,
    ) -> Result<()> {
        self.norm(normed, x, norm)?;
        self.matmul(y, normed, w, bias)
    }

    /// `y += x · wᵀ + bias`, or the sum of every rank's; the contents of `out`'s other tensors, of which the product's has the shape of
    /// `y`, are unspecified afterwards.
    ///
    /// Of parts of a product as for [`Backend::all_reduce`].
    fn matmul_add(&self, y: &mut Tensor<Self>, out: OutProduct<'_, Self>) -> Result<()> {
        self.matmul(out.product, out.x, out.w, out.bias)?;
        match out.is_part {
            true => self.all_reduce_add(y, out.product),
            false => self.add(y, out.product),
        }
    }

    /// `y = activation(g) · u` with `[g, u] = norm(x) · wᵀ`; the contents of `normed`, of the shape of `x`, and of `gate_up`, twice as
    /// wide as `y`, are unspecified afterwards.
    fn norm_gated_matmul(
        &self,
        y: &mut Tensor<Self>,
        normed: &mut Tensor<Self>,
        gate_up: &mut Tensor<Self>,
        x: &Tensor<Self>,
        norm: &Norm<Self>,
        w: &Self::Matrix,
        activation: Activation,
    ) -> Result<()> {
        self.norm(normed, x, norm)?;
        self.matmul(gate_up, normed, w, None)?;
        self.gated(y, gate_up, activation)
    }

    /// Prepares `qkv` `[n_tokens, qkv_len]` for attention: norms and rotates the query and key heads in place, and writes keys and
    /// values to their positions in the cache. Only the first `rope_dim` elements of a head turn.
    fn store_kv(
        &self,
        qkv: &mut Tensor<Self>,
        kv: &mut KvLayer<Self>,
        batch: &Self::Batch,
        prep: QkvPrep<'_, Self>,
    ) -> Result<()>;

    /// Causal attention of each token's queries over its sequence's cache: `y[n_tokens, n_heads · head_dim]`.
    fn attention(
        &self,
        y: &mut Tensor<Self>,
        qkv: &Tensor<Self>,
        kv: &KvLayer<Self>,
        batch: &Self::Batch,
        params: &AttentionParams,
    ) -> Result<()>;

    /// [`Backend::store_kv`], then [`Backend::attention`]; the contents of `qkv` are unspecified afterwards.
    fn store_and_attend(
        &self,
        y: &mut Tensor<Self>,
        qkv: &mut Tensor<Self>,
        kv: &mut KvLayer<Self>,
        batch: &Self::Batch,
        prep: QkvPrep<'_, Self>,
        params: &AttentionParams,
    ) -> Result<()> {
        self.timed("store_kv", || self.store_kv(qkv, kv, batch, prep))?;
        self.timed("attention", || self.attention(y, qkv, kv, batch, params))
    }

    /// [`Backend::store_and_attend`], then [`Backend::matmul_add`] of what was attended; the contents of all other tensors but the cache's
    /// are unspecified afterwards.
    fn attention_block(
        &self,
        y: &mut Tensor<Self>,
        qkv: &mut Tensor<Self>,
        kv: &mut KvLayer<Self>,
        batch: &Self::Batch,
        prep: QkvPrep<'_, Self>,
        params: &AttentionParams,
        out: OutProduct<'_, Self>,
    ) -> Result<()> {
        self.store_and_attend(out.x, qkv, kv, batch, prep, params)?;
        self.timed("o_proj", || self.matmul_add(y, out))
    }

    /// [`Backend::norm_gated_matmul`] of `y`, then [`Backend::matmul_add`] of its result to `y`; the contents of all other tensors are
    /// unspecified afterwards.
    fn gated_block(
        &self,
        y: &mut Tensor<Self>,
        normed: &mut Tensor<Self>,
        gate_up: &mut Tensor<Self>,
        norm: &Norm<Self>,
        w: &Self::Matrix,
        activation: Activation,
        out: OutProduct<'_, Self>,
    ) -> Result<()> {
        self.timed("gate_up_proj", || {
            self.norm_gated_matmul(out.x, normed, gate_up, y, norm, w, activation)
        })?;
        self.timed("down_proj", || self.matmul_add(y, out))
    }

    /// `y[n, len] = activation(x[n, ..len]) · x[n, len..]`, gate first.
    fn gated(&self, y: &mut Tensor<Self>, x: &Tensor<Self>, activation: Activation) -> Result<()>;

    /// `x = activation(x)`.
    fn activate(&self, x: &mut Tensor<Self>, activation: Activation) -> Result<()>;

    /// Mixture of experts: each token goes to the `n_used` experts with the highest softmax of `router` `[n_tokens, n_experts]` (ties
    /// to the lowest expert) and gets the sum of their gated feed-forward blocks, weighted by those probabilities.
    ///
    /// `gate_up`: `[n_experts, 2 · intermediate_size, hidden_size]`; `down`: `[n_experts, hidden_size, intermediate_size]`.
    fn moe(
        &self,
        y: &mut Tensor<Self>,
        x: &Tensor<Self>,
        router: &Tensor<Self>,
        gate_up: &Self::Matrix,
        down: &Self::Matrix,
        params: &MoeParams,
        scratch: &mut MoeScratch<Self>,
    ) -> Result<()>;

    /// The rows of `x` that yield logits: `y[n_logits, n]`.
    fn select_rows(&self, y: &mut Tensor<Self>, x: &Tensor<Self>, batch: &Self::Batch) -> Result<()>;

    /// Chooses a token from each row of `logits` `[n_logits, vocab_size]`. Deferred tokens of the batch that is staged next are of
    /// these.
    fn choose_likeliest(&self, batch: &mut Self::Batch, logits: &Tensor<Self>) -> Result<()>;

    /// Hands the device what [`Backend::sample`] shall do with each row of logits of the step that is staged.
    ///
    /// Errors: `OutOfMemory` if what the rows know, such as the tokens that penalties look at, has become larger than what is free.
    fn stage_samplers(&self, batch: &mut Self::Batch, samplers: &Samplers) -> Result<()>;

    /// Chooses a token from each row of `logits` `[n_logits, vocab_size]` as [`crate::sampling`] defines it, in the ways staged last.
    /// Deferred tokens of the batch that is staged next are of these. The contents of `logits` are unspecified afterwards.
    fn sample(&self, batch: &mut Self::Batch, logits: &mut Tensor<Self>) -> Result<()>;

    /// Sends the host what was chosen for the batch that is staged, once.
    fn fetch_choices(&self, batch: &mut Self::Batch) -> Result<Self::Choices>;

    /// Waits for choices, and appends one for each row.
    fn wait_for_choices(&self, choices: Self::Choices, out: &mut Vec<Chosen>) -> Result<()>;

    /// Whether operations only enqueue work for the device. Their failure may show when something is waited for.
    fn is_asynchronous(&self) -> bool {
        false
    }

    /// `x = sum of every rank's x`, added in the order of ranks: all of them get the same bits.
    ///
    /// All ranks do this together, each on its own thread. Errors: `Device`, also when another rank has left.
    fn all_reduce(&self, x: &mut Tensor<Self>) -> Result<()>;

    /// `y += sum of every rank's x`; the contents of `x`, of the shape of `y`, are unspecified afterwards.
    fn all_reduce_add(&self, y: &mut Tensor<Self>, x: &mut Tensor<Self>) -> Result<()> {
        self.all_reduce(x)?;
        self.add(y, x)
    }

    /// Every rank's x side by side: `y[n, starts[rank] .. starts[rank + 1]] = x[n, ..]` of that rank. `starts` has an entry more than
    /// there are ranks, and its last is the length of a row of `y`.
    ///
    /// As for [`Backend::all_reduce`], all ranks do this together.
    fn all_gather(&self, y: &mut Tensor<Self>, x: &Tensor<Self>, starts: &[usize]) -> Result<()>;

    /// Lets the other ranks know that this one does not go on: what they do together with it fails instead of waiting.
    fn leave(&self) {}

    /// `x = cap · tanh(x / cap)`.
    fn softcap(&self, x: &mut Tensor<Self>, cap: f32) -> Result<()>;

    /// `x[n, len] *= factors[len]`.
    fn scale_columns(&self, x: &mut Tensor<Self>, factors: &Tensor<Self>) -> Result<()>;

    /// `x *= factor`.
    fn scale(&self, x: &mut Tensor<Self>, factor: f32) -> Result<()>;

    /// Records times of operations where it is on; `None` for a backend that nobody profiles.
    fn profiler(&self) -> Option<&Profiler> {
        None
    }

    /// Runs a part of the forward pass under a name for the profiler. While that is on, the device finishes each part before the next.
    fn timed<T>(&self, name: &'static str, f: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.profiler().filter(|p| p.is_on()) {
            None => f(),
            Some(profiler) => {
                self.synchronize()?;
                profiler.time(name, || {
                    let result = f()?;
                    self.synchronize()?;
                    Ok(result)
                })
            }
        }
    }

    /// Does what `f` does, which for one key is always the same operations on the same tensors; only what those hold differs. A
    /// backend may record the operations and replay them, without calling `f` again.
    ///
    /// Nothing that the operations use may be freed before [`Backend::forget`].
    fn captured<E: From<crate::Error>>(
        &self,
        _key: GraphKey,
        mut f: impl FnMut() -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        f()
    }

    /// Drops what was recorded under an owner's keys.
    fn forget(&self, _owner: u64) {}

    /// Waits until everything enqueued so far is done and reports its failure.
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
}
