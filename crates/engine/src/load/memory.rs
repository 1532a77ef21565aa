//! What a model takes of its device's memory, decided before anything is allocated: weights, cache, workspace, and what to do where
//! they do not fit.

use super::error::LoadError;
use super::memory_plan::MemoryPlan;
use super::options::{CPU_MAX_SEQS, CPU_STEP_TOKENS, CacheSize, GPU_MAX_SEQS, GPU_STEP_TOKENS, LoadOptions};
use crate::SlotSizes;
use crate::runner::RunnerSizes;
use realizar_compute::cpu::Cpu;
use realizar_compute::{Backend, BatchLimits, DType, Device as _, DeviceMemory};
use realizar_model::{ModelConfig, Shard, StateSpec, workspace_bytes};

/// What a device has for a model, and what it takes besides what is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceSizes {
    pub(crate) memory: DeviceMemory,
    /// Bytes that operations need besides the tensors of a step.
    pub(crate) scratch: usize,
    /// Tokens of a step where nothing else is asked for.
    pub(crate) step_tokens: usize,
    /// Sequences of a step where nothing else is asked for.
    pub(crate) max_seqs: usize,
    /// Bytes that a cache for all sequences takes at most.
    pub(crate) cache: usize,
    /// Tenths of what is left beside weights and workspace that a cache takes where nobody asks for more.
    pub(crate) cache_tenths: usize,
    /// Whether weights can stay in the mapped file, whose pages the system takes back when it wants them.
    pub(crate) reads_files: bool,
}

/// Bytes of the CPU's memory that a cache takes at most where nobody asks for more.
const CPU_CACHE_BYTES: usize = 1 << 30;

impl DeviceSizes {
    /// What each of several ranks on the CPU has.
    pub(crate) fn of_cpus(cpus: &[Cpu]) -> Self {
        let DeviceMemory { free, total } = cpus[0].memory();
        Self {
            // They share one memory.
            memory: DeviceMemory { free: free / cpus.len(), total },
            scratch: cpus[0].scratch_bytes(),
            step_tokens: CPU_STEP_TOKENS,
            max_seqs: CPU_MAX_SEQS,
            cache: CPU_CACHE_BYTES,
            // Other programs use this memory, too.
            cache_tenths: 5,
            reads_files: true,
        }
    }

    /// What each of several devices with memory of their own has.
    pub(crate) fn of_gpus<B: Backend>(gpus: &[B]) -> Self {
        Self {
            memory: gpus.iter().map(B::memory).min_by_key(|m| m.free).expect("a device at least"),
            scratch: gpus[0].scratch_bytes(),
            step_tokens: GPU_STEP_TOKENS,
            max_seqs: GPU_MAX_SEQS,
            cache: usize::MAX,
            cache_tenths: 9,
            reads_files: false,
        }
    }
}

/// Converts between tokens of a cache and its bytes.
///
/// A model with recurrent layers gets as many bytes of slots as of keys and values, since snapshots are spaced so that they take as
/// much. Besides, each sequence that shall run at once has a slot, and one more is there, without which none can begin.
#[derive(Clone, Copy, Debug)]
struct CacheBytes {
    spec: StateSpec,
    block_size: usize,
    /// Sequences that have a slot whatever the number of blocks, at least one.
    n_seqs: usize,
}

impl CacheBytes {
    /// For a cache of type `kv_type` and one sequence.
    fn new(config: &ModelConfig, options: &LoadOptions, kv_type: DType) -> Self {
        Self { spec: StateSpec::new(config, kv_type), block_size: options.block_size, n_seqs: 1 }
    }

    /// The same for up to `max_seqs` sequences: as many as have room in half of what `bytes` hold beside `n_tokens` tokens.
    fn for_seqs(self, max_seqs: usize, n_tokens: usize, bytes: usize) -> Self {
        let spare = bytes.saturating_sub(self.total(n_tokens.div_ceil(self.block_size)));
        let more = (spare / 2).checked_div(self.spec.slot_bytes).unwrap_or(0);
        Self { n_seqs: (1 + more).min(max_seqs).max(1), ..self }
    }

    /// Slots whatever the number of blocks.
    fn least_slots(&self) -> usize {
        1 + self.n_seqs
    }

    /// Tokens in whole blocks that a cache of so many bytes holds.
    fn tokens(&self, bytes: usize) -> usize {
        let StateSpec { kv_bytes_per_token, slot_bytes } = self.spec;
        let kv = match slot_bytes {
            0 => bytes,
            _ => bytes.saturating_sub(self.least_slots().saturating_mul(slot_bytes)) / 2,
        };
        kv / kv_bytes_per_token.max(1) / self.block_size * self.block_size
    }

    fn block_bytes(&self) -> usize {
        self.block_size * self.spec.kv_bytes_per_token
    }

    /// The slots beside so many blocks; `None` without recurrent layers.
    fn slots(&self, n_blocks: usize) -> Option<SlotSizes> {
        let (block_bytes, slot_bytes) = (self.block_bytes(), self.spec.slot_bytes);
        let kv = n_blocks.saturating_mul(block_bytes);
        let n_slots = self.least_slots() + kv.checked_div(slot_bytes)?;
        let budget_bytes = kv.saturating_add(n_slots.saturating_mul(slot_bytes));
        Some(SlotSizes { n_slots, slot_bytes, block_bytes, budget_bytes })
    }

