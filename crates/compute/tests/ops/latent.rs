//! Latent attention: its way into the cache, products of heads, attention over vectors, and the block made of them.

use super::matrices::part;
use super::*;
use realizar_compute::{
    AttentionParams, AttentionTemperature, BlockInput, BlockOutput, Join, KvLayer, LatentBlock, LatentPrep,
    LatentQueries, LatentRoom, LatentShape, Linear, Norm, NormKind, RopeStyle, Stream,
};

const SMALL: LatentShape = LatentShape { n_heads: 3, kv_rank: 24, nope_dim: 12, rope_dim: 8, v_dim: 10 };
const MEDIUM: LatentShape = LatentShape { n_heads: 6, kv_rank: 64, nope_dim: 32, rope_dim: 32, v_dim: 48 };
/// Of DeepSeek-V2-Lite.
const LITE: LatentShape = LatentShape { n_heads: 16, kv_rank: 512, nope_dim: 128, rope_dim: 64, v_dim: 128 };

/// A chunk of a prefill at an offset, two decodes, a whole prompt, a first token.
const RAGGED: [(usize, usize); 5] = [(21, 19), (70, 1), (0, 37), (15, 1), (0, 1)];

#[derive(Debug, Clone)]
struct Latent {
    shape: LatentShape,
    /// Of the matrices of the block's queries; `None`: there is one.
    q_rank: Option<usize>,
    cache: DType,
    /// Type of the matrices of heads.
    heads: DType,
    block_size: usize,
    style: RopeStyle,
    temperature: Option<AttentionTemperature>,
    /// First position and number of tokens of each sequence.
    parts: Vec<(usize, usize)>,
}

fn case(shape: LatentShape, cache: DType, parts: &[(usize, usize)]) -> Latent {
    Latent {
        shape,
        q_rank: Some(20),
        cache,
        heads: DType::F32,
        block_size: 16,
        style: RopeStyle::Interleaved,
        temperature: None,
        parts: parts.to_vec(),
    }
}

/// Width of the residual.
const HIDDEN: usize = 32;

fn zeros<B: Backend>(b: &B, rows: usize, len: usize) -> Tensor<B> {
    rows_of(b, &vec![0.0; rows * len], len)
}

impl Latent {
    /// Numbers of the tokens at `positions` of sequence `id`, `n` each.
    fn rows(id: usize, positions: std::ops::Range<usize>, n: usize, seed: u64) -> Vec<f32> {
        positions.flat_map(|p| Random(seed << 48 | (id as u64) << 32 | p as u64).normals(n)).collect()
    }

    fn norm<B: Backend>(&self, b: &B) -> Norm<B> {
        let weight = vector(b, &Random(4).normals(self.shape.kv_rank));
        Norm { kind: NormKind::Rms, weight, bias: None, eps: 1e-6 }
    }

    fn angles<B: Backend>(&self, b: &B, batch: &B::Batch, n_tokens: usize) -> Tensor<B> {
        let n = self.shape.rope_dim / 2;
        let f: Vec<f32> = (0..n).map(|i| 100f32.powf(-(i as f32) / n as f32)).collect();
        let mut angles = poisoned(b, n_tokens, 2 * n);
        b.rope_angles(&mut angles, &vector(b, &f), batch, 1.0).unwrap();
        angles
    }

    /// Stores tokens and returns what became of `queries`.
    fn store<B: Backend>(
        &self,
        b: &B,
        kv: &mut KvLayer<B>,
        batch: &B::Batch,
        (q, latent): (&Tensor<B>, &Tensor<B>),
    ) -> Tensor<B> {
        let s = self.shape;
        let angles = self.angles(b, batch, q.rows());
        let mut queries = poisoned(b, q.rows(), s.n_heads * s.key_dim());
        let prep = LatentPrep { shape: s, norm: &self.norm(b), angles: (&angles, self.style) };
        b.store_latent(&mut queries, q, latent, kv, batch, prep).unwrap();
        queries
    }

