"""A tiny model of the shape of Qwen 3.5 MoE: layers of the gated delta rule, every fourth of attention, experts in all, a drafting layer.

Weights are named and shaped as in transformers (`hf_state`), except that all experts of a layer are one tensor here. Matrices are kept in
f32 and used in the type of the activations; the delta rule, routers and losses compute in f32.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from demo.delta_rule import FORGET, delta_rule, short_conv


@dataclass
class Config:
    vocab_size: int = 3072
    hidden_size: int = 256
    n_layers: int = 8
    attention_every: int = 4
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 64
    rotary_dim: int = 16
    rope_theta: float = 10000.0
    # GPUs compute prompts in chunks for keys of 128 elements, which real models have.
    n_k_heads: int = 2
    n_v_heads: int = 4
    delta_dim: int = 128
    conv_width: int = 4
    n_experts: int = 8
    n_experts_used: int = 2
    expert_size: int = 256
    context: int = 1024
    norm_eps: float = 1e-6


def matrix(*shape):
    return nn.Parameter(torch.empty(*shape))


def zeros(*shape):
    return nn.Parameter(torch.zeros(*shape))


def norm(x, weight, eps):
    """RMSNorm times 1 + weight."""
    return F.rms_norm(x, weight.shape, (1 + weight).to(x.dtype), eps)


def linear(x, weight):
    return F.linear(x, weight.to(x.dtype))


def shift(x, offset):
    """Each token's row of `x` [n_tokens, ...] becomes that of the token before; zeros at starts of documents."""
    return F.pad(x, (0, 0, 1, 0))[:-1] * (offset > 0)[:, None]


def rotate(x, cos, sin):
    """x: [n_tokens, heads, head_dim]; of the first rotary_dim elements, i turns with i + rotary_dim / 2."""
    n = 2 * cos.shape[-1]
    a, b = x[..., :n].chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., n:]], -1)


class Experts(nn.Module):
    """Some experts of many by a softmax router, and one with a gate for all tokens."""

    def __init__(self, c):
        super().__init__()
        self.cfg = c
        self.gate = matrix(c.n_experts, c.hidden_size)
        self.gate_up_proj = matrix(c.n_experts, 2 * c.expert_size, c.hidden_size)
        self.down_proj = matrix(c.n_experts, c.hidden_size, c.expert_size)
        self.shared_gate_proj = matrix(c.expert_size, c.hidden_size)
        self.shared_up_proj = matrix(c.expert_size, c.hidden_size)
        self.shared_down_proj = matrix(c.hidden_size, c.expert_size)
        self.shared_gate = matrix(1, c.hidden_size)

    def forward(self, x):
        """Output, and how unevenly tokens choose experts: 1 where evenly (Fedus et al. 2022, eq. 4, over the experts used).

        All experts compute all tokens, with weight 0 where they are not chosen. For so few of so small ones that costs less than sorting.
        """
        c = self.cfg
        probabilities = linear(x, self.gate).float().softmax(-1)
        best = probabilities.topk(c.n_experts_used, -1)
        weights = torch.zeros_like(probabilities).scatter(1, best.indices, best.values)
        chosen = (weights > 0).float()
        weights = weights / weights.sum(-1, keepdim=True)
        unevenness = c.n_experts / c.n_experts_used * (chosen.mean(0) * probabilities.mean(0)).sum()
        gate, up = linear(x, self.gate_up_proj.flatten(0, 1)).view(-1, c.n_experts, 2, c.expert_size).unbind(2)
        inner = F.silu(gate) * up * weights[..., None].to(x.dtype)
        y = linear(inner.flatten(1), self.down_proj.transpose(0, 1).flatten(1))
        shared = linear(F.silu(linear(x, self.shared_gate_proj)) * linear(x, self.shared_up_proj), self.shared_down_proj)
        return y + linear(x, self.shared_gate).sigmoid() * shared, unevenness

    def names(self):
        n = self.cfg.expert_size
        out = {"gate": self.gate, "shared_expert_gate": self.shared_gate}
        out.update({f"shared_expert.{part}_proj": getattr(self, f"shared_{part}_proj") for part in ("gate", "up", "down")})
        for i, (gate_up, down) in enumerate(zip(self.gate_up_proj, self.down_proj)):
            out.update({f"experts.{i}.gate_proj": gate_up[:n], f"experts.{i}.up_proj": gate_up[n:], f"experts.{i}.down_proj": down})
        return {f"mlp.{name}.weight": p for name, p in out.items()}


