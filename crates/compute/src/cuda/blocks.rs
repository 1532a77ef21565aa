//! The blocks of a layer on the GPU: norms, sums and gates are part of the matmuls where their kernels have them.

use super::attention::{self, Step};
use super::batch::StagedBatch;
use super::common::{Input, KvSlots, Output, TileLayout, Tiles};
use super::driver::{Cuda, Mode};
use super::experts;
use super::matmul::{self, Epilogue, EpilogueKind, Matmul, Matrix};
use super::norm;
use super::recurrent::{self, NormAndGate};
use crate::blocks::{self, Blocks};
use crate::{
    Activation, AttentionBlock, BlockInput, BlockOutput, Collectives, DeltaInput, DeltaPart, EmbedBlock,
    FfnBlock, FfnUp, GatedNorm, HeadBlock, HeadNorms, Join, Linear, MoeBlock, Norm, Ops, OutputGate, Profile,
    Recurrence, RecurrentBlock, Result, SharedExpert, ShortConv, StateLayer, Stream, Tensor,
};

impl Blocks for Cuda {
    fn read_operand(&self, residual: &mut Tensor<Self>, operand: Tiles) -> Result<()> {
        norm::read_tiles(self, residual, operand)
    }

    fn embed_block(
        &self,
        residual: &mut Tensor<Self>,
        batch: &StagedBatch,
        block: EmbedBlock<'_, Self>,
    ) -> Result<()> {
        let EmbedBlock { positions, token_types, norm } = block;
        match norm {
            Some(norm) if self.mode == Mode::Fast && norm::is_held(residual.row_len()) => self
                .timed("embed", || norm::norm_embedded(self, residual, batch, positions, token_types, norm)),
            _ => blocks::embed(self, residual, batch, block),
        }
    }

    fn attention_block(
        &self,
        mut stream: Stream<'_, Self>,
        batch: &StagedBatch,
        block: AttentionBlock<'_, Self>,
    ) -> Result<Option<Tiles>> {
        // Kernels that attend prepare queries on their way, and do not multiply them after that.
        if block.query_factors.is_some() {
            return blocks::attention(self, stream, batch, block).map(|()| None);
        }
        let AttentionBlock {
            input,
            qkv,
            full_qk_norm,
            head_norms,
            temperature,
            prep,
            query_factors: _,
            params,
            sinks,
            kv,
            gate,
            out,
            qkv_rows,
            attended,
        } = block;
        let is_plain = full_qk_norm.is_none() && head_norms.is_none() && temperature.is_none();
        let slots = if is_plain { attention::slots(self, qkv_rows, kv, batch, &prep, params) } else { None };
        let stored = self.timed("qkv_proj", || match slots {
            Some(slots) if project_to_cache(self, qkv, qkv_rows, slots, input, &mut stream)? => Ok(true),
            _ => project(self, qkv, qkv_rows, input, &mut stream).map(|()| false),
        })?;
        blocks::norm_queries_and_keys(self, qkv_rows, full_qk_norm)?;
        norm_heads(self, qkv_rows, head_norms)?;
        blocks::scale_queries(self, qkv_rows, batch, &prep, temperature)?;
        // A gate multiplies floats.
        let tiles = if gate.is_some() { None } else { tiles_for(self, &out, attended) };
        let step = Step { kv, batch, prep, params, sinks };
        let is_tiles = attention::attend(self, attended, tiles, qkv_rows, step, stored)?;
        if let Some(OutputGate { proj, rows }) = gate {
            self.timed("output_gate", || {
                project(self, proj, rows, input, &mut stream)?;
                self.sigmoid_gate(attended, rows)
            })?;
        }
        add_output(self, "o_proj", attended, tiles.filter(|_| is_tiles), stream, out)
    }

    fn recurrent_block(
        &self,
        mut stream: Stream<'_, Self>,
        batch: &StagedBatch,
        block: RecurrentBlock<'_, Self>,
    ) -> Result<()> {
        let RecurrentBlock { input, in_proj, conv, recurrence, state, out, rows, mixed } = block;
        self.timed("in_proj", || project(self, in_proj, rows, input, &mut stream))?;
        match recurrence {
            Recurrence::None => {
                self.timed("short_conv", || self.short_conv(mixed, rows, conv, &mut state.conv, batch))?
            }
            Recurrence::Delta(part) => delta_part(self, mixed, rows, conv, state, batch, part)?,
            Recurrence::Ssm(part) => blocks::ssm(self, mixed, rows, conv, state, batch, part)?,
        }
        add_output(self, "out_proj", mixed, None, stream, out).map(|_| ())
    }