    fn params(&self) -> AttentionParams {
        let s = self.shape;
        let scale = 1.5 / ((s.nope_dim * s.key_dim()) as f32).sqrt();
        AttentionParams { heads: s.heads(), scale, softcap: None, window: None, causal: true, alibi: false }
    }

    /// The matrices of keys and of values of all heads.
    fn matrices<B: Backend>(&self, b: &B) -> [B::Matrix; 2] {
        let s = self.shape;
        let of = |n_out, n_in, seed| b.matrix(vec![part(self.heads, s.n_heads, n_out, n_in, seed)]).unwrap();
        [of(s.kv_rank, s.nope_dim, 8), of(s.v_dim, s.kv_rank, 9)]
    }

    fn block<B: Backend>(&self, b: &B, kv: &mut KvLayer<B>, batch: &B::Batch) -> Tensor<B> {
        let s = self.shape;
        let n_tokens: usize = self.parts.iter().map(|p| p.1).sum();
        let matrix = |n_out, n_in: usize, seed| {
            // Of outputs as large as inputs.
            let values = Random(seed).normals(n_out * n_in);
            let root = (n_in as f32).sqrt();
            let bytes: Vec<u8> = values.iter().flat_map(|v| (v / root).to_le_bytes()).collect();
            let part = realizar_compute::MatrixPart {
                name: "w".into(),
                dtype: DType::F32,
                n_experts: 1,
                n_out,
                n_in,
                bytes: bytes.into(),
            };
            Linear::bare(b.matrix(vec![part]).unwrap())
        };
        let plain = |n: usize, seed| {
            let weight: Vec<f32> = Random(seed).normals(n).iter().map(|w| 1.0 + 0.25 * w).collect();
            Norm { kind: NormKind::Rms, weight: vector(b, &weight), bias: None, eps: 1e-6 }
        };
        let q_len = s.n_heads * s.q_dim();
        let rank = self.q_rank.unwrap_or(HIDDEN);
        let (down, up) = (matrix(rank, HIDDEN, 21), matrix(q_len, rank, 22));
        let (q_norm, pre_norm, kv_norm) = (plain(rank, 23), plain(HIDDEN, 24), plain(s.kv_rank, 25));
        let (kv_proj, proj) = (matrix(s.key_dim(), HIDDEN, 26), matrix(HIDDEN, s.n_heads * s.v_dim, 27));
        let [k_up, v_up] = self.matrices(b);
        let mut residual = rows_of(b, &Random(28).normals(n_tokens * HIDDEN), HIDDEN);
        let angles = self.angles(b, batch, n_tokens);
        let room = &mut LatentRoom {
            q_low: poisoned(b, n_tokens, rank),
            latent: poisoned(b, n_tokens, s.key_dim()),
            queries: poisoned(b, n_tokens, s.n_heads * s.key_dim()),
            attended: poisoned(b, n_tokens, s.n_heads * s.kv_rank),
        };
        let block = LatentBlock {
            input: BlockInput::Norm(&pre_norm),
            shape: s,
            queries: match self.q_rank {
                Some(_) => LatentQueries::LowRank { down: &down, norm: &q_norm, up: &up },
                None => LatentQueries::Full(&up),
            },
            kv: &kv_proj,
            kv_norm: &kv_norm,
            temperature: self.temperature,
            angles: (&angles, self.style),
            k_up: &k_up,
            v_up: &v_up,
            scale: self.params().scale,
            cache: kv,
            out: BlockOutput {
                sub_norm: None,
                proj: &proj,
                post_norm: None,
                sum_norm: None,
                join: Join::Alone,
            },
            q_rows: &mut poisoned(b, n_tokens, q_len),
            values: &mut poisoned(b, n_tokens, s.n_heads * s.v_dim),
            room,
        };
        let stream = Stream {
            residual: &mut residual,
            normed: &mut poisoned(b, n_tokens, HIDDEN),
            output: &mut poisoned(b, n_tokens, HIDDEN),
            operand: None,
        };
        b.latent_block(stream, batch, block).unwrap();
        b.synchronize().unwrap();
        residual
    }
}

impl Case for Latent {
    const PATHS: Paths = Paths::Weights;