class Layer(nn.Module):
    """What layers of both kinds share."""

    def __init__(self, c):
        super().__init__()
        self.cfg = c
        self.input_layernorm, self.post_attention_layernorm = zeros(c.hidden_size), zeros(c.hidden_size)
        self.mlp = Experts(c)

    def feed_forward(self, x):
        y, unevenness = self.mlp(norm(x, self.post_attention_layernorm, self.cfg.norm_eps))
        return x + y, unevenness

    def names(self):
        norms = ("input_layernorm", "post_attention_layernorm")
        return {**{f"{n}.weight": getattr(self, n) for n in norms}, **self.mlp.names()}


class DeltaLayer(Layer):
    def __init__(self, c):
        super().__init__(c)
        keys, values = c.n_k_heads * c.delta_dim, c.n_v_heads * c.delta_dim
        self.in_proj_qkv, self.in_proj_z = matrix(2 * keys + values, c.hidden_size), matrix(values, c.hidden_size)
        self.in_proj_b, self.in_proj_a = matrix(c.n_v_heads, c.hidden_size), matrix(c.n_v_heads, c.hidden_size)
        self.out_proj = matrix(c.hidden_size, values)
        self.conv1d = matrix(2 * keys + values, c.conv_width)
        # A head forgets within some 3 to 300 tokens at first.
        self.A_log = zeros(c.n_v_heads)
        rate = torch.linspace(math.log(1 / 300), math.log(1 / 3), c.n_v_heads).exp()
        self.dt_bias = nn.Parameter(rate.expm1().log())
        self.norm = nn.Parameter(torch.ones(c.delta_dim))

    def forward(self, x, offset):
        c = self.cfg
        n = norm(x, self.input_layernorm, c.norm_eps)
        heads = [c.n_k_heads, c.n_k_heads, c.n_v_heads]
        qkv = F.silu(short_conv(linear(n, self.in_proj_qkv), self.conv1d, offset)).view(-1, c.context, sum(heads), c.delta_dim)
        q, k, v = qkv.split(heads, 2)
        group = c.n_v_heads // c.n_k_heads
        q, k = ((t * torch.rsqrt(t.square().sum(-1, keepdim=True) + 1e-6)).repeat_interleave(group, 2) for t in (q, k))
        beta = linear(n, self.in_proj_b).float().sigmoid()
        log_decay = -self.A_log.exp() * F.softplus(linear(n, self.in_proj_a).float() + self.dt_bias)
        log_decay = log_decay.masked_fill((offset == 0)[:, None], FORGET)
        beta, log_decay = (t.view(-1, c.context, c.n_v_heads) for t in (beta, log_decay))
        y = delta_rule(q * c.delta_dim ** -0.5, k, v, beta, log_decay).reshape(-1, c.n_v_heads, c.delta_dim)
        z = linear(n, self.in_proj_z).view_as(y)
        y = F.rms_norm(y, self.norm.shape, self.norm, c.norm_eps) * F.silu(z.float())
        return self.feed_forward(x + linear(y.to(x.dtype).flatten(1), self.out_proj))

    def names(self):
        matrices = {f"{n}.weight": getattr(self, n) for n in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj", "norm")}
        own = {**matrices, "conv1d.weight": self.conv1d[:, None], "A_log": self.A_log, "dt_bias": self.dt_bias}
        return {**super().names(), **{f"linear_attn.{n}": p for n, p in own.items()}}


class AttentionLayer(Layer):
    def __init__(self, c):
        super().__init__(c)
        n, kv = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
        # For each head its queries, then its gate on the output.
        self.q_proj, self.k_proj, self.v_proj = matrix(2 * n, c.hidden_size), matrix(kv, c.hidden_size), matrix(kv, c.hidden_size)
        self.o_proj = matrix(c.hidden_size, n)
        self.q_norm, self.k_norm = zeros(c.head_dim), zeros(c.head_dim)

    def before_attention(self, x, cos, sin):
        """Queries, keys and values, all [n_tokens, n_heads, head_dim], and the gate."""
        c = self.cfg
        n = norm(x, self.input_layernorm, c.norm_eps)
        q, gate = linear(n, self.q_proj).view(-1, c.n_heads, 2 * c.head_dim).chunk(2, -1)
        k, v = (linear(n, w).view(-1, c.n_kv_heads, c.head_dim) for w in (self.k_proj, self.v_proj))
        q, k = rotate(norm(q, self.q_norm, c.norm_eps), cos, sin), rotate(norm(k, self.k_norm, c.norm_eps), cos, sin)
        group = c.n_heads // c.n_kv_heads
        return q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), gate

    def after_attention(self, x, attended, gate):
        return self.feed_forward(x + linear((attended * gate.sigmoid()).flatten(1), self.o_proj))

    def names(self):
        own = ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
        return {**super().names(), **{f"self_attn.{n}.weight": getattr(self, n) for n in own}}


