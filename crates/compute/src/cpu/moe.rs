//! Mixture of experts: tokens are sorted by expert, and all experts' products of a kind are one job of the threads.

use super::matmul::{Group, Operands};
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
    let mut groups: Vec<Group> = Vec::with_capacity(gate_up.n_experts().min(n_uses));
    for (row, u) in uses.iter().enumerate() {
        match groups.last_mut() {
            Some(last) if last.expert == u.expert => last.rows.end += 1,
            _ => groups.push(Group { expert: u.expert, rows: row..row + 1 }),
        }
    }
    let tokens: Vec<u32> = uses.iter().map(|u| u.token as u32).collect();

    let MoeScratch { gate_up: gated, hidden, y: out, .. } = scratch;
    for t in [&mut *gated, &mut *hidden, &mut *out] {
        t.set_rows(n_uses);
    }
    let [gate_up_bias, down_bias] = [gate_up_bias, down_bias].map(|bias| bias.map(|bias| bias.floats()));
    let first =
        Operands { x: x.floats(), sources: Some(&tokens), w: gate_up, groups: &groups, bias: gate_up_bias };
    if params.gated {
        cpu.multiply(gated.floats_mut(), first);
        let gated = gated.floats();
        parallel::rows(&cpu.pool, hidden.floats_mut(), inner, |i, hidden| {
            activation::gated_row(cpu.options.isa, hidden, &gated[i * up_len..][..up_len], params.activation);
        });
    } else {
        cpu.multiply(hidden.floats_mut(), first);
        activation::activate(&cpu.pool, cpu.options.isa, hidden, params.activation);
    }
    let second = Operands { x: hidden.floats(), sources: None, w: down, groups: &groups, bias: down_bias };
    cpu.multiply(out.floats_mut(), second);

    // Each token's experts are added from the lowest on, whatever else is in the batch.
    let mut rows: Vec<u32> = (0..n_uses as u32).collect();
    rows.sort_by_key(|&row| tokens[row as usize]);
    let (out, n_used) = (out.floats(), params.router.n_used);
    parallel::rows(&cpu.pool, y.floats_mut(), n, |token, y| {
        y.fill(0.0);
        for &row in &rows[token * n_used..][..n_used] {
            let (row, weight) = (row as usize, uses[row as usize].weight);
            for (y, x) in y.iter_mut().zip(&out[row * n..][..n]) {
                *y += weight * x;
            }
        }
    });
    Ok(())
}