    fn run<B: Backend>(&self, b: &B) -> Vec<(&'static str, Vec<f32>)> {
        let s = self.shape;
        let (q_len, key_dim) = (s.n_heads * s.q_dim(), s.key_dim());
        let sizes: Vec<usize> =
            self.parts.iter().map(|&(start, n)| (start + n).div_ceil(self.block_size)).collect();
        let n_blocks = sizes.iter().sum::<usize>() + 1;
        let mut blocks: Vec<u32> = (0..n_blocks as u32).collect();
        Random(1).shuffle(&mut blocks);
        let mut kv = b.latent_layer(self.cache, n_blocks, self.block_size, &s).unwrap();
        let (mut history, mut batch) = (Batch::default(), Batch::default());
        let (mut past, mut now, mut queries) = (Vec::new(), Vec::new(), Vec::new());
        let mut rest = &blocks[..];
        for (id, (&(start, n), &size)) in self.parts.iter().zip(&sizes).enumerate() {
            let (table, after) = rest.split_at(size);
            rest = after;
            history.push(&vec![0; start], 0, table, 0);
            batch.push(&vec![0; n], start, table, 0);
            past.extend(Self::rows(id, 0..start, key_dim, 2));
            now.extend(Self::rows(id, start..start + n, key_dim, 2));
            queries.extend(Self::rows(id, start..start + n, q_len, 3));
        }
        let n_past = past.len() / key_dim;
        if n_past > 0 {
            let (history, past) = (staged(b, &history), rows_of(b, &past, key_dim));
            self.store(b, &mut kv, &history, (&zeros(b, n_past, q_len), &past));
        }
        let (batch, q) = (staged(b, &batch), rows_of(b, &queries, q_len));
        let mut prepared = self.store(b, &mut kv, &batch, (&q, &rows_of(b, &now, key_dim)));
        let ends = read(b, &mut prepared);
        let [k_up, v_up] = self.matrices(b);
        b.head_matmul(&mut prepared, &q, &k_up).unwrap();
        let queries = read(b, &mut prepared);
        let mut attended = poisoned(b, q.rows(), s.n_heads * s.kv_rank);
        b.attention(&mut attended, &prepared, &kv, &batch, &self.params(), None).unwrap();
        let vectors = read(b, &mut attended);
        let mut values = poisoned(b, q.rows(), s.n_heads * s.v_dim);
        b.head_matmul(&mut values, &attended, &v_up).unwrap();
        let mut block = self.block(b, &mut kv, &batch);
        vec![
            ("ends", ends),
            ("queries", queries),
            ("vectors", vectors),
            ("values", read(b, &mut values)),
            ("block", read(b, &mut block)),
        ]
    }

    fn is_worth(&self, on: Emulated) -> bool {
        // With exact sums a block has a token and 8 heads, whatever else the step has.
        let n_tokens: usize = self.parts.iter().map(|p| p.1).sum();
        on != Emulated::Exact || n_tokens * self.shape.key_dim() <= 8192
    }

    fn tolerance(&self, sums: Sums) -> f64 {
        let line = CACHE_TOLERANCES.iter().find(|t| t.0 == self.cache).unwrap();
        // Queries come from one product and values from another.
        8.0 * tolerance(self.heads, sums) + if matches!(sums, Sums::Exact) { line.1 } else { line.2 }
    }
}

#[test]
fn sizes_and_steps() {
    for shape in [SMALL, MEDIUM, LatentShape { n_heads: 40, ..SMALL }] {
        check(&[case(shape, DType::F32, &RAGGED), case(shape, DType::F32, &[(33, 1), (5, 1)])]);
    }
    check(&[
        Latent { q_rank: None, ..case(SMALL, DType::F32, &RAGGED) },
        Latent { style: RopeStyle::Half, ..case(SMALL, DType::F32, &RAGGED) },
    ]);
    let temperature = Some(AttentionTemperature { beta: 0.5, period: 16 });
    check(&[Latent { temperature, ..case(SMALL, DType::F32, &RAGGED) }]);
    check(&[case(LITE, DType::F16, &[(150, 1), (0, 3)])]);
}

