"""The gated delta rule (Yang, Kautz and Hatamizadeh 2024) in the form that trains: chunks of tokens as matrix products.

A head's state S [k_dim, v_dim] changes with each token, and a token reads it afterwards:

    d = beta (v - decay Sᵀk)        S = decay S + k dᵀ        y = Sᵀq

Within a chunk let g be the running sums of the logarithms of decays, S the state before it, and rows of Q, K, V, D, Y tokens. Then

    L[t, s] = beta[t] exp(g[t] - g[s]) k[t]·k[s] for s < t      P[t, s] = exp(g[t] - g[s]) q[t]·k[s] for s <= t
    (I + L) D = diag(beta) (V - diag(exp g) K S)                Y = diag(exp g) Q S + P D

so D = U - W S with U = (I + L)⁻¹ diag(beta) V and W = (I + L)⁻¹ diag(beta exp g) K, and the state after the chunk is M S + B: only one
product per chunk has to wait for the chunk before.
"""

import torch
import torch.nn.functional as F

CHUNK = 64
# The logarithm of a decay that forgets everything, small enough that sums of some of them still resolve the other decays.
FORGET = -60.0


def inverse(lower):
    """(I + lower)⁻¹ of strictly lower triangular matrices [..., n, n], n a power of two.

    Blocks on the diagonal are inverted, pairs of them together: [[A, 0], [B, C]]⁻¹ = [[A⁻¹, 0], [-C⁻¹ B A⁻¹, C⁻¹]]. A power series would
    need fewer products, but its terms grow beyond what floats resolve where keys are alike.
    """
    n = lower.shape[-1]
    at = torch.arange(n, device=lower.device)
    fixed = lower.detach()
    result = torch.eye(n, device=lower.device, dtype=lower.dtype)
    size = 1
    while size < n:
        block, pair = at // size, at // (2 * size)
        corner = fixed * ((pair[:, None] == pair) & (block[:, None] > block))
        result = result - (corner if size == 1 else result @ corner @ result)
        size *= 2
    # A step of Newton's method changes nothing but rounding, and its derivative is that of the inverse, without that of the steps above.
    identity = torch.eye(n, device=lower.device, dtype=lower.dtype)
    return result + result @ (identity - result - lower @ result)


def delta_rule(q, k, v, beta, log_decay):
    """Outputs f32 [rows, n_tokens, n_heads, v_dim] of rows that start with empty states.

    `q`, `k`: f32 [rows, n_tokens, n_heads, k_dim], already over their lengths and scaled; `v`: f32 [rows, n_tokens, n_heads, v_dim]; `beta`,
    `log_decay`: f32 [rows, n_tokens, n_heads]. n_tokens is a multiple of CHUNK.
    """
    rows, n_tokens, n_heads, v_dim = v.shape
    n_chunks = n_tokens // CHUNK

    def chunks(x):
        """[rows, n_tokens, n_heads, ...] to [rows * n_heads, n_chunks, CHUNK, ...]"""
        return x.transpose(1, 2).reshape(rows * n_heads, n_chunks, CHUNK, *x.shape[3:])

    q, k, v, beta, g = chunks(q), chunks(k), chunks(v), chunks(beta), chunks(log_decay).cumsum(-1)
    causal = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    # Infinity is put in before the exponential, whose derivative is then 0 there.
    between = (g[..., :, None] - g[..., None, :]).masked_fill(~causal, -torch.inf).exp()
    since, until = g.exp()[..., None], (g[..., -1:] - g).exp()[..., None]
    beta = beta[..., None]

    solved = inverse((beta * between * (k @ k.mT)).tril(-1))
    u, w = solved @ (beta * v), solved @ (beta * since * k)
    late_k = (until * k).mT
    b = late_k @ u
    m = since[..., -1:, :] * torch.eye(k.shape[-1], device=q.device) - late_k @ w
    state = torch.zeros_like(b[:, 0])
    states = [state]
    for i in range(n_chunks - 1):
        state = torch.baddbmm(b[:, i], m[:, i], state)
        states.append(state)
    states = torch.stack(states, 1)
    y = (since * q) @ states + (between * (q @ k.mT)) @ (u - w @ states)
    return y.reshape(rows, n_heads, n_tokens, v_dim).transpose(1, 2)


def short_conv(x, weight, offset):
    """Causal convolution of each channel that does not see other documents.

    `x`: [n_tokens, channels]; `weight`: [channels, width], the last for the token itself; `offset`: [n_tokens], from the document's start.
    """
    width = weight.shape[1]
    y = x.float() * weight[:, -1]
    for back in range(1, width):
        y = y + F.pad(x, (0, 0, back, 0))[:len(x)].float() * weight[:, -1 - back] * (offset >= back)[:, None]
    return y