class DraftLayer(AttentionLayer):
    """Predicts the next token as the model does, from a token's embedding and what the model made of the token before."""

    def __init__(self, c):
        super().__init__(c)
        self.fc = matrix(c.hidden_size, 2 * c.hidden_size)
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = zeros(c.hidden_size), zeros(c.hidden_size), zeros(c.hidden_size)

    def join(self, embedded, hidden):
        eps = self.cfg.norm_eps
        return linear(torch.cat([norm(embedded, self.pre_fc_norm_embedding, eps), norm(hidden, self.pre_fc_norm_hidden, eps)], -1), self.fc)

    def names(self):
        own = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        return {**{f"layers.0.{n}": p for n, p in super().names().items()}, **{f"{n}.weight": getattr(self, n) for n in own}}


class Model(nn.Module):
    def __init__(self, cfg, attention):
        """`attention`: as `masked_attention` of train_demo.py."""
        super().__init__()
        self.cfg, self.attention = cfg, attention
        self.embed, self.norm = matrix(cfg.vocab_size, cfg.hidden_size), zeros(cfg.hidden_size)
        kinds = [AttentionLayer if (i + 1) % cfg.attention_every == 0 else DeltaLayer for i in range(cfg.n_layers)]
        self.layers, self.draft = nn.ModuleList(kind(cfg) for kind in kinds), DraftLayer(cfg)
        for name, p in self.named_parameters():
            if p.ndim >= 2:
                std = 0.02 if name == "embed" else p.shape[-1] ** -0.5
                small = name.endswith(("o_proj", "out_proj", "down_proj"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * cfg.n_layers) if small else std)

    def places(self, n_tokens, bounds, dtype):
        """Tokens' offsets from their documents' starts, and cosines and sines of their places in rows."""
        c, device = self.cfg, bounds.device
        at = torch.arange(n_tokens, device=device)
        offset = at - bounds[torch.searchsorted(bounds, at, right=True) - 1]
        angle = (at % c.context)[:, None] / c.rope_theta ** (torch.arange(0, c.rotary_dim, 2, device=device) / c.rotary_dim)
        return offset, angle.cos().to(dtype)[:, None], angle.sin().to(dtype)[:, None]

    def hidden(self, ids, bounds, places, dtype):
        """What the model makes of tokens, behind its final norm, and the sum of the layers' unevenness of experts."""
        offset, cos, sin = places
        x, uneven = F.embedding(ids, self.embed).to(dtype), 0.0
        for layer in self.layers:
            if isinstance(layer, DeltaLayer):
                x, one = layer(x, offset)
            else:
                x, one = self.attend(layer, x, bounds, cos, sin)
            uneven = uneven + one
        return norm(x, self.norm, self.cfg.norm_eps), uneven

    def attend(self, layer, x, bounds, cos, sin):
        q, k, v, gate = layer.before_attention(x, cos, sin)
        return layer.after_attention(x, self.attention(q, k, v, bounds, self.cfg.context), gate)

    def drafted(self, ids, hidden, bounds, places):
        """As `hidden`, of the drafting layer, which learns from the model and not the model from it."""
        offset, cos, sin = places
        embedded = F.embedding(ids, self.embed.detach()).to(hidden.dtype)
        x, uneven = self.attend(self.draft, self.draft.join(embedded, shift(hidden.detach(), offset)), bounds, cos, sin)
        return norm(x, self.draft.norm, self.cfg.norm_eps), uneven

    def cross_entropy(self, x, embed, targets, weights):
        """Mean over the tokens whose weight is 1. x: [n_tokens, hidden_size]."""
        losses = F.cross_entropy(linear(x, embed).float(), targets, reduction="none")
        return (losses * weights).sum() / weights.sum()

    def losses(self, ids, bounds, targets, weights, dtype):
        """Cross-entropy of the model, of the drafting layer, and the sum of all layers' unevenness.

        ids: [n_tokens] in rows of `context`.
        """
        places = self.places(len(ids), bounds, dtype)
        x, uneven = self.hidden(ids, bounds, places, dtype)
        y, draft_uneven = self.drafted(ids, x, bounds, places)
        return (self.cross_entropy(x, self.embed, targets, weights), self.cross_entropy(y, self.embed.detach(), targets, weights),
                uneven + draft_uneven)

    def loss(self, *batch):
        """What training minimizes."""
        model, draft, uneven = self.losses(*batch)
        return model + draft + 0.01 * uneven

    def parts_to_compile(self):
        """Modules and names of their methods."""
        attention = [layer for layer in [*self.layers, self.draft] if isinstance(layer, AttentionLayer)]
        delta = [(layer, "forward") for layer in self.layers if isinstance(layer, DeltaLayer)]
        return delta + [(layer, name) for layer in attention for name in ("before_attention", "after_attention")] + [
            (self.draft, "join"), (self, "cross_entropy")]

    def hf_state(self):
        """Hugging Face tensor names to views of the weights."""
        out = {"model.embed_tokens.weight": self.embed, "model.norm.weight": self.norm}
        for i, layer in enumerate(self.layers):
            out.update({f"model.layers.{i}.{n}": p for n, p in layer.names().items()})
        out.update({f"mtp.{n}": p for n, p in self.draft.names().items()})
        return {k: v.detach() for k, v in out.items()}

    def load_hf_state(self, state):
        for name, mine in self.hf_state().items():
            mine.copy_(state[name])