    fn feed_forward(&self, mut stream: Stream<'_, Self>, block: FfnBlock<'_, Self>) -> Result<Option<Tiles>> {
        let FfnBlock { input, up, activation, out, hidden } = block;
        let (gate_up, rows) = match up {
            FfnUp::Gated { gate_up, rows } => (gate_up, rows),
            FfnUp::Plain { up } => {
                let tiles = tiles_for(self, &out, hidden);
                let tiles = self.timed("up_proj", || {
                    activated_hidden(self, (hidden, tiles), up, input, &mut stream, activation)
                })?;
                return add_output(self, "down_proj", hidden, tiles, stream, out);
            }
        };
        let tiles = tiles_for(self, &out, hidden);
        let tiles = self.timed("gate_up_proj", || {
            gated_hidden(self, (hidden, tiles), (gate_up, rows), input, &mut stream, activation)
        })?;
        add_output(self, "down_proj", hidden, tiles, stream, out)
    }

    fn experts(&self, mut stream: Stream<'_, Self>, block: MoeBlock<'_, Self>) -> Result<()> {
        if takes_apart(&block, stream.residual.row_len()) {
            return experts_apart(self, stream, block);
        }
        // A gate multiplies what the last product reads, and so not its bias.
        let has_bias = |shared: &SharedExpert<'_, Self>| shared.gate.is_some() && shared.down.bias.is_some();
        let is_plain = block.norms.is_none() && block.latent.is_none() && block.experts.params.gated;
        if !is_plain || block.shared.as_ref().is_some_and(has_bias) {
            return blocks::experts(self, stream, block);
        }
        let MoeBlock { input, router, experts, shared, post_norm, is_part, scores, scratch, .. } = block;
        stream.make_floats(self)?;
        let m = stream.residual.rows();
        let x = self.timed("router", || {
            let x = match input {
                BlockInput::Norm(norm) if !experts::has_norm(self, &experts, m, norm) => {
                    self.norm(stream.normed, stream.residual, norm)?;
                    BlockInput::Shared
                }
                _ => input,
            };
            project(self, router, scores, x, &mut stream).map(|()| x)
        })?;
        let mut shared = shared;
        if let Some(shared) = &mut shared {
            // Before the experts' outputs are added to what is read here.
            let activation = experts.params.activation;
            self.timed("shared_expert", || {
                shared_hidden(self, shared, x, &mut stream, activation, &mut scratch.y)
            })?;
        }
        let x = match x {
            BlockInput::Residual => Input::Floats(stream.residual.ptr(), None),
            BlockInput::Norm(norm) => Input::Floats(stream.residual.ptr(), Some(norm)),
            BlockInput::Shared => Input::Floats(stream.normed.ptr(), None),
        };
        let Stream { residual, output, .. } = stream;
        let is_sum = post_norm.is_none() && !is_part;
        let sum = if is_sum { &mut *residual } else { &mut *output };
        let to = (sum.ptr(), if is_sum { Epilogue::Add } else { Epilogue::Store });
        self.timed("experts", || experts::run(self, to, x, scores, &experts, scratch))?;
        if let Some(shared) = shared {
            self.timed("shared_expert", || add_shared_output(self, sum, shared, &mut scratch.y))?;
        }
        if is_sum { Ok(()) } else { add_to_residual(self, residual, output, post_norm, is_part) }
    }

    fn head(&self, logits: &mut Tensor<Self>, block: HeadBlock<'_, Self>) -> Result<()> {
        let HeadBlock { x, norm, linear, softcap, normed, gather } = block;
        blocks::finish_head(self, logits, softcap, gather, |y| {
            if !store(self, linear, y, Input::Floats(x.ptr(), Some(norm)), x.rows())? {
                self.norm(normed, x, norm)?;
                self.matmul(y, normed, &linear.weight, linear.bias.as_ref())?;
            }
            linear.apply_scale(self, y)
        })
    }
}

/// The norms of heads and their weights in one kernel, where that takes such heads.
fn norm_heads(cuda: &Cuda, qkv_rows: &mut Tensor<Cuda>, norms: Option<HeadNorms<'_, Cuda>>) -> Result<()> {
    match norms {
        Some(HeadNorms { norm, weights }) if norm::takes_heads(norm.weight.len()) => {
            cuda.timed("norm", || norm::norm_heads(cuda, qkv_rows, norm, weights))
        }
        _ => blocks::norm_heads(cuda, qkv_rows, norms),
    }
}

