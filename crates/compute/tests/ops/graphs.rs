//! Random graphs of operations over several steps: what one leaves is what others read, in place, through scratch memory that all share, and
//! through caches and states that go from step to step.

use super::matrices::part;
use super::*;
use realizar_compute::{
    Activation, AttentionParams, ConvKind, DeltaInput, DeltaShape, DtLimits, Experts, HeadOrder, Heads,
    KvLayer, MoeParams, MoeScratch, Norm, NormKind, QkvPrep, RopeStyle, Router, ShortConv, SsmInput,
    SsmShape,
};

/// Row lengths of the registers, two of each. Packed types have whole blocks in all of them.
const LENGTHS: [usize; 3] = [256, 512, 768];
const N_REGISTERS: usize = 2 * LENGTHS.len();
/// Elements of an attention's head, of a delta rule's values and of a scan's heads.
const HEAD_DIM: usize = 64;
const N_EXPERTS: usize = 5;
const N_USED_EXPERTS: usize = 2;
const EXPERT_LEN: usize = 256;
const N_STEPS: usize = 3;
const N_SEQS: usize = 3;
/// Tokens that a sequence has in a step at most.
const MAX_TOKENS: usize = 90;
/// Two slots for each sequence.
const CACHE: CacheShape = CacheShape {
    n_blocks: N_SEQS * (N_STEPS * MAX_TOKENS).div_ceil(16),
    block_size: 16,
    n_positions: N_STEPS * MAX_TOKENS,
    n_slots: 2 * N_SEQS,
    n_token_types: 0,
    drafts: false,
    heads: Heads { n_heads: 2, n_kv_heads: 1, head_dim: HEAD_DIM },
};

/// An operation on registers, which are named by their numbers.
#[derive(Debug, Clone, Copy)]
enum Node {
    /// `to = w · from`, with the seed of the weights.
    Matmul {
        to: usize,
        from: usize,
        dtype: DType,
        bias: bool,
        seed: u64,
    },
    /// `to = norm(from)`.
    Norm {
        to: usize,
        from: usize,
        kind: NormKind,
        seed: u64,
    },
    NormInPlace {
        x: usize,
        kind: NormKind,
        seed: u64,
    },
    /// `to += from`.
    Add {
        to: usize,
        from: usize,
    },
    /// `to = f(first half of from) · second half`.
    Gated {
        to: usize,
        from: usize,
        activation: Activation,
    },
    Activate {
        x: usize,
        activation: Activation,
    },
    SigmoidGate {
        x: usize,
        gate: usize,
    },
    ScaleColumns {
        x: usize,
        seed: u64,
    },
    AddColumns {
        x: usize,
        seed: u64,
    },
    Softcap {
        x: usize,
        cap: f32,
    },
    Scale {
        x: usize,
        factor: f32,
    },
    /// `to = experts(from)`. The router reads numbers that no node writes: a rounding could change a choice.
    Moe {
        to: usize,
        from: usize,
        dtype: DType,
        seed: u64,
    },
    /// `to = attention(norm(from))`, with a cache of its own.
    Attention {
        to: usize,
        from: usize,
        cache: DType,
        window: Option<usize>,
        style: RopeStyle,
    },
    /// `to = conv(from)`, with a state of its own.
    Conv {
        to: usize,
        from: usize,
        kind: ConvKind,
        width: usize,
    },
    /// `to = delta(norm(from))`, with a state of its own.
    Delta {
        to: usize,
        from: usize,
        rates: usize,
        k_dim: usize,
    },
    /// `to = scan(norm(from))`, with a state of its own.
    Scan {
        to: usize,
        from: usize,
        dt: usize,
        state_dim: usize,
    },
}

/// What a node keeps from step to step.
struct Layer<B: Backend> {
    matrices: Vec<B::Matrix>,
    kv: Option<KvLayer<B>>,
    state: Option<Tensor<B>>,
}

