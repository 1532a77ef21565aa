//! Attention and the way into the cache, over ragged batches, block tables in any order, and every type of cache.

use super::matrices::part;
use super::perf::op;
use super::*;
use realizar_compute::{
    AttentionBlock, AttentionParams, AttentionTemperature, BlockInput, BlockOutput, HeadNorms, Heads, Join,
    KvLayer, Linear, MatrixPart, Norm, NormKind, OutputGate, QkvPrep, RopeStyle, Stream,
};
use std::collections::BTreeMap;

/// Tokens of one sequence that a step computes: `n_tokens` from position `start` on. Inputs depend on `id` and position only,
/// so that the same tokens can come in other steps and other company.
#[derive(Debug, Clone, Copy)]
struct Part {
    id: u64,
    start: usize,
    n_tokens: usize,
}

#[derive(Debug, Clone)]
struct Attention {
    heads: Heads,
    block_size: usize,
    cache: DType,
    softcap: Option<f32>,
    window: Option<usize>,
    causal: bool,
    alibi: bool,
    /// Whether heads have sinks.
    sinks: bool,
    /// Elements of a head that turn, and how they pair.
    rope: Option<(usize, RopeStyle)>,
    qk_norm: Option<NormKind>,
    /// Whether the block normalizes all queries together, and all keys.
    full_qk_norm: bool,
    /// Factor that the block has on queries.
    temperature: Option<AttentionTemperature>,
    /// Whether the block normalizes all heads before they turn.
    head_norms: bool,
    /// Whether the block makes queries only, and reads keys and values that are in the cache.
    queries_only: bool,
    /// Whether the block multiplies prepared queries.
    query_factors: bool,
    /// Whether the block has a gate on what was attended.
    gate: bool,
    parts: Vec<Part>,
    /// Seed of the order of blocks.
    order: u64,
    /// Type of the weights of the block's last matmul, and the width of the residual, where not F32 and 64.
    out: Option<(DType, usize)>,
    /// Type of the weights of the block's first matmul.
    qkv_type: DType,
    /// Copy all blocks to others before the step, as a sequence does that shares a prefix.
    copied: bool,
}

/// `parts` as `(start, n_tokens)`.
fn case(n_heads: usize, n_kv_heads: usize, head_dim: usize, parts: &[(usize, usize)]) -> Attention {
    let parts = parts.iter().zip(1..).map(|(&(start, n_tokens), id)| Part { id, start, n_tokens });
    Attention {
        heads: Heads { n_heads, n_kv_heads, head_dim },
        block_size: 16,
        cache: DType::F32,
        softcap: None,
        window: None,
        causal: true,
        alibi: false,
        sinks: false,
        rope: None,
        qk_norm: None,
        full_qk_norm: false,
        temperature: None,
        head_norms: false,
        queries_only: false,
        query_factors: false,
        gate: false,
        parts: parts.collect(),
        order: 1,
        out: None,
        qkv_type: DType::F32,
        copied: false,
    }
}

/// A matrix of integers from -2 to 2, of F32 or F16.
fn small_integers(dtype: DType, n_out: usize, n_in: usize) -> MatrixPart {
    let mut random = Random(4);
    let values = (0..n_out * n_in).map(|_| random.below(5) as f32 - 2.0);
    let bytes: Vec<u8> = match dtype {
        DType::F16 => values.flat_map(|v| half::f16::from_f32(v).to_le_bytes()).collect(),
        _ => values.flat_map(f32::to_le_bytes).collect(),
    };
    MatrixPart { name: "w".into(), dtype, n_experts: 1, n_out, n_in, bytes: bytes.into() }
}

/// A ragged batch: a chunk of a prefill at an offset, two decodes, a whole prompt, a first token.
const RAGGED: [(usize, usize); 5] = [(21, 19), (70, 1), (0, 37), (15, 1), (0, 1)];

/// The same with prompts of more than a hundred tokens.
const LONG: [(usize, usize); 4] = [(90, 75), (70, 1), (0, 130), (0, 3)];

impl Attention {
    fn qkv(&self, part: Part, positions: std::ops::Range<usize>) -> Vec<f32> {
        let n = self.heads.qkv_len();
        positions.flat_map(|p| Random(part.id << 32 | p as u64).normals(n)).collect()
    }