/// Whether [`experts_apart`] takes such a mixture, with rows of `n` elements.
fn takes_apart(block: &MoeBlock<'_, Cuda>, n: usize) -> bool {
    let (Some(norms), Some(shared), Some(post_norm)) = (&block.norms, &block.shared, block.post_norm) else {
        return false;
    };
    let is_plain = shared.gate.is_none() && shared.down.scale.is_none();
    let is_whole = !block.is_part && block.latent.is_none() && block.experts.params.gated;
    is_plain && is_whole && norm::adds_norms(n, [norms.post_experts, norms.post_shared, post_norm])
}

/// A mixture whose router, experts and shared expert read the residual by norms of their own, and whose results are normalized before they
/// are added.
fn experts_apart(cuda: &Cuda, mut stream: Stream<'_, Cuda>, block: MoeBlock<'_, Cuda>) -> Result<()> {
    let MoeBlock { input, router, experts, shared, norms, post_norm, scores, scratch, .. } = block;
    let (Some(norms), Some(shared), Some(post_norm)) = (norms, shared, post_norm) else {
        unreachable!("a block that `takes_apart` has not looked at");
    };
    stream.make_floats(cuda)?;
    let (m, activation) = (stream.residual.rows(), experts.params.activation);
    cuda.timed("router", || project(cuda, router, scores, BlockInput::Norm(norms.router), &mut stream))?;
    cuda.timed("experts", || {
        let x = match experts::has_norm(cuda, &experts, m, norms.experts) {
            true => Input::Floats(stream.residual.ptr(), Some(norms.experts)),
            false => {
                cuda.norm(stream.normed, stream.residual, norms.experts)?;
                Input::Floats(stream.normed.ptr(), None)
            }
        };
        experts::run(cuda, (stream.output.ptr(), Epilogue::Store), x, scores, &experts, scratch)
    })?;
    let SharedExpert { gate_up, down, gate: _, rows, hidden } = shared;
    let y = &mut scratch.y;
    y.set_rows(m);
    cuda.timed("shared_expert", || {
        gated_hidden(cuda, (hidden, None), (gate_up, rows), input, &mut stream, activation)?;
        if !store(cuda, down, y, Input::Floats(hidden.ptr(), None), m)? {
            cuda.matmul(y, hidden, &down.weight, down.bias.as_ref())?;
        }
        Ok(())
    })?;
    let Stream { residual, output, .. } = stream;
    let of_both = [norms.post_experts, norms.post_shared, post_norm];
    cuda.timed("add", || norm::add_norms(cuda, residual, [&*output, &*y], of_both))
}

/// The convolution of `rows`, the delta rule on it, its norm and gate: `mixed` [n_tokens, n_v_heads · v_dim].
fn delta_part(
    cuda: &Cuda,
    mixed: &mut Tensor<Cuda>,
    rows: &mut Tensor<Cuda>,
    conv: ShortConv<'_, Cuda>,
    state: &mut StateLayer<Cuda>,
    batch: &StagedBatch,
    delta: DeltaPart<'_, Cuda>,
) -> Result<()> {
    let DeltaPart { shape, decay, dt_bias, norm, convolved } = delta;
    let (start, rates_start) = (shape.qkv_len(), shape.qkv_len() + shape.v_len());
    let matrix = state.matrix.as_mut().expect("a layer with the delta rule keeps its matrix");
    cuda.timed("short_conv", || cuda.short_conv(convolved, rows, conv, &mut state.conv, batch))?;
    let after = recurrent::takes_norm(cuda, batch, shape, norm).then_some(NormAndGate { norm, start });
    let is_done = after.is_some();
    cuda.timed("delta_rule", || {
        let input = DeltaInput { qkv: convolved, rates: rows, rates_start, decay, dt_bias };
        recurrent::delta_rule(cuda, mixed, input, matrix, batch, shape, after)
    })?;
    match is_done {
        true => Ok(()),
        false => {
            let norm = GatedNorm { norm, group_len: shape.v_dim, gate_first: false };
            cuda.timed("gated_norm", || cuda.gated_norm(mixed, rows, start, norm))
        }
    }
}

/// `(n_in, n_out)`
fn w_len(linear: &Linear<Cuda>) -> (usize, usize) {
    (linear.weight.shape.n_in, linear.weight.shape.n_out)
}