/// Tokens of a sequence in a step.
#[derive(Debug, Clone, Copy)]
struct Part {
    seq: usize,
    n_tokens: usize,
    /// Which of the sequence's two slots gets its state.
    slot: u32,
}

/// A graph of `nodes`, in their order, on rows of random numbers.
#[derive(Debug)]
struct Graph {
    steps: [Vec<Part>; N_STEPS],
    nodes: Vec<Node>,
    /// Of the inputs.
    seed: u64,
}

fn length(register: usize) -> usize {
    LENGTHS[register / 2]
}

impl Graph {
    fn random(seed: u64) -> Self {
        let mut random = Random(seed);
        // Few rows, those of batches, and those of prompts take different kernels.
        let n_tokens = [0, 0, 1, 1, 1, 2, 5, 8, 17, 40, 70, MAX_TOKENS];
        let steps = [(); N_STEPS].map(|()| {
            let mut part = |seq| {
                let n_tokens = n_tokens[random.below(n_tokens.len())];
                Part { seq, n_tokens, slot: (2 * seq + random.below(2)) as u32 }
            };
            let mut parts: Vec<Part> = (0..N_SEQS).map(&mut part).filter(|part| part.n_tokens > 0).collect();
            if parts.is_empty() {
                parts.push(Part { seq: 0, n_tokens: 1, slot: 0 });
            }
            parts
        });
        let n_nodes = 5 + random.below(10);
        Self { steps, nodes: (0..n_nodes).map(|_| Node::random(&mut random)).collect(), seed }
    }

    /// The batch of each step: sequences go on from where the step before left them.
    fn batches(&self) -> Vec<Batch> {
        let mut blocks: Vec<u32> = (0..CACHE.n_blocks as u32).collect();
        Random(self.seed ^ 0xb10c).shuffle(&mut blocks);
        let tables: Vec<&[u32]> = blocks.chunks(CACHE.n_blocks / N_SEQS).collect();
        let (mut starts, mut slots) = ([0; N_SEQS], [None; N_SEQS]);
        let batch = |parts: &Vec<Part>| {
            let mut batch = Batch::default();
            for &Part { seq, n_tokens, slot } in parts {
                let end = starts[seq] + n_tokens;
                let n_blocks = end.div_ceil(CACHE.block_size);
                batch.push(&vec![0; n_tokens], starts[seq], &tables[seq][..n_blocks], 0);
                batch.push_state(slots[seq], &[StateWrite { n_tokens, slot }]);
                (starts[seq], slots[seq]) = (end, Some(slot));
            }
            batch
        };
        self.steps.iter().map(batch).collect()
    }
}

impl Node {
    fn random(random: &mut Random) -> Self {
        let dtypes =
            [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_K, DType::Q6_K, DType::Q4_0];
        let kind = if random.below(3) == 0 { NormKind::Layer } else { NormKind::Rms };
        let activation = [Activation::Silu, Activation::GeluTanh, Activation::GeluErf][random.below(3)];
        let seed = 1 + random.below(3) as u64;
        let x = random.below(N_REGISTERS);
        let other = (x + 1 + random.below(N_REGISTERS - 1)) % N_REGISTERS;
        // The other register of the same length.
        let twin = x ^ 1;
        let (wide, narrow) = [(2, 1), (2, 0), (1, 0)][random.below(3)];
        let (wide, narrow) = (2 * wide + random.below(2), 2 * narrow + random.below(2));
        let beside = (narrow + 1 + random.below(N_REGISTERS - 1)) % N_REGISTERS;
        let inner_dim = HEAD_DIM << random.below(2);
        match random.below(22) {
            0..=3 => {
                let dtype = dtypes[random.below(dtypes.len())];
                Self::Matmul { to: x, from: other, dtype, bias: random.below(2) == 0, seed }
            }
            4 | 5 => Self::Norm { to: x, from: twin, kind, seed },
            6 => Self::NormInPlace { x, kind, seed },
            7 => Self::Add { to: x, from: twin },
            8 => Self::Gated { to: random.below(2), from: 2 + random.below(2), activation },
            9 => Self::Activate { x, activation },
            10 => Self::SigmoidGate { x, gate: twin },
            11 => Self::ScaleColumns { x, seed },
            12 => Self::AddColumns { x, seed },
            13 if random.below(2) == 0 => Self::Softcap { x, cap: 20.0 },
            13 => Self::Scale { x, factor: 0.5 },
            14 | 15 => Self::Moe { to: x, from: twin, dtype: dtypes[random.below(dtypes.len())], seed },
            16 | 17 => {
                let cache = [DType::F32, DType::F16, DType::BF16, DType::Q8_0][random.below(4)];
                let window = [None, Some(20)][random.below(2)];
                let style = [RopeStyle::Half, RopeStyle::Interleaved][random.below(2)];
                Self::Attention { to: narrow, from: wide, cache, window, style }
            }
            18 => Self::Conv { to: narrow, from: wide, kind: ConvKind::Silu, width: 2 + random.below(3) },
            // A row of three parts.
            19 => {
                Self::Conv { to: random.below(2), from: 4 + random.below(2), kind: ConvKind::Gated, width: 3 }
            }
            20 => Self::Delta { to: narrow, from: wide, rates: beside, k_dim: inner_dim },
            _ => Self::Scan { to: narrow, from: wide, dt: beside, state_dim: inner_dim },
        }
    }