    /// Stores and attends `parts` after their histories. Returns `qkv` as it was rotated, `y`, and what the whole block makes of other
    /// numbers.
    fn step<B: Backend>(&self, b: &B) -> [Vec<f32>; 3] {
        let Self { heads, block_size, .. } = *self;
        let n_qkv = heads.qkv_len();
        let sizes: Vec<usize> =
            self.parts.iter().map(|p| (p.start + p.n_tokens).div_ceil(block_size)).collect();
        let n_used: usize = sizes.iter().sum();
        let n_blocks = 2 * n_used + 1;
        let mut blocks: Vec<u32> = (0..n_blocks as u32).collect();
        Random(self.order).shuffle(&mut blocks);
        let mut kv = b.kv_layer(self.cache, n_blocks, block_size, heads).unwrap();

        // Whatever nobody stores may be anything: no number, or in 8-bit blocks, which have none, an infinite scale.
        let poison = if self.cache == DType::Q8_0 { f32::INFINITY } else { f32::NAN };
        let n_slots = n_blocks * block_size;
        let all: Vec<u32> = (0..n_blocks as u32).collect();
        let mut batch = Batch::default();
        batch.push(&vec![0; n_slots], 0, &all, 0);
        let mut garbage = b.upload(&[n_slots, n_qkv], &vec![poison; n_slots * n_qkv]).unwrap();
        let plain = || QkvPrep { heads, qk_norm: None, angles: None };
        b.store_kv(&mut garbage, &mut kv, &staged(b, &batch), plain()).unwrap();

        let mut tables: Vec<&mut [u32]> = Vec::new();
        let (mut rest, spare) = blocks.split_at_mut(n_used);
        for &n in &sizes {
            let (table, after) = rest.split_at_mut(n);
            tables.push(table);
            rest = after;
        }

        let (mut history, mut batch) = (Batch::default(), Batch::default());
        let (mut past, mut now) = (Vec::new(), Vec::new());
        for (part, table) in self.parts.iter().zip(&tables) {
            history.push(&vec![0; part.start], 0, table, 0);
            past.extend(self.qkv(*part, 0..part.start));
            now.extend(self.qkv(*part, part.start..part.start + part.n_tokens));
        }
        self.store(b, &mut kv, &history, &past);
        let mut spare = spare.iter();
        for (part, table) in self.parts.iter().zip(&mut tables) {
            for block in table.iter_mut().filter(|_| self.copied) {
                let to = spare.next().copied().unwrap();
                let from = *block as usize;
                match to.is_multiple_of(2) {
                    true => b.copy_block(&mut kv, to as usize, from).unwrap(),
                    // By way of the host.
                    false => kv.tensors_mut().for_each(|tensor| {
                        let mut bytes = vec![0; b.row_bytes(tensor)];
                        b.read_row(&mut bytes, tensor, from).unwrap();
                        b.write_row(tensor, to as usize, &bytes).unwrap();
                    }),
                }
                *block = to;
            }
            batch.push(&vec![0; part.n_tokens], part.start, table, 0);
        }
        let (qkv, batch) = self.store(b, &mut kv, &batch, &now);
        let params = AttentionParams {
            heads,
            scale: self.scale(),
            softcap: self.softcap,
            window: self.window,
            causal: self.causal,
            alibi: self.alibi,
        };
        let mut y = poisoned(b, qkv.rows(), heads.n_heads * heads.head_dim);
        let sinks = self.sinks(b);
        op(b, 1, |_| b.attention(&mut y, &qkv, &kv, &batch, &params, sinks.as_ref()));
        let mut qkv = qkv;
        if !self.queries_only {
            // The step's keys and values are lost, and written a second time.
            let mut garbage = rows_of(b, &vec![poison; now.len()], n_qkv);
            b.store_kv(&mut garbage, &mut kv, &batch, plain()).unwrap();
        }
        let mut block = self.block(b, &mut kv, &batch, &params, qkv.rows());
        [read(b, &mut qkv), read(b, &mut y), read(b, &mut block)]
    }

    /// Scores as large as those of keys, and one that outweighs them.
    fn sinks<B: Backend>(&self, b: &B) -> Option<Tensor<B>> {
        let mut scores = Random(3).normals(self.heads.n_heads);
        scores[0] = 9.0;
        self.sinks.then(|| vector(b, &scores))
    }

    /// What the whole block makes of other queries, keys and values.
    fn block<B: Backend>(
        &self,
        b: &B,
        kv: &mut KvLayer<B>,
        batch: &B::Batch,
        params: &AttentionParams,
        n_tokens: usize,
    ) -> Tensor<B> {
        let n_heads = self.heads.n_heads * self.heads.head_dim;
        let made =
            Heads { n_kv_heads: if self.queries_only { 0 } else { self.heads.n_kv_heads }, ..self.heads };
        let n_qkv = made.qkv_len();
        let (dtype, n) = self.out.unwrap_or((DType::F32, 64));
        let qkv = &Linear::bare(b.matrix(vec![small_integers(self.qkv_type, n_qkv, n)]).unwrap());
        let proj = &Linear {
            bias: Some(vector(b, &Random(5).normals(n))),
            ..Linear::bare(b.matrix(vec![part(dtype, 1, n, n_heads, 3)]).unwrap())
        };
        // Multiples of a power of two: sums with small integers are exact in any order, so that nothing tips a rounding in the cache.
        // Queries and keys have elements of size 1/2.
        let unit = 1024.0;
        let values: Vec<f32> =
            Random(9).normals(n_tokens * n).iter().map(|v| (v / 16.0 * unit).round() / unit).collect();
        let mut residual = rows_of(b, &values, n);
        let norm = |n: usize, seed| {
            let weight = vector(b, &Random(seed).normals(n * self.heads.head_dim));
            Norm { kind: NormKind::Rms, weight, bias: None, eps: 1e-6 }
        };
        let gate = self.gate.then(|| Linear::bare(b.matrix(vec![part(dtype, 1, n_heads, n, 14)]).unwrap()));
        let mut gate_rows = poisoned(b, n_tokens, n_heads);
        let sinks = self.sinks(b);
        let (q_norm, k_norm, head_norm) =
            (norm(self.heads.n_heads, 11), norm(self.heads.n_kv_heads, 12), norm(1, 15));
        let factors = vector(b, &Random(13).normals(n_qkv));
        self.with_prep(b, batch, n_tokens, |prep| {
            let prep = QkvPrep { heads: made, ..prep };
            let stream = Stream {
                residual: &mut residual,
                normed: &mut poisoned(b, n_tokens, n),
                output: &mut poisoned(b, n_tokens, n),
                operand: None,
            };
            let block = AttentionBlock {
                input: BlockInput::Residual,
                qkv,
                full_qk_norm: self.full_qk_norm.then_some((&q_norm, &k_norm)),
                head_norms: self.head_norms.then_some(HeadNorms { norm: &head_norm, weights: &factors }),
                temperature: self.temperature,
                prep,
                query_factors: self.query_factors.then_some(&factors),
                params,
                sinks: sinks.as_ref(),
                kv,
                gate: gate.as_ref().map(|proj| OutputGate { proj, rows: &mut gate_rows }),
                out: BlockOutput { sub_norm: None, proj, post_norm: None, sum_norm: None, join: Join::Alone },
                qkv_rows: &mut poisoned(b, n_tokens, n_qkv),
                attended: &mut poisoned(b, n_tokens, n_heads),
            };
            b.attention_block(stream, batch, block).unwrap();
        });
        b.synchronize().unwrap();
        residual
    }