/// What a matmul with `w` that ends in this way reads.
fn block_input<'a>(
    cuda: &Cuda,
    w: &Matrix,
    epilogue: Epilogue,
    input: BlockInput<'a, Cuda>,
    stream: &mut Stream<'_, Cuda>,
) -> Result<Input<'a>> {
    if let BlockInput::Residual = input {
        let reads = matmul::gemm_tiles(cuda, w, stream.residual.rows(), epilogue.kind());
        if let Some(tiles) = stream.operand.filter(|t| reads == Some(t.layout)) {
            return Ok(Input::Tiles(tiles));
        }
    }
    stream.make_floats(cuda)?;
    Ok(match input {
        BlockInput::Residual => Input::Floats(stream.residual.ptr(), None),
        BlockInput::Norm(norm) => Input::Floats(stream.residual.ptr(), Some(norm)),
        BlockInput::Shared => Input::Floats(stream.normed.ptr(), None),
    })
}

/// `y = x · wᵀ + bias` with `m` rows in one go, the norm of `x` included; `false` where no kernel has it.
fn store(cuda: &Cuda, linear: &Linear<Cuda>, y: &mut Tensor<Cuda>, x: Input<'_>, m: usize) -> Result<bool> {
    assert_eq!((y.row_len(), y.rows()), (linear.weight.shape.n_out, m));
    let (w, bias, y) = (&linear.weight, linear.bias.as_ref(), Output::Floats(y.ptr()));
    matmul::run(cuda, &Matmul { w, x, y, bias, m, epilogue: Epilogue::Store })
}

/// `y = linear(input)`
fn project(
    cuda: &Cuda,
    linear: &Linear<Cuda>,
    y: &mut Tensor<Cuda>,
    input: BlockInput<'_, Cuda>,
    stream: &mut Stream<'_, Cuda>,
) -> Result<()> {
    assert_eq!(linear.weight.shape.n_in, stream.residual.row_len());
    let x = block_input(cuda, &linear.weight, Epilogue::Store, input, stream)?;
    match store(cuda, linear, y, x, stream.residual.rows())? {
        true => linear.apply_scale(cuda, y),
        false => blocks::project(cuda, linear, y, input, stream),
    }
}

/// `qkv(input)` into `slots`, whose queries are in the memory of `rows`; `false`, and nothing done, where no kernel has it.
fn project_to_cache(
    cuda: &Cuda,
    qkv: &Linear<Cuda>,
    rows: &Tensor<Cuda>,
    slots: KvSlots,
    input: BlockInput<'_, Cuda>,
    stream: &mut Stream<'_, Cuda>,
) -> Result<bool> {
    let m = stream.residual.rows();
    assert_eq!((w_len(qkv), rows.rows()), ((stream.residual.row_len(), rows.row_len()), m));
    let x = block_input(cuda, &qkv.weight, Epilogue::Store, input, stream)?;
    let (w, bias, y) = (&qkv.weight, qkv.bias.as_ref(), Output::Qkv(slots));
    Ok(qkv.scale.is_none() && matmul::run(cuda, &Matmul { w, x, y, bias, m, epilogue: Epilogue::Store })?)
}

/// The hidden activations of a block without a gate, `activation(up)`: as tiles if some are given and the kernel writes them, which are
/// returned then, else as floats.
fn activated_hidden(
    cuda: &Cuda,
    (hidden, tiles): (&mut Tensor<Cuda>, Option<Tiles>),
    up: &Linear<Cuda>,
    input: BlockInput<'_, Cuda>,
    stream: &mut Stream<'_, Cuda>,
    activation: Activation,
) -> Result<Option<Tiles>> {
    let m = stream.residual.rows();
    assert_eq!((w_len(up), hidden.rows()), ((stream.residual.row_len(), hidden.row_len()), m));
    if let Some(tiles) = tiles
        && up.scale.is_none()
    {
        let (w, epilogue) = (&up.weight, Epilogue::Activate(activation));
        let x = block_input(cuda, w, epilogue, input, stream)?;
        let (y, bias) = (Output::Tiles(tiles), up.bias.as_ref());
        if matmul::run(cuda, &Matmul { w, x, y, bias, m, epilogue })? {
            return Ok(Some(tiles));
        }
    }
    project(cuda, up, hidden, input, stream)?;
    cuda.activate(hidden, activation)?;
    Ok(None)
}