    /// The register that it writes, those whose numbers it reads, the largest error of the operation itself, and how much larger it may make
    /// those of what it reads.
    fn effect(self, sums: Sums) -> (usize, Vec<usize>, f64, f64) {
        match self {
            // Numbers that went through gates have outliers, beside which the others are rounded more.
            Self::Matmul { to, from, dtype, .. } => (to, vec![from], 8.0 * tolerance(dtype, sums), 2.0),
            Self::Norm { to, from, .. } => (to, vec![from], ELEMENTWISE, 4.0),
            Self::NormInPlace { x, .. } => (x, vec![x], ELEMENTWISE, 4.0),
            Self::Add { to, from } => (to, vec![to, from], ELEMENTWISE, 2.0),
            Self::Gated { to, from, .. } => (to, vec![from], ELEMENTWISE, 16.0),
            Self::Activate { x, .. } => (x, vec![x], ELEMENTWISE, 8.0),
            Self::SigmoidGate { x, gate } => (x, vec![x, gate], ELEMENTWISE, 16.0),
            Self::ScaleColumns { x, .. } | Self::AddColumns { x, .. } => (x, vec![x], ELEMENTWISE, 2.0),
            Self::Softcap { x, .. } | Self::Scale { x, .. } => (x, vec![x], ELEMENTWISE, 2.0),
            Self::Moe { to, from, dtype, .. } => (to, vec![from], 16.0 * tolerance(dtype, sums), 16.0),
            Self::Attention { to, from, cache, .. } => {
                let line = CACHE_TOLERANCES.iter().find(|t| t.0 == cache).unwrap();
                let own = if matches!(sums, Sums::Exact) { line.1 } else { line.2 };
                (to, vec![from], 8.0 * own, 16.0)
            }
            Self::Conv { to, from, .. } => (to, vec![from], ELEMENTWISE, 8.0),
            // GPUs multiply chunks of tokens in 16 bits.
            Self::Delta { to, from, rates, .. } => {
                (to, vec![from, rates], if matches!(sums, Sums::FastGpu) { 5e-6 } else { 1e-9 }, 16.0)
            }
            Self::Scan { to, from, dt, .. } => (to, vec![from, dt], 1e-9, 16.0),
        }
    }

    /// Heads of attention whose row of queries, keys and values is `from`, and whose output is `to`.
    fn heads(to: usize, from: usize) -> Heads {
        let (n_heads, others) = (length(to) / HEAD_DIM, length(from) - length(to));
        Heads { n_heads, n_kv_heads: others / (2 * HEAD_DIM), head_dim: HEAD_DIM }
    }