    /// Bytes of a cache of so many blocks, with its slots.
    fn total(&self, n_blocks: usize) -> usize {
        self.slots(n_blocks).map_or(n_blocks.saturating_mul(self.block_bytes()), |s| s.budget_bytes)
    }
}

/// Types of the cache to propose.
const SMALLER_CACHES: [DType; 2] = [DType::F16, DType::Q8_0];

/// How many blocks the cache gets, how long a sequence can be, and what all of it takes.
///
/// Without a wish for its size the cache is as large as the model's context, or as large as the device's share of what is left can hold.
///
/// `shard`: the part of the model that the device has; `weights`: bytes that its weights take there.
///
/// Errors: an option contradicts the model, or it does not fit, with all sizes and with what would fit.
pub(crate) fn plan(
    shard: &Shard,
    weights: usize,
    options: &LoadOptions,
    device: DeviceSizes,
) -> Result<(RunnerSizes, MemoryPlan), LoadError> {
    let config = shard.config();
    check_options(config, options)?;
    let step_tokens = options.step_tokens.unwrap_or(device.step_tokens);
    let max_seqs = options.max_seqs.unwrap_or(device.max_seqs);
    let has_no_drafts = options.draft_layer && config.n_draft_layers == 0;
    let max_guesses = if has_no_drafts { 0 } else { options.max_guesses };
    let max_logits = max_seqs.saturating_add(max_guesses);
    let limits = BatchLimits { n_tokens: step_tokens, n_seqs: max_seqs, n_blocks: 0, n_logits: max_logits };
    let workspace = workspace_bytes(shard, &limits).saturating_add(device.scratch);
    let free = device.memory.free;
    let left = free.saturating_sub(weights).saturating_sub(workspace);
    let block = options.block_size;
    let fitting = left / 10 * device.cache_tenths / options.cache_share.max(1);
    let one_seq = CacheBytes::new(config, options, options.kv_type);
    let cache_bytes = match options.cache {
        CacheSize::OneSequence => one_seq,
        CacheSize::Tokens(n) => one_seq.for_seqs(max_seqs, n, options.kv_memory.unwrap_or(fitting)),
        CacheSize::AllSequences => {
            let bytes = options.kv_memory.unwrap_or(fitting.min(device.cache));
            one_seq.for_seqs(max_seqs, options.n_ctx.unwrap_or(block), bytes)
        }
    };
    let tokens_in = |bytes: usize| cache_bytes.tokens(bytes);
    let wanted = options.n_ctx.unwrap_or(config.context_length);
    let given = options.kv_memory.map(tokens_in);
    if let (Some(bytes), Some(tokens)) = (options.kv_memory, given) {
        let least = options.n_ctx.unwrap_or(block);
        if tokens < least {
            let reason = format!(
                "it holds {tokens} tokens in blocks of {block}, and {least} are wanted; a token takes {} bytes in {}",
                cache_bytes.spec.kv_bytes_per_token, options.kv_type
            );
            return Err(invalid("--kv-memory", format!("{bytes} bytes"), reason));
        }
    }
    let unasked = tokens_in(fitting.min(device.cache));
    let fitting = tokens_in(fitting).max(block);
    let cache_tokens = |n_ctx: usize| match options.cache {
        CacheSize::OneSequence => n_ctx,
        CacheSize::Tokens(n) => n.max(n_ctx),
        CacheSize::AllSequences => n_ctx.saturating_mul(max_seqs).min(unasked).max(n_ctx),
    };
    let (n_ctx, tokens) = match (options.n_ctx, given) {
        (Some(n), Some(tokens)) => (n, tokens),
        (None, Some(tokens)) => (wanted.min(tokens), tokens),
        (Some(n), None) => (n, cache_tokens(n)),
        (None, None) => {
            let n = wanted.min(fitting);
            (n, cache_tokens(n).min(fitting).max(n))
        }
    };
    let n_blocks = tokens.div_ceil(block);
    let plan = MemoryPlan { weights, cache: cache_bytes.total(n_blocks), workspace };
    if plan.total() > free {
        return Err(LoadError::Memory {
            context: n_ctx,
            kv_type: options.kv_type,
            plan,
            free,
            remedy: remedy(config, options, &plan, device),
        });
    }
    let sizes = RunnerSizes {
        n_blocks,
        block_size: block,
        slots: cache_bytes.slots(n_blocks),
        kv_type: options.kv_type,
        context_length: n_ctx,
        step_tokens,
        max_seqs,
        max_logits,
    };
    Ok((sizes, plan))
}