/// The hidden activations of a gated block, `activation(gate) · up`: as tiles if some are given and the kernel writes them, which are
/// returned then, else as floats.
fn gated_hidden(
    cuda: &Cuda,
    (hidden, tiles): (&mut Tensor<Cuda>, Option<Tiles>),
    (gate_up, rows): (&Linear<Cuda>, &mut Tensor<Cuda>),
    input: BlockInput<'_, Cuda>,
    stream: &mut Stream<'_, Cuda>,
    activation: Activation,
) -> Result<Option<Tiles>> {
    let m = stream.residual.rows();
    assert_eq!((w_len(gate_up), hidden.rows()), ((stream.residual.row_len(), 2 * hidden.row_len()), m));
    let x = block_input(cuda, &gate_up.weight, Epilogue::Gate(activation), input, stream)?;
    let gate = |y| {
        let is_bare = gate_up.bias.is_none() && gate_up.scale.is_none();
        // No matmul ends with it.
        let is_bare = is_bare && activation != Activation::ClampedSwiglu;
        let (w, epilogue) = (&gate_up.weight, Epilogue::Gate(activation));
        Ok(is_bare && matmul::run(cuda, &Matmul { w, x, y, bias: None, m, epilogue })?)
    };
    if let Some(t) = tiles
        && gate(Output::Tiles(t))?
    {
        return Ok(tiles);
    }
    if !gate(Output::Floats(hidden.ptr()))? {
        project(cuda, gate_up, rows, input, stream)?;
        cuda.gated(hidden, rows, activation)?;
    }
    Ok(None)
}

/// The hidden activations of a shared expert, times the value of its gate where it has one. `room` is for these values.
fn shared_hidden(
    cuda: &Cuda,
    shared: &mut SharedExpert<'_, Cuda>,
    input: BlockInput<'_, Cuda>,
    stream: &mut Stream<'_, Cuda>,
    activation: Activation,
    room: &mut Tensor<Cuda>,
) -> Result<()> {
    let gate_up = (shared.gate_up, &mut *shared.rows);
    gated_hidden(cuda, (shared.hidden, None), gate_up, input, stream, activation)?;
    let Some(gate) = shared.gate else { return Ok(()) };
    let row_len = room.row_len();
    room.set_row_len(1);
    room.set_rows(stream.residual.rows());
    project(cuda, gate, room, input, stream)?;
    cuda.gate_rows(shared.hidden, room)?;
    room.set_row_len(row_len);
    Ok(())
}

/// `y += down(hidden)` of a shared expert. `room` is for its output, where no kernel adds it.
fn add_shared_output(
    cuda: &Cuda,
    y: &mut Tensor<Cuda>,
    shared: SharedExpert<'_, Cuda>,
    room: &mut Tensor<Cuda>,
) -> Result<()> {
    let (down, m) = (shared.down, y.rows());
    assert_eq!((w_len(down), shared.hidden.rows()), ((shared.hidden.row_len(), y.row_len()), m));
    let (w, bias, x) = (&down.weight, down.bias.as_ref(), Input::Floats(shared.hidden.ptr(), None));
    let add = Matmul { w, x, y: Output::Floats(y.ptr()), bias, m, epilogue: Epilogue::Add };
    if down.scale.is_none() && matmul::run(cuda, &add)? {
        return Ok(());
    }
    room.set_rows(m);
    down.apply(cuda, room, shared.hidden)?;
    cuda.add(y, room)
}

/// Whether nothing stands between a block's result and its last matmul.
fn is_direct(out: &BlockOutput<'_, Cuda>) -> bool {
    out.sub_norm.is_none() && !matches!(out.join, Join::Gather { .. })
}

/// How the last matmul of a block ends on this rank alone.
fn last_epilogue(out: &BlockOutput<'_, Cuda>) -> EpilogueKind {
    match is_plain_sum(out) && matches!(out.join, Join::Alone) {
        true => EpilogueKind::Add,
        false => EpilogueKind::Store,
    }
}

/// Whether the output of the last matmul joins the residual as it is.
fn is_plain_sum(out: &BlockOutput<'_, Cuda>) -> bool {
    out.post_norm.is_none() && out.proj.scale.is_none()
}

/// The tiles that a block's last matmul reads in place of floats, in the memory of its input.
fn tiles_for(cuda: &Cuda, out: &BlockOutput<'_, Cuda>, x: &Tensor<Cuda>) -> Option<Tiles> {
    match is_direct(out) {
        true => matmul::tiles_in(cuda, &out.proj.weight, x, last_epilogue(out)),
        false => None,
    }
}