    fn delta(to: usize, from: usize, k_dim: usize) -> DeltaShape {
        let n_k_heads = (length(from) - length(to)) / (2 * k_dim);
        let n_v_heads = length(to) / HEAD_DIM;
        DeltaShape { n_k_heads, n_v_heads, k_dim, v_dim: HEAD_DIM, order: HeadOrder::Grouped }
    }

    fn scan(to: usize, from: usize, state_dim: usize) -> SsmShape {
        let n_groups = (length(from) - length(to)) / (2 * state_dim);
        SsmShape { n_heads: length(to) / HEAD_DIM, head_dim: HEAD_DIM, n_groups, state_dim }
    }

    /// The node's weights, and an empty cache or state.
    fn layer<B: Backend>(self, b: &B) -> Layer<B> {
        let (mut matrices, mut kv, mut state) = (Vec::new(), None, None);
        let zeros = |shape: &[usize]| Some(b.zeros(DType::F32, shape).unwrap());
        match self {
            Self::Matmul { to, from, dtype, seed, .. } => {
                matrices.push(b.matrix(vec![part(dtype, 1, length(to), length(from), seed)]).unwrap());
            }
            Self::Moe { to, from, dtype, seed } => {
                let part = |n_out, n_in, seed| part(dtype, N_EXPERTS, n_out, n_in, seed);
                let gate_up = [seed, seed + 10].map(|seed| part(EXPERT_LEN, length(from), seed));
                matrices.push(b.matrix(gate_up.into()).unwrap());
                matrices.push(b.matrix(vec![part(length(to), EXPERT_LEN, seed + 20)]).unwrap());
            }
            Self::Attention { to, from, cache, .. } => {
                let heads = Self::heads(to, from);
                kv = Some(b.kv_layer(cache, CACHE.n_blocks, CACHE.block_size, heads).unwrap());
            }
            Self::Conv { to, width, .. } => state = zeros(&[CACHE.n_slots, width - 1, length(to)]),
            Self::Delta { to, k_dim, .. } => {
                state = zeros(&[CACHE.n_slots, length(to) / HEAD_DIM, k_dim, HEAD_DIM]);
            }
            Self::Scan { to, state_dim, .. } => {
                state = zeros(&[CACHE.n_slots, length(to) / HEAD_DIM, state_dim, HEAD_DIM]);
            }
            _ => {}
        }
        Layer { matrices, kv, state }
    }
}

impl Case for Graph {
    const PATHS: Paths = Paths::Weights;

    fn run<B: Backend>(&self, b: &B) -> Vec<(&'static str, Vec<f32>)> {
        let limits = BatchLimits {
            n_tokens: N_SEQS * MAX_TOKENS,
            n_seqs: N_SEQS,
            n_blocks: CACHE.n_blocks,
            n_logits: 1,
        };
        let mut batch = b.new_batch(limits, CACHE).unwrap();
        let mut layers: Vec<Layer<B>> = self.nodes.iter().map(|node| node.layer(b)).collect();
        let mut random = Random(self.seed ^ 0x5eed);
        let mut out = Vec::new();
        for (host_batch, names) in self.batches().iter().zip(NAMES) {
            b.stage(&mut batch, host_batch).unwrap();
            let registers = self.step(b, &batch, &mut layers, host_batch.tokens.len(), &mut random);
            out.extend(names.into_iter().zip(registers));
        }
        out
    }

    fn tolerance(&self, sums: Sums) -> f64 {
        // Registers begin anew in each step, so that what is carried from the step before has errors as large as this step's.
        let mut errors = [0.0f64; N_REGISTERS];
        for node in &self.nodes {
            let (to, from, own, growth) = node.effect(sums);
            let largest = from.into_iter().map(|r| errors[r]).fold(0.0, f64::max);
            errors[to] = own + growth * largest;
        }
        // More would not tell wrong numbers from rounded ones.
        errors.into_iter().fold(0.0, f64::max).min(0.05)
    }
}