@torch.no_grad()
def draft_agreement(model, batch, dtype, n_ahead):
    """How often drafts are what the model holds most likely, in tokens of a batch that the loss counts: [n_ahead, 3].

    Of each number of tokens ahead: drafts made, those of them that agree, and those where all before agree too. The second and later ones read
    the drafting layer's own output for the token before. Only where the text follows the model's most likely tokens, which are then the
    drafts of before that the model accepted.
    """
    ids, bounds, _, weights = batch
    c, n = model.cfg, len(ids)
    offset, cos, sin = places = model.places(n, bounds, dtype)
    x, _ = model.hidden(ids, bounds, places, dtype)
    embedded = F.embedding(ids, model.embed).to(dtype)
    best = linear(x, model.embed).argmax(-1)
    counted = weights > 0
    before = torch.cat([counted.new_zeros(1), best[:-1] == ids[1:]])
    valid, right = counted, torch.ones_like(counted)
    at = torch.arange(c.context, device=ids.device)
    start = (at - offset.view(-1, c.context))[:, None, :, None]  # [rows, 1, queries, 1]
    layer, keys, values, masks, found = model.draft, [], [], [], []

    def by_rows(t):
        return t.view(-1, c.context, c.n_heads, c.head_dim).transpose(1, 2)

    for step in range(n_ahead):
        joined = layer.join(embedded, shift(x, offset))
        q, k, v, gate = layer.before_attention(joined, cos, sin)
        keys.append(by_rows(k))
        values.append(by_rows(v))
        # Of the model's own steps all up to the one before the first draft, of each draft one.
        back = at[:, None] - at
        masks = [(back >= step) if i == 0 else back == step - i for i in range(step + 1)]
        mask = torch.cat([(m & (start <= at)) for m in masks], -1)
        # The first tokens of a document have no such place; what they read is not counted.
        mask = mask | ~mask.any(-1, keepdim=True)
        y = F.scaled_dot_product_attention(by_rows(q), torch.cat(keys, 2), torch.cat(values, 2), attn_mask=mask)
        x, _ = layer.after_attention(joined, y.transpose(1, 2).reshape(n, c.n_heads, c.head_dim), gate)
        x = norm(x, layer.norm, c.norm_eps)
        agrees = linear(x, model.embed).argmax(-1) == best
        if step > 0:
            valid = counted & before & torch.cat([valid.new_zeros(1), valid[:-1]])
            right = torch.cat([right.new_zeros(1), right[:-1]])
        right = right & agrees
        found.append(torch.stack([valid.sum(), (valid & agrees).sum(), (valid & right).sum()]))
    return torch.stack(found).cpu()