    fn scale(&self) -> f32 {
        1.5 / (self.heads.head_dim as f32).sqrt()
    }

    fn store<B: Backend>(
        &self,
        b: &B,
        kv: &mut KvLayer<B>,
        batch: &Batch,
        values: &[f32],
    ) -> (Tensor<B>, B::Batch) {
        let batch = staged_with_heads(b, batch, self.heads);
        let qkv = self.prepare(b, &batch, values, |qkv, prep| b.store_kv(qkv, kv, &batch, prep).unwrap());
        (qkv, batch)
    }

    /// Does `f` with queries, keys and values of these numbers, and what is to be done with them.
    fn prepare<B: Backend>(
        &self,
        b: &B,
        batch: &B::Batch,
        values: &[f32],
        f: impl FnOnce(&mut Tensor<B>, QkvPrep<'_, B>),
    ) -> Tensor<B> {
        let mut qkv = rows_of(b, values, self.heads.qkv_len());
        self.with_prep(b, batch, qkv.rows(), |prep| f(&mut qkv, prep));
        b.synchronize().unwrap();
        qkv
    }

    /// Does `f` with what is to be done with queries, keys and values.
    fn with_prep<B: Backend>(
        &self,
        b: &B,
        batch: &B::Batch,
        n_tokens: usize,
        f: impl FnOnce(QkvPrep<'_, B>),
    ) {
        let dim = self.heads.head_dim;
        let norm = |seed| {
            self.qk_norm.map(|kind| {
                let bias = (kind == NormKind::Layer).then(|| vector(b, &Random(seed + 10).normals(dim)));
                Norm { kind, weight: vector(b, &Random(seed).normals(dim)), bias, eps: 1e-6 }
            })
        };
        let (q_norm, k_norm) = (norm(1), norm(2));
        let angles = self.rope.map(|(rope_dim, style)| {
            let n = rope_dim / 2;
            let f: Vec<f32> = (0..n).map(|i| 100f32.powf(-(i as f32) / n as f32)).collect();
            let mut angles = poisoned(b, n_tokens, rope_dim);
            b.rope_angles(&mut angles, &vector(b, &f), batch, 1.0).unwrap();
            (angles, style)
        });
        f(QkvPrep {
            heads: self.heads,
            qk_norm: q_norm.as_ref().zip(k_norm.as_ref()),
            angles: angles.as_ref().map(|(angles, style)| (angles, *style)),
        });
    }

    /// The result of every token by sequence and position.
    fn by_position<B: Backend>(&self, b: &B) -> BTreeMap<(u64, usize), Vec<u32>> {
        let [_, y, _] = self.step(b);
        let tokens = self.parts.iter().flat_map(|p| (p.start..p.start + p.n_tokens).map(|pos| (p.id, pos)));
        let row = self.heads.n_heads * self.heads.head_dim;
        tokens.zip(y.chunks_exact(row).map(bits)).collect()
    }
}

impl Case for Attention {
    const PATHS: Paths = Paths::Precision;

    fn run<B: Backend>(&self, b: &B) -> Vec<(&'static str, Vec<f32>)> {
        let [qkv, y, block] = self.step(b);
        vec![("qkv", qkv), ("y", y), ("block", block)]
    }

    fn tolerance(&self, sums: Sums) -> f64 {
        let line = CACHE_TOLERANCES.iter().find(|t| t.0 == self.cache).unwrap();
        let of_weights = self.out.map_or(0.0, |(dtype, _)| tolerance(dtype, sums));
        of_weights + if matches!(sums, Sums::Exact) { line.1 } else { line.2 }
    }

    fn is_worth(&self, on: Emulated) -> bool {
        let n_tokens: usize = self.parts.iter().map(|p| p.n_tokens).sum();
        let is_deep = self.parts.iter().any(|p| p.start > 300);
        match on {
            Emulated::Portable => true,
            // A block has a token and 8 heads, whatever else the step has, and goes through all keys alike.
            Emulated::Exact => n_tokens <= 100 && !is_deep && self.heads.n_heads <= 16,
            // What its tensor cores cannot read takes the kernels of all GPUs there, too.
            Emulated::Hopper => {
                let dim = self.heads.head_dim;
                let is_portable = self.cache == DType::F32 || self.alibi || !dim.is_multiple_of(8);
                !is_portable || self.out.is_some() || self.qkv_type != DType::F32
            }
        }
    }
}

#[test]
fn head_sizes_and_groups() {
    let mut grid = Vec::new();
    for head_dim in [8, 20, 64, 80, 128, 256, 512] {
        for (n_heads, n_kv_heads) in [(2, 2), (3, 1), (8, 2), (8, 1)] {
            grid.push(case(n_heads, n_kv_heads, head_dim, &RAGGED));
        }
    }
    check_grid(4, &grid);
    // Caches that tensor cores read, with sequences of several tiles.
    let mut grid = Vec::new();
    for (cache, head_dim) in [
        (DType::F16, 40),
        (DType::F16, 128),
        (DType::BF16, 64),
        (DType::BF16, 80),
        (DType::Q8_0, 64),
        (DType::Q8_0, 96),
        (DType::Q8_0, 128),
        (DType::F16, 256),
        (DType::BF16, 192),
        (DType::Q8_0, 256),
    ] {
        for (n_heads, n_kv_heads) in [(2, 2), (3, 1), (8, 2)] {
            grid.push(Attention { cache, ..case(n_heads, n_kv_heads, head_dim, &LONG) });
        }
        check(&[Attention { cache, ..case(71, 1, head_dim, &[(3, 7), (0, 1)]) }]);
    }
    check_grid(3, &grid);
    // More query heads per key head than a tile has rows.
    check(&[case(40, 1, 20, &RAGGED), case(80, 2, 64, &RAGGED), case(71, 1, 8, &[(0, 5), (40, 1)])]);
}

#[test]
fn heads_wider_than_256() {
    let mut grid = Vec::new();
    for cache in [DType::F16, DType::BF16, DType::Q8_0] {
        for (n_heads, n_kv_heads, head_dim) in [(8, 1, 512), (6, 2, 512), (3, 1, 320)] {
            let [long, ragged] = [&LONG[..], &RAGGED].map(|parts| case(n_heads, n_kv_heads, head_dim, parts));
            let (window, softcap) = (Some(30), Some(5.0));
            grid.push(Attention { cache, sinks: true, window, softcap, ..long.clone() });
            grid.push(Attention { cache, ..long });
            grid.push(Attention { cache, sinks: true, window: Some(20), ..ragged });
        }
    }
    check_grid(3, &grid);
    let half =
        |n_heads, parts: &[(usize, usize)]| Attention { cache: DType::F16, ..case(n_heads, 1, 512, parts) };
    // More query heads per key head than a tile has rows.
    check(&[half(71, &[(3, 7), (0, 1)])]);
    // Several splits of one sequence, the first of which some tokens do not see.
    for parts in [[(500, 2), (300, 1)], [(500, 1), (300, 1)]] {
        check(&[Attention { sinks: true, ..half(2, &parts) }]);
        check(&[Attention { window: Some(90), ..half(2, &parts) }]);
    }
    check(&[Attention { causal: false, ..half(2, &[(20, 75)]) }]);
}

/// Steps of a token for each sequence, of which one has far more positions than all others, or each has another number.
#[test]
fn tokens_of_long_and_short_sequences() {
    let one_long = [(40, 1), (0, 1), (1370, 1), (15, 1), (16, 1), (260, 1)];
    let all_lengths: Vec<(usize, usize)> = (0..19).map(|i| (i * i * 3, 1)).collect();
    let mut grid = Vec::new();
    for (cache, head_dim) in [(DType::F16, 128), (DType::BF16, 64), (DType::Q8_0, 128), (DType::Q8_0, 32)] {
        for (parts, n_heads) in [(&one_long[..], 12), (&all_lengths, 8)] {
            let plain = Attention { cache, ..case(n_heads, 1, head_dim, parts) };
            grid.push(Attention { sinks: true, softcap: Some(5.0), block_size: 32, ..plain.clone() });
            // Windows that begin in the midst of a tile.
            grid.push(Attention { window: Some(301), ..plain.clone() });
            // The next product reads tiles.
            let out = (n_heads * head_dim).is_multiple_of(256).then_some((DType::Q4_K, 256));
            grid.push(Attention { out, ..plain });
        }
    }
    check_grid(4, &grid);
    // Blocks smaller than a tile.
    check_on_gpus(&[Attention { cache: DType::Q8_0, block_size: 8, ..case(2, 1, 64, &one_long[3..]) }]);
}

/// Where nothing is done to keys and values, a product of many rows writes them to a cache of 16 bits.
#[test]
fn keys_and_values_from_the_product() {
    const MANY: [(usize, usize); 3] = [(0, 150), (33, 27), (0, 100)];
    let of = |cache, head_dim, block_size, causal| {
        let (out, qkv_type) = (Some((DType::F16, 128)), DType::F16);
        Attention { cache, block_size, causal, out, qkv_type, ..case(4, 2, head_dim, &MANY) }
    };
    check(&[of(DType::F16, 64, 16, false), of(DType::F16, 40, 40, true), of(DType::BF16, 128, 32, false)]);
    check(&[of(DType::Q8_0, 64, 16, false), of(DType::F32, 64, 16, false)]);
    // Heads that turn are stored after that.
    check(&[Attention { rope: Some((64, RopeStyle::Half)), ..of(DType::F16, 64, 16, false) }]);
}

#[test]
fn types_and_blocks_of_the_cache() {
    let mut grid = Vec::new();
    for cache in [DType::F32, DType::F16, DType::BF16, DType::Q8_0] {
        for block_size in [1, 8, 16, 32, 40] {
            for head_dim in [32, 64, 96] {
                grid.push(Attention { cache, block_size, ..case(4, 2, head_dim, &RAGGED) });
            }
        }
        if cache != DType::Q8_0 {
            check(&[Attention { cache, ..case(3, 1, 20, &RAGGED) }]);
        }
    }
    check_grid(3, &grid);
}

#[test]
fn sinks() {
    let mut grid = Vec::new();
    for cache in [DType::F32, DType::F16, DType::Q8_0] {
        for window in [None, Some(1), Some(20)] {
            for softcap in [None, Some(5.0)] {
                grid.push(Attention { sinks: true, cache, window, softcap, ..case(4, 2, 64, &RAGGED) });
            }
        }
        // Several splits of one sequence.
        for parts in [[(1100, 2), (600, 1)], [(1100, 1), (600, 1)]] {
            check(&[Attention { sinks: true, cache, ..case(8, 1, 32, &parts) }]);
        }
    }
    check_grid(2, &grid);
    let mut grid = Vec::new();
    for (cache, head_dim) in
        [(DType::F16, 64), (DType::BF16, 128), (DType::Q8_0, 96), (DType::F16, 256), (DType::Q8_0, 160)]
    {
        for (window, softcap) in [(70, None), (30, Some(5.0))] {
            let window = Some(window);
            grid.push(Attention { sinks: true, cache, window, softcap, ..case(6, 2, head_dim, &LONG) });
        }
    }
    check_grid(2, &grid);
}

#[test]
fn windows_and_caps() {
    let (mut short, mut long) = (Vec::new(), Vec::new());
    for window in [None, Some(1), Some(5), Some(16), Some(30), Some(64), Some(1000)] {
        for softcap in [None, Some(0.7), Some(50.0)] {
            for block_size in [16, 32] {
                let of =
                    |cache, parts| Attention { window, softcap, cache, block_size, ..case(4, 1, 64, parts) };
                short.push(of(DType::F32, &RAGGED));
                long.push(of(DType::F16, &LONG));
            }
        }
    }
    check_grid(2, &short);
    check_grid(6, &long);
}

#[test]
fn scores_that_fall_with_distance() {
    // Few tokens: on GPUs only the portable kernel takes them.
    let (alibi, parts) = (true, [(9, 7), (70, 1), (0, 5)]);
    for (cache, n_heads) in
        [(DType::F32, 4), (DType::F32, 3), (DType::BF16, 12), (DType::F16, 6), (DType::Q8_0, 2)]
    {
        for (causal, softcap) in [(false, None), (true, None), (false, Some(5.0))] {
            check(&[Attention { alibi, causal, softcap, cache, ..case(n_heads, 1, 32, &parts) }]);
        }
    }
    // A head of keys for each of queries, and several splits of a sequence.
    check(&[
        Attention { alibi, causal: false, ..case(3, 3, 20, &parts) },
        Attention { alibi, causal: false, ..case(1, 1, 32, &[(500, 4)]) },
    ]);
}

#[test]
fn slopes_are_those_of_alibi() {
    let slopes = |n_heads: usize| -> Vec<f32> {
        let params = AttentionParams {
            heads: Heads { n_heads, n_kv_heads: 1, head_dim: 1 },
            scale: 1.0,
            softcap: None,
            window: None,
            causal: false,
            alibi: true,
        };
        (0..n_heads).map(|head| params.slope(head)).collect()
    };
    assert_eq!(slopes(1), [1.0 / 256.0]);
    assert_eq!(slopes(4), [0.25, 0.0625, 0.015_625, 0.003_906_25]);
    // What `get_alibi_slope` of the reference implementation gives.
    let root = 0.5f32.sqrt();
    assert_eq!(slopes(12)[..2], [0.5, 0.25]);
    assert_eq!(slopes(12)[7], 1.0 / 256.0);
    for (slope, want) in slopes(12)[8..].iter().zip([root, root / 2.0, root / 4.0, root / 8.0]) {
        assert!((slope - want).abs() < 1e-7, "{slope} is not {want}");
    }
}

#[test]
fn in_both_directions() {
    let causal = false;
    for (cache, head_dim) in
        [(DType::F32, 20), (DType::F32, 64), (DType::BF16, 64), (DType::F16, 128), (DType::Q8_0, 96)]
    {
        for window in [None, Some(1), Some(33)] {
            check(&[
                Attention { causal, window, cache, ..case(4, 2, head_dim, &RAGGED) },
                // Whole sequences, and no more than two tokens in each.
                Attention { causal, window, cache, ..case(2, 2, head_dim, &[(0, 1), (0, 64), (0, 90)]) },
                Attention { causal, window, cache, ..case(2, 1, head_dim, &[(0, 2), (0, 1)]) },
            ]);
        }
    }
    // Several splits of a sequence.
    check(&[Attention { causal, cache: DType::BF16, ..case(1, 1, 32, &[(500, 80)]) }]);
}

#[test]
fn rotations_and_norms() {
    let mut grid = Vec::new();
    for style in [RopeStyle::Interleaved, RopeStyle::Half] {
        for (head_dim, rope_dim) in
            [(64, 64), (128, 128), (128, 64), (80, 32), (20, 20), (20, 2), (8, 6), (256, 64), (512, 512)]
        {
            for qk_norm in [None, Some(NormKind::Rms), Some(NormKind::Layer)] {
                for cache in [DType::F32, DType::F16] {
                    let rope = Some((rope_dim, style));
                    grid.push(Attention { rope, qk_norm, cache, ..case(6, 2, head_dim, &RAGGED) });
                }
            }
        }
    }
    check_grid(6, &grid);
    check(&[Attention { qk_norm: Some(NormKind::Rms), ..case(4, 2, 64, &RAGGED) }]);
    for (n_heads, head_dim) in [(4, 8), (6, 64)] {
        let rope = Some((head_dim, RopeStyle::Half));
        check(&[Attention { full_qk_norm: true, rope, ..case(n_heads, 2, head_dim, &RAGGED) }]);
        let temperature = Some(AttentionTemperature { beta: 0.5, period: 16 });
        check(&[Attention { temperature, rope, ..case(n_heads, 2, head_dim, &RAGGED) }]);
        let qk_norm = Some(NormKind::Rms);
        check(&[Attention { query_factors: true, qk_norm, rope, ..case(n_heads, 2, head_dim, &RAGGED) }]);
    }
}

#[test]
fn norms_of_all_heads_and_queries_alone() {
    let alone = [(70, 1), (3, 1), (300, 1)];
    for (head_dim, cache) in [(20, DType::F32), (64, DType::F16), (256, DType::BF16), (512, DType::F16)] {
        let rope = Some((head_dim, RopeStyle::Half));
        let window = (head_dim < 512).then_some(24);
        for parts in [&RAGGED[..], &alone] {
            let case = Attention { rope, cache, window, ..case(6, 2, head_dim, parts) };
            check(&[Attention { queries_only: true, ..case.clone() }]);
            // What a norm gives is not exact, and would tip roundings in a smaller cache.
            let case = Attention { head_norms: true, cache: DType::F32, ..case };
            check(&[Attention { queries_only: true, ..case.clone() }, case]);
        }
    }
}

#[test]
fn gates_on_the_output() {
    let alone = [(70, 1), (3, 1), (300, 1)];
    for (cache, dtype) in [(DType::F32, DType::F32), (DType::F16, DType::Q4_K), (DType::Q8_0, DType::BF16)] {
        for parts in [&RAGGED[..], &LONG, &alone] {
            let (out, qk_norm) = (Some((dtype, 256)), Some(NormKind::Rms));
            let rope = Some((32, RopeStyle::Half));
            check(&[Attention { gate: true, cache, out, qk_norm, rope, ..case(4, 2, 64, parts) }]);
        }
    }
    check(&[Attention { gate: true, query_factors: true, sinks: true, ..case(4, 2, 64, &RAGGED) }]);
}

#[test]
fn attention_with_the_product_after_it() {
    let many = [(90, 75), (70, 1), (0, 230), (0, 3)];
    let alone = (0..70).map(|i| (i * 7 % 50, 1)).collect::<Vec<_>>();
    for (dtype, n_heads, head_dim, parts) in [
        (DType::Q4_K, 4, 64, &RAGGED[..]),
        (DType::Q4_K, 4, 64, &many),
        (DType::Q8_0, 6, 128, &many),
        (DType::BF16, 6, 128, &many),
        (DType::BF16, 4, 80, &many),
        (DType::F16, 4, 64, &many),
        (DType::F32, 4, 64, &many),
        (DType::Q4_K, 8, 64, &alone),
        (DType::BF16, 8, 64, &alone),
    ] {
        let (cache, rope) = (DType::F16, Some((head_dim, RopeStyle::Interleaved)));
        let qk_norm = (head_dim == 128).then_some(NormKind::Rms);
        let out = Some((dtype, 150));
        check(&[Attention { cache, rope, qk_norm, out, ..case(n_heads, 2, head_dim, parts) }]);
    }
}

#[test]
fn copied_blocks() {
    for cache in [DType::F32, DType::F16, DType::BF16, DType::Q8_0] {
        check(&[Attention { cache, copied: true, ..case(4, 2, 64, &RAGGED) }]);
    }
}

#[test]
fn long_sequences() {
    // Long enough that a backend may share one sequence among several threads.
    for (cache, window) in
        [(DType::F32, None), (DType::F16, None), (DType::F16, Some(1500)), (DType::Q8_0, None)]
    {
        check(&[
            Attention { cache, window, ..case(4, 1, 64, &[(3000, 1)]) },
            Attention { cache, window, ..case(2, 2, 32, &[(2000, 1), (1023, 2), (4000, 40), (0, 3)]) },
        ]);
    }
}

#[test]
fn one_token_of_a_large_model() {
    // Blocks of the GPU's attention that have no keys run too.
    for (n_heads, n_kv_heads, head_dim) in [(36, 4, 64), (20, 4, 128), (9, 3, 256)] {
        for past in [0, 40, 700] {
            let (cache, rope) = (DType::F16, Some((head_dim, RopeStyle::Half)));
            check(&[Attention { cache, rope, ..case(n_heads, n_kv_heads, head_dim, &[(past, 1)]) }]);
        }
    }
}

#[test]
fn sequences_of_one_token_each() {
    let tokens = |positions: &[usize]| positions.iter().map(|&p| (p, 1)).collect::<Vec<_>>();
    let mut grid = Vec::new();
    for (cache, block_size) in [(DType::F32, 16), (DType::F16, 32), (DType::BF16, 1), (DType::Q8_0, 40)] {
        for (n_heads, n_kv_heads, head_dim) in [(2, 2, 64), (4, 1, 128), (7, 1, 32), (16, 2, 96), (3, 3, 256)]
        {
            let positions = tokens(&[0, 1, 40, 127, 128, 300]);
            check(&[Attention { cache, block_size, ..case(n_heads, n_kv_heads, head_dim, &positions) }]);
        }
        let long = Attention { cache, block_size, ..case(8, 2, 64, &tokens(&[3000, 5])) };
        grid.extend([
            Attention { window: Some(700), ..long.clone() },
            Attention { softcap: Some(5.0), rope: Some((64, RopeStyle::Half)), ..long.clone() },
            Attention { qk_norm: Some(NormKind::Rms), rope: Some((32, RopeStyle::Interleaved)), ..long },
        ]);
    }
    check_grid(3, &grid);
}

#[test]
fn large_scores_do_not_overflow() {
    fn run<B: Backend>(b: &B) {
        let heads = Heads { n_heads: 2, n_kv_heads: 1, head_dim: 16 };
        let mut kv = b.kv_layer(DType::F32, 4, 16, heads).unwrap();
        let mut batch = Batch::default();
        batch.push(&[0; 40], 0, &[2, 0, 1], 0);
        let batch = staged(b, &batch);
        // Scores grow with the position up to ten thousands, so each token sees its own value only.
        let row = |p: usize| {
            let fill = |x: f32| std::iter::repeat_n(x, 16);
            let q = fill(30.0).chain(fill(-0.0));
            q.chain(fill(p as f32 * 2.0)).chain(fill(p as f32)).collect::<Vec<_>>()
        };
        let mut qkv = rows_of(b, &(0..40).flat_map(row).collect::<Vec<_>>(), heads.qkv_len());
        b.store_kv(&mut qkv, &mut kv, &batch, QkvPrep { heads, qk_norm: None, angles: None }).unwrap();
        let mut y = poisoned(b, 40, 32);
        let params =
            AttentionParams { heads, scale: 1.0, softcap: None, window: None, causal: true, alibi: false };
        b.attention(&mut y, &qkv, &kv, &batch, &params, None).unwrap();
        for (p, y) in read(b, &mut y).chunks_exact(32).enumerate() {
            assert!(y[..16].iter().all(|&y| (y - p as f32).abs() < 1e-4), "position {p}: {y:?}");
            // The other head's scores are all 0, so it takes the mean.
            assert!(y[16..].iter().all(|&y| (y - p as f32 / 2.0).abs() < 1e-4), "position {p}: {y:?}");
        }
    }
    run(&Reference);
    cpus(Paths::Instructions).for_each(run);
}

#[test]
fn a_cache_of_a_type_that_cannot_be_written_is_refused() {
    fn run<B: Backend>(b: &B) {
        let heads = Heads { n_heads: 1, n_kv_heads: 1, head_dim: 256 };
        let mut kv = b.kv_layer(DType::NVFP4, 1, 16, heads).unwrap();
        let mut batch = Batch::default();
        batch.push(&[0], 0, &[0], 0);
        let mut qkv = rows_of(b, &[0.0; 768], 768);
        let prep = QkvPrep { heads, qk_norm: None, angles: None };
        let error = b.store_kv(&mut qkv, &mut kv, &staged(b, &batch), prep).unwrap_err();
        assert!(error.to_string().ends_with("cannot run store_kv on NVFP4"), "{error}");
    }
    run(&Reference);
    cpus(Paths::Instructions).for_each(run);
}

#[test]
fn a_token_does_not_depend_on_the_batch_the_chunks_or_the_threads() {
    let base = case(4, 2, 64, &[(21, 19), (70, 1), (0, 37), (0, 1)]);
    let long = case(4, 1, 64, &[(0, 70), (1000, 30), (2100, 4), (1500, 1)]);
    let cases = [
        base.clone(),
        Attention { cache: DType::F16, window: Some(20), ..base.clone() },
        Attention { cache: DType::F16, softcap: Some(5.0), block_size: 32, ..base.clone() },
        Attention { cache: DType::Q8_0, ..base.clone() },
        Attention { cache: DType::BF16, ..case(71, 1, 20, &[(21, 19), (70, 1)]) },
        Attention { cache: DType::F16, ..long.clone() },
        Attention { cache: DType::F16, window: Some(700), ..long.clone() },
        Attention { cache: DType::F16, ..case(8, 1, 128, &[(0, 40), (300, 9)]) },
        Attention { cache: DType::F16, sinks: true, window: Some(700), ..long.clone() },
    ];
    for cpu in cpus(Paths::Precision) {
        let other_threads = [1, 2, 5].map(|n_threads| Cpu::new(CpuOptions { n_threads, ..cpu.options() }));
        for case in &cases {
            let together = case.by_position(cpu);
            let same = |what: &str, found: BTreeMap<(u64, usize), Vec<u32>>| {
                for (token, bits) in found {
                    assert_eq!(together[&token], bits, "{token:?} {what}: {case:?} on {:?}", cpu.options());
                }
            };
            let with = |parts: Vec<Part>, order| Attention { parts, order, ..case.clone() };
            for other in &other_threads {
                same("with other threads", case.by_position(other));
            }
            for &part in &case.parts {
                same("alone", with(vec![part], 9).by_position(cpu));
                let Part { id, start, n_tokens } = part;
                let end = start + n_tokens;
                for n in [1, 7] {
                    for start in (start..end).step_by(n).take(5) {
                        let chunk = Part { id, start, n_tokens: n.min(end - start) };
                        same("in chunks", with(vec![chunk], 5).by_position(cpu));
                    }
                }
            }
        }
    }
}

/// The first tokens of a step as a step of their own: a prompt's chunks, its tokens one by one, and sequences of a token in any company.
#[test]
fn blocks_on_a_deterministic_gpu_do_not_depend_on_the_step() {
    let of = |cache, parts: &[(usize, usize)]| Attention {
        cache,
        rope: Some((64, RopeStyle::Half)),
        qk_norm: Some(NormKind::Rms),
        out: Some((DType::Q4_K, 256)),
        ..case(8, 2, 64, parts)
    };
    let long = [(700, 12), (21, 5), (300, 1), (0, 9)];
    let alone = [(900, 1), (3, 1), (300, 1), (0, 1), (70, 1)];
    let three = [(700, 1), (900, 1), (300, 1)];
    let cases = [
        of(DType::F16, &long),
        // On a GPU of four multiprocessors three blocks have splits, and one is there to even them out. Did it take any, the next case would find
        // their counts.
        Attention { heads: Heads { n_heads: 4, n_kv_heads: 1, head_dim: 64 }, ..of(DType::F16, &three) },
        of(DType::F16, &alone),
        Attention { window: Some(300), sinks: true, ..of(DType::BF16, &long) },
        of(DType::Q8_0, &long),
        Attention { alibi: true, rope: None, ..of(DType::F16, &long) },
        of(DType::F32, &long),
    ];
    for case in &cases {
        let want = case.step(&Reference)[2].clone();
        for (path, gpu) in deterministic_gpus() {
            let all = case.step(gpu)[2].clone();
            compare(
                case,
                path,
                &[("block", all.clone())],
                &[("block", want.clone())],
                case.tolerance(Sums::FastGpu),
            );
            let n_tokens: usize = case.parts.iter().map(|p| p.n_tokens).sum();
            for n in [1, 2, 3, 12, 14, n_tokens - 1].into_iter().filter(|&n| n < n_tokens) {
                let mut left = n;
                let parts = case.parts.iter().map_while(|&part| {
                    let n_tokens = part.n_tokens.min(left);
                    left -= n_tokens;
                    (n_tokens > 0).then_some(Part { n_tokens, ..part })
                });
                let some = Attention { parts: parts.collect(), ..case.clone() }.step(gpu)[2].clone();
                assert_eq!(bits(&all[..some.len()]), bits(&some), "{n} tokens of {case:?} on {path}");
            }
        }
    }
}

/// Times, for the benchmark.
#[allow(dead_code, reason = "tests do not measure")]
pub(super) mod times {
    use super::super::perf::{On, Work, table};
    use super::*;

    /// 32 heads of 128 over 8, as in Llama-3.1-8B, and 16 of 256 over 8, as in Gemma-2-9B.
    pub(in super::super) fn attention(on: On) {
        let cases = {
            let steps = [
                ("4,096th token", vec![(4095, 1)]),
                ("8 of the 1,024th", vec![(1023, 1); 8]),
                ("prompt of 2,048", vec![(0, 2048)]),
            ];
            let case = |(name, parts): &(&str, Vec<(usize, usize)>),
                        (n_heads, n_kv_heads, dim): (usize, usize, usize),
                        cache: DType| {
                let seen: usize = parts.iter().map(|&(start, n)| n * start + n * (n + 1) / 2).sum();
                let stored: usize = parts.iter().map(|&(start, n)| start + n).sum();
                let work = Work {
                    bytes: cache.bytes_for(2 * stored * n_kv_heads * dim).unwrap() as f64,
                    operations: 4.0 * (seen * n_heads * dim) as f64,
                };
                let case = Attention { cache, ..case(n_heads, n_kv_heads, dim, parts) };
                (format!("{name}, {n_heads} heads of {dim}, {cache}"), cache, case, work)
            };
            let mut cases = Vec::new();
            for step in &steps {
                for heads in [(32, 8, 128), (16, 8, 256)] {
                    cases.extend([DType::F16, DType::Q8_0].map(|cache| case(step, heads, cache)));
                }
            }
            cases
        };
        table(on, "Attention", cases);
    }
}