#[test]
fn vectors_by_tensor_cores() {
    let few = LatentShape { n_heads: 5, nope_dim: 16, v_dim: 16, ..LITE };
    for cache in [DType::F16, DType::BF16, DType::Q8_0] {
        check(&[case(few, cache, &[(40, 20), (70, 1), (0, 19)])]);
    }
    // More heads than a tile has rows, and several splits of a sequence.
    check(&[case(LatentShape { n_heads: 71, ..MEDIUM }, DType::F16, &[(30, 3), (0, 1)])]);
    check(&[case(few, DType::F16, &[(400, 2), (200, 1)])]);
}

#[test]
fn types_and_blocks_of_the_cache() {
    for cache in [DType::F32, DType::F16, DType::BF16, DType::Q8_0] {
        for block_size in [1, 8, 16, 40] {
            let shape = LatentShape { kv_rank: 96, ..MEDIUM };
            check(&[Latent { block_size, ..case(shape, cache, &[(21, 7), (70, 1), (0, 3)]) }]);
        }
        // Several splits of one sequence.
        check(&[case(SMALL, cache, &[(1100, 2), (600, 1)])]);
    }
}

#[test]
fn types_of_the_matrices() {
    let shape = LatentShape { n_heads: 2, kv_rank: 256, nope_dim: 256, rope_dim: 8, v_dim: 12 };
    for heads in QUANTS.iter().map(|spec| spec.dtype) {
        for parts in [&[(3, 9), (0, 1)][..], &[(3, 1)]] {
            check(&[Latent { heads, ..case(shape, DType::F32, parts) }]);
        }
    }
}

#[test]
fn a_token_does_not_depend_on_the_others_of_its_batch() {
    for cache in [DType::F32, DType::F16, DType::Q8_0] {
        let whole = case(MEDIUM, cache, &[(21, 19), (70, 1), (0, 37)]);
        // The first sequence has the same number in all of them.
        let alone = case(MEDIUM, cache, &[(21, 19)]);
        for cpu in cpus(Paths::Weights) {
            let [of_whole, of_alone] = [&whole, &alone].map(|case| case.run(cpu));
            for ((name, a), (_, b)) in of_whole.iter().zip(&of_alone) {
                assert_eq!(bits(&a[..b.len()]), bits(b), "{name} of {:?}", cpu.options());
            }
        }
    }
}

/// The first tokens of a step as a step of their own: a prompt's chunks, its tokens one by one, and sequences of a token in any company.
#[test]
fn tokens_on_a_deterministic_gpu_do_not_depend_on_the_step() {
    let few = LatentShape { n_heads: 5, nope_dim: 16, v_dim: 16, ..LITE };
    let ragged = [(400, 12), (21, 5), (300, 1), (0, 9)];
    let alone = [(600, 1), (3, 1), (300, 1), (0, 1)];
    let cases = [
        case(few, DType::F16, &ragged),
        case(few, DType::BF16, &alone),
        Latent { heads: DType::Q8_0, ..case(MEDIUM, DType::Q8_0, &ragged) },
        case(SMALL, DType::F32, &ragged),
    ];
    for case in &cases {
        let want = case.run(&Reference);
        for (path, gpu) in deterministic_gpus() {
            let all = case.run(gpu);
            compare(case, path, &all, &want, case.tolerance(Sums::FastGpu));
            let n_tokens: usize = case.parts.iter().map(|part| part.1).sum();
            for n in [1, 3, 14, n_tokens - 1].into_iter().filter(|&n| n < n_tokens) {
                let mut left = n;
                let parts = case.parts.iter().map_while(|&(start, n_tokens)| {
                    let n_tokens = n_tokens.min(left);
                    left -= n_tokens;
                    (n_tokens > 0).then_some((start, n_tokens))
                });
                let some = Latent { parts: parts.collect(), ..case.clone() }.run(gpu);
                for ((name, all), (_, some)) in all.iter().zip(&some) {
                    assert_eq!(
                        bits(&all[..some.len()]),
                        bits(some),
                        "{name}, {n} tokens of {case:?} on {path}"
                    );
                }
            }
        }
    }
}