/// Registers of each step.
const NAMES: [[&str; N_REGISTERS]; N_STEPS] = [
    ["a of step 1", "b of step 1", "c of step 1", "d of step 1", "e of step 1", "f of step 1"],
    ["a of step 2", "b of step 2", "c of step 2", "d of step 2", "e of step 2", "f of step 2"],
    ["a of step 3", "b of step 3", "c of step 3", "d of step 3", "e of step 3", "f of step 3"],
];

impl Graph {
    /// What is in the registers after all nodes.
    fn step<B: Backend>(
        &self,
        b: &B,
        batch: &B::Batch,
        layers: &mut [Layer<B>],
        rows: usize,
        random: &mut Random,
    ) -> Vec<Vec<f32>> {
        let mut registers: Vec<Option<Tensor<B>>> = (0..N_REGISTERS)
            .map(|r| Some(rows_of(b, &random.normals(rows * length(r)), length(r))))
            .collect();
        let router = rows_of(b, &random.normals(rows * N_EXPERTS), N_EXPERTS);
        let norm = |kind, register, seed| Norm {
            kind,
            weight: vector(b, &Random(seed).normals(length(register))),
            bias: None,
            eps: 1e-5,
        };
        for (&node, layer) in self.nodes.iter().zip(layers) {
            let (to, ..) = node.effect(Sums::Exact);
            let mut y = registers[to].take().expect("in place");
            let of = |register: usize| registers[register].as_ref().expect("another one");
            let normed = |register: usize| {
                let mut x = poisoned(b, rows, length(register));
                b.norm(&mut x, of(register), &norm(NormKind::Rms, register, 7)).unwrap();
                x
            };
            // Like `A_log` and other vectors of a head each.
            let decays = |n| {
                let decay: Vec<f32> = Random(4).normals(n).iter().map(|x| -x.exp()).collect();
                (vector(b, &decay), vector(b, &Random(5).normals(n)))
            };
            let root = |n: usize| (n as f32).sqrt();
            match node {
                Node::Matmul { from, bias, seed, .. } => {
                    let (n_out, n_in) = (length(to), length(from));
                    let bias = bias.then(|| vector(b, &Random(seed).normals(n_out)));
                    b.matmul(&mut y, of(from), &layer.matrices[0], bias.as_ref()).unwrap();
                    // Back to about unit size.
                    b.scale(&mut y, root(n_in).recip()).unwrap();
                }
                Node::Norm { from, kind, seed, .. } => {
                    b.norm(&mut y, of(from), &norm(kind, to, seed)).unwrap()
                }
                Node::NormInPlace { kind, seed, .. } => {
                    b.norm_in_place(&mut y, &norm(kind, to, seed)).unwrap()
                }
                Node::Add { from, .. } => b.add(&mut y, of(from)).unwrap(),
                Node::Gated { from, activation, .. } => b.gated(&mut y, of(from), activation).unwrap(),
                Node::Activate { activation, .. } => b.activate(&mut y, activation).unwrap(),
                Node::SigmoidGate { gate, .. } => b.sigmoid_gate(&mut y, of(gate)).unwrap(),
                Node::ScaleColumns { seed, .. } => {
                    b.scale_columns(&mut y, &vector(b, &Random(seed).normals(length(to)))).unwrap();
                }
                Node::AddColumns { seed, .. } => {
                    b.add_columns(&mut y, &vector(b, &Random(seed).normals(length(to)))).unwrap();
                }
                Node::Softcap { cap, .. } => b.softcap(&mut y, cap).unwrap(),
                Node::Scale { factor, .. } => b.scale(&mut y, factor).unwrap(),
                Node::Moe { from, .. } => {
                    let params = MoeParams {
                        router: Router::softmax(N_USED_EXPERTS, true),
                        activation: Activation::Silu,
                        gated: true,
                    };
                    let experts = Experts {
                        gate_up: &layer.matrices[0],
                        gate_up_bias: None,
                        down: &layer.matrices[1],
                        down_bias: None,
                        selection_bias: None,
                        output_scale: None,
                        params,
                    };
                    let [n, inner, n_uses] = [length(from), EXPERT_LEN, rows * N_USED_EXPERTS];
                    let mut scratch = MoeScratch {
                        x: poisoned(b, n_uses, n),
                        gate_up: poisoned(b, n_uses, 2 * inner),
                        hidden: poisoned(b, n_uses, inner),
                        y: poisoned(b, n_uses, n),
                    };
                    b.moe(&mut y, of(from), &router, &experts, &mut scratch).unwrap();
                    b.scale(&mut y, (n as f32 * root(inner)).recip()).unwrap();
                }
                Node::Attention { from, window, style, .. } => {
                    let heads = Node::heads(to, from);
                    let frequencies: Vec<f32> =
                        (0..HEAD_DIM / 2).map(|i| 100f32.powf(-2.0 * i as f32 / HEAD_DIM as f32)).collect();
                    let mut angles = poisoned(b, rows, HEAD_DIM);
                    b.rope_angles(&mut angles, &vector(b, &frequencies), batch, 1.0).unwrap();
                    let head_norm = |seed| Norm {
                        weight: vector(b, &Random(seed).normals(HEAD_DIM)),
                        ..norm(NormKind::Rms, 0, seed)
                    };
                    let (q_norm, k_norm) = (head_norm(8), head_norm(9));
                    let prep =
                        QkvPrep { heads, qk_norm: Some((&q_norm, &k_norm)), angles: Some((&angles, style)) };
                    let mut qkv = normed(from);
                    let kv = layer.kv.as_mut().expect("a cache");
                    b.store_kv(&mut qkv, kv, batch, prep).unwrap();
                    let params = AttentionParams {
                        heads,
                        scale: root(HEAD_DIM).recip(),
                        softcap: None,
                        window,
                        causal: true,
                        alibi: false,
                    };
                    b.attention(&mut y, &qkv, kv, batch, &params, None).unwrap();
                }
                Node::Conv { from, kind, width, .. } => {
                    let n = length(to);
                    let weight = b.upload(&[width, n], &Random(3).normals(width * n)).unwrap();
                    let conv = ShortConv { weight: &weight, bias: None, kind };
                    let state = layer.state.as_mut().expect("a state");
                    b.short_conv(&mut y, of(from), conv, state, batch).unwrap();
                }
                Node::Delta { from, rates, k_dim, .. } => {
                    let shape = Node::delta(to, from, k_dim);
                    let (decay, dt_bias) = &decays(shape.n_v_heads);
                    let (qkv, rates) = (&mut normed(from), &mut normed(rates));
                    let input = DeltaInput { qkv, rates, rates_start: 3, decay, dt_bias };
                    let state = layer.state.as_mut().expect("a state");
                    b.delta_rule(&mut y, input, state, batch, &shape).unwrap();
                    b.scale(&mut y, k_dim as f32).unwrap();
                }
                Node::Scan { from, dt, state_dim, .. } => {
                    let shape = Node::scan(to, from, state_dim);
                    let (decay, dt_bias) = &decays(shape.n_heads);
                    let skip = &vector(b, &Random(6).normals(shape.n_heads));
                    let (xbc, dt, dt_limits) = (&normed(from), &normed(dt), DtLimits::NONE);
                    let input = SsmInput { xbc, dt, dt_start: 3, decay, dt_bias, skip, dt_limits };
                    let state = layer.state.as_mut().expect("a state");
                    b.ssm_scan(&mut y, input, state, batch, &shape).unwrap();
                    b.scale(&mut y, root(state_dim).recip()).unwrap();
                }
            }
            registers[to] = Some(y);
        }
        registers.iter_mut().flatten().map(|x| read(b, x)).collect()
    }
}

#[test]
fn random_graphs() {
    let graphs: Vec<Graph> = (0..60).map(Graph::random).collect();
    check_grid(4, &graphs);
}