/// What would fit, as the end of a sentence.
fn remedy(config: &ModelConfig, options: &LoadOptions, plan: &MemoryPlan, device: DeviceSizes) -> String {
    let for_weights = device.memory.free.saturating_sub(plan.workspace);
    let for_cache = for_weights.saturating_sub(plan.weights);
    let size = |t: &DType| t.bytes_for(1 << 10);
    let can_be =
        |t: &DType| config.head_dim_without_blocks_of(*t).is_none() && size(t) <= size(&options.kv_type);
    let fitting = SMALLER_CACHES.iter().filter(|t| can_be(t));
    let mut fitting: Vec<(DType, usize)> = std::iter::once(&options.kv_type)
        .chain(fitting.filter(|t| **t != options.kv_type))
        // More than the model was trained for is no help.
        .map(|&t| (t, CacheBytes::new(config, options, t).tokens(for_cache).min(config.context_length)))
        .filter(|&(_, tokens)| tokens > 0)
        .collect();
    // A smaller type is worth it only for a longer context.
    fitting.dedup_by_key(|(_, tokens)| *tokens);
    let fitting: Vec<String> = fitting
        .iter()
        .map(|(t, tokens)| format!("--ctx {tokens} with --kv-type {}", t.name().to_lowercase()))
        .collect();
    match (fitting.is_empty(), for_weights * 100 / plan.weights.max(1)) {
        (false, _) => format!("what fits: {}", fitting.join(", or ")),
        (true, _) if device.reads_files && options.repack && plan.weights > for_weights => {
            "--no-repack leaves weights in the file, which is slower".to_owned()
        }
        (true, _) if plan.weights == 0 => "use fewer --step-tokens".to_owned(),
        (true, 0) => "it is too large for this device in any type".to_owned(),
        (true, share) => {
            format!(
                "what fits: weights of a type with less than {share} % of these bits, or fewer --step-tokens"
            )
        }
    }
}

fn invalid(option: &'static str, value: String, reason: String) -> LoadError {
    LoadError::Option { option, value, reason }
}

fn check_options(config: &ModelConfig, options: &LoadOptions) -> Result<(), LoadError> {
    options.check()?;
    if let Some(head_dim) = config.head_dim_without_blocks_of(options.kv_type) {
        let reason =
            format!("heads of {head_dim} elements are not whole blocks of {}", options.kv_type.block_len());
        return Err(invalid("--kv-type", options.kv_type.to_string(), reason));
    }
    match options.n_ctx.filter(|&n| config.learned_positions && n > config.context_length) {
        None => Ok(()),
        Some(n) => {
            let reason = format!("the model has learned {} positions", config.context_length);
            Err(invalid("--ctx", n.to_string(), reason))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_takes_the_bytes_that_its_tokens_need() {
        for (slot_bytes, bytes) in [(0, 10_000), (0, 10_239), (1000, 10_000), (1, 10_000), (3000, 50_000)] {
            let spec = StateSpec { kv_bytes_per_token: 10, slot_bytes };
            let cache = CacheBytes { spec, block_size: 16, n_seqs: 1 };
            let n_blocks = cache.tokens(bytes) / 16;
            let slots = cache.slots(n_blocks);
            assert!(cache.total(n_blocks) <= bytes, "{slot_bytes}: {slots:?} and {n_blocks} blocks");
            // One block more, with what goes with it, is too much.
            assert!(cache.total(n_blocks + 1) + slot_bytes > bytes, "{slot_bytes}: {n_blocks} blocks");
            assert_eq!(slots.is_some(), slot_bytes > 0);
            assert!(slots.is_none_or(|s| s.n_slots >= 2));
        }
        let spec = StateSpec { kv_bytes_per_token: 10, slot_bytes: 1000 };
        let cache = CacheBytes { spec, block_size: 16, n_seqs: 1 };
        assert_eq!(cache.tokens(1500), 0, "no sequence can begin");
        // 4,000 bytes of keys and values, and as many of slots.
        assert_eq!(cache.slots(25).unwrap().n_slots, 2 + 4);
    }

    #[test]
    fn each_sequence_has_a_slot_as_far_as_half_of_the_memory_goes() {
        let spec = StateSpec { kv_bytes_per_token: 10, slot_bytes: 1000 };
        let one = CacheBytes { spec, block_size: 16, n_seqs: 1 };
        // A block of 16 tokens takes 160 bytes, and with the slots of one sequence 2,160.
        let n_seqs = |max_seqs, bytes| one.for_seqs(max_seqs, 16, bytes).n_seqs;
        assert_eq!(n_seqs(8, 100_000), 8);
        assert_eq!(n_seqs(8, 2_160 + 2 * 3_000), 1 + 3);
        assert_eq!(n_seqs(8, 2_160 + 1_999), 1);
        assert_eq!(n_seqs(8, 0), 1);
        let eight = one.for_seqs(8, 16, 100_000);
        assert_eq!(eight.slots(1).unwrap().n_slots, 9, "few blocks, and yet a slot each");
        let n_blocks = eight.tokens(100_000) / 16;
        assert!(eight.total(n_blocks) <= 100_000 && eight.total(n_blocks + 1) + 1_000 > 100_000);
        let plain = CacheBytes { spec: StateSpec { slot_bytes: 0, ..spec }, ..one };
        assert_eq!(plain.for_seqs(8, 16, 100_000).slots(1), None);
    }
}
