//! Mixture of experts: tokens are sorted by expert, each expert computes its tokens in one matmul.

use super::matmul::Operands;
use super::{Cpu, activation, parallel};
use crate::math::route;
use crate::{Experts, MoeScratch, Result, Tensor};

/// One token's use of one expert.
struct Use {
    expert: usize,
    token: usize,
    weight: f32,
}

pub(super) fn moe(
    cpu: &Cpu,
    y: &mut Tensor<Cpu>,
    x: &Tensor<Cpu>,
    router: &Tensor<Cpu>,
    experts: &Experts<'_, Cpu>,
    scratch: &mut MoeScratch<Cpu>,
) -> Result<()> {
    let &Experts { gate_up, gate_up_bias, down, down_bias, selection_bias, output_scale, params } = experts;
    let (n, inner) = (x.row_len(), down.n_in());
    let up_len = params.up_rows() * inner;
    assert_eq!((gate_up.n_in(), gate_up.n_out(), down.n_out()), (n, up_len, n));
    let n_uses = x.rows() * params.router.n_used;
    let [selection_bias, output_scale] = [selection_bias, output_scale].map(|t| t.map(|t| t.floats()));
    let mut uses = Vec::with_capacity(n_uses);
    let mut chosen = Vec::with_capacity(router.row_len());
    for (token, scores) in router.floats().chunks_exact(router.row_len()).enumerate() {
        route(scores, &params.router, selection_bias, output_scale, &mut chosen);
        uses.extend(chosen.iter().map(|&(expert, weight)| Use { expert, token, weight }));
    }
    uses.sort_by_key(|u| u.expert);
    for t in [&mut scratch.x, &mut scratch.gate_up, &mut scratch.hidden, &mut scratch.y] {
        t.set_rows(n_uses);
    }
    for (row, u) in scratch.x.floats_mut().chunks_exact_mut(n).zip(&uses) {
        row.copy_from_slice(&x.floats()[u.token * n..][..n]);
    }
    let mut start = 0;
    for same in uses.chunk_by(|a, b| a.expert == b.expert) {
        let (m, expert) = (same.len(), same[0].expert);
        let x = &scratch.x.floats()[start * n..][..m * n];
        let bias = gate_up_bias.map(|bias| &bias.floats()[expert * up_len..][..up_len]);
        let first = Operands { x, w: gate_up, expert, bias };
        let hidden = &mut scratch.hidden.floats_mut()[start * inner..][..m * inner];
        if params.gated {
            let gated = &mut scratch.gate_up.floats_mut()[start * up_len..][..m * up_len];
            cpu.multiply(gated, first);
            parallel::rows(&cpu.pool, hidden, inner, |i, hidden| {
                let gated = &gated[i * up_len..][..up_len];
                activation::gated_row(cpu.options.isa, hidden, gated, params.activation);
            });
        } else {
            cpu.multiply(hidden, first);
            parallel::rows(&cpu.pool, hidden, inner, |_, hidden| {
                activation::row(cpu.options.isa, hidden, params.activation);
            });
        }
        let out = &mut scratch.y.floats_mut()[start * n..][..m * n];
        let bias = down_bias.map(|bias| &bias.floats()[expert * n..][..n]);
        cpu.multiply(out, Operands { x: hidden, w: down, expert, bias });
        start += m;
    }
    // Each token's experts are added from the lowest on, whatever else is in the batch.
    let y = y.floats_mut();
    y.fill(0.0);
    for (out, u) in scratch.y.floats().chunks_exact(n).zip(&uses) {
        y[u.token * n..][..n].iter_mut().zip(out).for_each(|(y, x)| *y += u.weight * x);
    }
    Ok(())
}