/// Adds a block's output to the residual, and returns the sum's norm as tiles where the kernels write it so: see [`norm::norm_sum`]. `x` is
/// the input of the block's last matmul, or holds it as `tiles`.
fn add_output(
    cuda: &Cuda,
    name: &'static str,
    x: &mut Tensor<Cuda>,
    tiles: Option<Tiles>,
    mut stream: Stream<'_, Cuda>,
    out: BlockOutput<'_, Cuda>,
) -> Result<Option<Tiles>> {
    let sum_norm = out.sum_norm;
    if !is_direct(&out) {
        stream.make_floats(cuda)?;
        let Stream { residual, output, .. } = stream;
        let post_norm = out.post_norm;
        let is_part = blocks::multiply_output(cuda, name, x, output, out)?;
        add_to_residual(cuda, residual, output, post_norm, is_part)?;
        return blocks::norm_sum(cuda, residual, sum_norm).map(|()| None);
    }
    let (proj, m) = (out.proj, x.rows());
    assert_eq!((w_len(proj), stream.residual.rows()), ((x.row_len(), stream.residual.row_len()), m));
    let input = tiles.map_or(Input::Floats(x.ptr(), None), Input::Tiles);
    let (w, bias) = (&proj.weight, proj.bias.as_ref());
    let run = |y, epilogue| matmul::run(cuda, &Matmul { w, x: input, y, bias, m, epilogue });
    let is_part = matches!(out.join, Join::Sum);
    if let Some((sum, norm)) = tiles_of_sum(cuda, &out, stream.normed, stream.output)
        && cuda.timed(name, || run(Output::Tiles(sum.output), Epilogue::Store))?
    {
        let Stream { residual, operand, .. } = stream;
        cuda.timed("norm", || norm::norm_sum(cuda, (residual, operand), sum.output, sum.operand, norm))?;
        return Ok(Some(sum.operand));
    }
    stream.make_floats(cuda)?;
    let Stream { residual, output, .. } = stream;
    if is_plain_sum(&out) {
        cuda.check_ranks()?;
        let epilogue = if is_part { Epilogue::AddRanks } else { Epilogue::Add };
        if cuda.timed(name, || run(Output::Floats(residual.ptr()), epilogue))? {
            return blocks::norm_sum(cuda, residual, sum_norm).map(|()| None);
        }
    }
    cuda.timed(name, || {
        if !run(Output::Floats(output.ptr()), Epilogue::Store)? {
            assert!(tiles.is_none(), "a matmul that asked for tiles reads them");
            cuda.matmul(output, x, w, bias)?;
        }
        proj.apply_scale(cuda, output)
    })?;
    add_to_residual(cuda, residual, output, out.post_norm, is_part)?;
    blocks::norm_sum(cuda, residual, sum_norm).map(|()| None)
}

/// Where a block's output goes, and then the norm of the sum with the residual.
struct SumTiles {
    output: Tiles,
    operand: Tiles,
}

/// The tiles for a block's output and for the norm of its sum with the residual, in the stream's rooms for both, and that norm, if nothing
/// else stands between them.
fn tiles_of_sum<'a>(
    cuda: &Cuda,
    out: &BlockOutput<'a, Cuda>,
    normed: &Tensor<Cuda>,
    output: &Tensor<Cuda>,
) -> Option<(SumTiles, &'a Norm<Cuda>)> {
    let norm = out.sum_norm?;
    if !is_plain_sum(out) || !matches!(out.join, Join::Alone) || !norm::is_held(output.row_len()) {
        return None;
    }
    // As this block's last matmul reads them: the next block's matrices are of the same kind, or read the residual as floats.
    let layout = matmul::gemm_tiles(cuda, &out.proj.weight, normed.rows(), EpilogueKind::Store)?;
    let operand = matmul::tiles(layout, normed)?;
    let output = matmul::tiles(TileLayout::GemmHalf, output)?;
    Some((SumTiles { output, operand }, norm))
}

/// `residual += post_norm(output)`, of the sum of every rank's output where each has a part.
fn add_to_residual(
    cuda: &Cuda,
    residual: &mut Tensor<Cuda>,
    output: &mut Tensor<Cuda>,
    post_norm: Option<&Norm<Cuda>>,
    is_part: bool,
) -> Result<()> {
    let Some(post_norm) = post_norm else {
        return blocks::add_to_residual(cuda, residual, output, None, is_part);
    };
    if is_part {
        cuda.timed("all_reduce", || cuda.all_reduce(output))?;
    }
    cuda.timed("add", || norm::add_norm(cuda, residual, output, post_norm))
}
