"""Trains the demo model from nothing: text, tokenizer, weights, GGUF.

    python tools/train_demo.py --out build/demo            # everything; needs one GPU and a few minutes
    python tools/train_demo.py --out build/demo --steps 5 --documents 600 --rows-per-step 2 --device cpu   # does it run?
    python tools/train_demo.py --out build/demo --only check     # instruction rates and samples of a trained model
    python tools/train_demo.py --out build/demo --only golden --golden FILE.json    # logits and greedy tokens of demo.gguf

The text comes from `tools/demo/`, by seed; nothing is downloaded. Needs: torch, tokenizers, safetensors, numpy, gguf, and
transformers for the checks.
"""

import argparse
import json
import math
import multiprocessing
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn

from demo.conversation import document
from demo.export import SPECIAL_TOKENS, read_gguf, write_gguf, write_hf


@dataclass
class Config:
    vocab_size: int = 3072
    hidden_size: int = 256
    intermediate_size: int = 768
    n_layers: int = 8
    n_heads: int = 8
    n_kv_heads: int = 4
    head_dim: int = 32
    context: int = 1024
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5


# ------------------------------------------------------------------------------------------------ text and tokens

def render(messages):
    """The ChatML text of a conversation; a bare story stays bare and ends with the same token."""
    if messages[0][0] == "text":
        return messages[0][1] + "<|im_end|>"
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in messages)


def train_tokenizer(seed, n_documents, vocab_size):
    tokenizer = Tokenizer(models.BPE())
    # ByteLevel's own pattern is GPT-2's, which GGUF calls "gpt-2".
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    rng = random.Random(f"tokenizer {seed}")
    texts = (text for _ in range(n_documents) for _, text in document(rng))
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=SPECIAL_TOKENS, show_progress=False,
                                                             initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


TARGET, START = 1 << 15, 1 << 14  # flags above the token id: the loss counts this token; a document starts here


def _rows(job):
    """Rows of `context` tokens, filled with whole documents. Runs in a worker process."""
    seed, n_documents, tokenizer_json, context = job
    tokenizer = Tokenizer.from_str(tokenizer_json)
    rng = random.Random(seed)
    start_id, end_id, pad_id = (tokenizer.token_to_id(t) for t in ("<|im_start|>", "<|im_end|>", "<|endoftext|>"))
    head = np.array(tokenizer.encode("<|im_start|>assistant\n").ids)
    rows, row, used = [], np.full(context, pad_id, np.uint16), 0
    for begin in range(0, n_documents, 1000):
        docs = [document(rng) for _ in range(min(1000, n_documents - begin))]
        for messages, encoded in zip(docs, tokenizer.encode_batch([render(m) for m in docs])):
            ids = np.array(encoded.ids[:context], np.uint16)
            target = np.zeros(len(ids), bool)
            if messages[0][0] == "text":
                target[1:] = True
            else:
                ends = np.flatnonzero(ids == end_id)
                for s in np.flatnonzero(ids == start_id):
                    if np.array_equal(ids[s:s + len(head)], head):
                        following = ends[ends > s]
                        target[s + len(head):following[0] + 1 if len(following) else len(ids)] = True
            if used + len(ids) > context:
                row[used:used + 1] |= START
                rows.append(row)
                row, used = np.full(context, pad_id, np.uint16), 0
            row[used:used + len(ids)] = ids | (target * np.uint16(TARGET))
            row[used] |= START
            used += len(ids)
    return np.stack(rows)


def make_rows(seed, n_documents, tokenizer, context, workers):
    per_job = max(min(500, n_documents), min(10_000, n_documents // workers))
    jobs = [(f"{seed} {i}", per_job, tokenizer.to_str(), context) for i in range(math.ceil(n_documents / per_job))]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        return np.concatenate(list(pool.imap(_rows, jobs)))


def make_text(args, cfg):
    """The tokenizer, whose size becomes that of `cfg`, rows to train on and rows held out."""
    begin = time.time()
    tokenizer = train_tokenizer(args.seed, min(60_000, args.documents), cfg.vocab_size)
    cfg.vocab_size = tokenizer.get_vocab_size()
    print(f"tokenizer: {cfg.vocab_size} entries, {time.time() - begin:.0f} s", flush=True)
    rows = make_rows(args.seed, args.documents, tokenizer, cfg.context, args.workers)
    held_out = make_rows(f"held out {args.seed}", max(60, args.documents // 500), tokenizer, cfg.context, args.workers)
    print(f"text: {rows.size / 1e6:.0f} M tokens, {((rows & TARGET) != 0).sum() / 1e6:.0f} M of them answers, "
          f"{time.time() - begin:.0f} s", flush=True)
    return tokenizer, rows, held_out


# ------------------------------------------------------------------------------------------------ the model

def rotate(x, cos, sin):
    """x: [tokens, heads, head_dim]; element i turns with element i + head_dim / 2."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        h, kv = cfg.n_heads * cfg.head_dim, cfg.n_kv_heads * cfg.head_dim
        self.input_layernorm = nn.Parameter(torch.ones(cfg.hidden_size))
        self.post_attention_layernorm = nn.Parameter(torch.ones(cfg.hidden_size))
        self.q_proj = nn.Parameter(torch.empty(h, cfg.hidden_size))
        self.k_proj = nn.Parameter(torch.empty(kv, cfg.hidden_size))
        self.v_proj = nn.Parameter(torch.empty(kv, cfg.hidden_size))
        self.o_proj = nn.Parameter(torch.empty(cfg.hidden_size, h))
        self.gate_proj = nn.Parameter(torch.empty(cfg.intermediate_size, cfg.hidden_size))
        self.up_proj = nn.Parameter(torch.empty(cfg.intermediate_size, cfg.hidden_size))
        self.down_proj = nn.Parameter(torch.empty(cfg.hidden_size, cfg.intermediate_size))

    def before_attention(self, x, cos, sin):
        c = self.cfg
        n = F.rms_norm(x, (c.hidden_size,), self.input_layernorm.to(x.dtype), c.norm_eps)
        q = F.linear(n, self.q_proj.to(x.dtype)).view(-1, c.n_heads, c.head_dim)
        k = F.linear(n, self.k_proj.to(x.dtype)).view(-1, c.n_kv_heads, c.head_dim)
        v = F.linear(n, self.v_proj.to(x.dtype)).view(-1, c.n_kv_heads, c.head_dim)
        group = c.n_heads // c.n_kv_heads
        return (rotate(q, cos, sin), rotate(k, cos, sin).repeat_interleave(group, 1), v.repeat_interleave(group, 1))

    def after_attention(self, x, attended):
        c = self.cfg
        x = x + F.linear(attended.reshape(x.shape[0], -1), self.o_proj.to(x.dtype))
        n = F.rms_norm(x, (c.hidden_size,), self.post_attention_layernorm.to(x.dtype), c.norm_eps)
        return x + F.linear(F.silu(F.linear(n, self.gate_proj.to(x.dtype))) * F.linear(n, self.up_proj.to(x.dtype)),
                            self.down_proj.to(x.dtype))


def masked_attention(q, k, v, bounds, context):
    """Causal attention inside each document. q, k, v: [rows * context, heads, head_dim]."""
    doc = torch.zeros(q.shape[0], dtype=torch.long, device=q.device)
    doc[bounds[1:-1].long()] = 1
    doc = doc.cumsum(0).view(-1, 1, context)
    mask = (doc.transpose(1, 2) == doc) & torch.ones(context, context, dtype=torch.bool, device=q.device).tril()
    q, k, v = (t.view(-1, context, *t.shape[1:]).transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None]).transpose(1, 2).reshape(-1, q.shape[1], q.shape[3])


def varlen_attention(q, k, v, bounds, context):
    """The same by the FlashAttention that PyTorch brings along for CUDA. bounds: [documents + 1], first tokens."""
    return torch.ops.aten._flash_attention_forward(q, k, v, bounds, bounds, context, context, 0.0, True, False)[0]


class Model(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embed = nn.Parameter(torch.empty(cfg.vocab_size, cfg.hidden_size))
        self.norm = nn.Parameter(torch.ones(cfg.hidden_size))
        self.layers = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layers))
        self.attention = masked_attention
        for name, p in self.named_parameters():
            if p.ndim == 2:
                std = 0.02 / math.sqrt(2 * cfg.n_layers) if name.endswith(("o_proj", "down_proj")) else p.shape[1] ** -0.5 if name != "embed" else 0.02
                nn.init.normal_(p, std=std)

    def loss(self, ids, bounds, targets, weights, dtype):
        """Mean cross-entropy of `targets` where `weights` is 1. ids: [tokens] in rows of `context`."""
        c = self.cfg
        position = torch.arange(c.context, device=ids.device, dtype=torch.float32)
        angle = position[:, None] / c.rope_theta ** (torch.arange(0, c.head_dim, 2, device=ids.device) / c.head_dim)
        angle = angle.repeat(ids.shape[0] // c.context, 1)[:, None]
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
        x = F.embedding(ids, self.embed).to(dtype)
        for block in self.layers:
            q, k, v = block.before_attention(x, cos, sin)
            x = block.after_attention(x, self.attention(q, k, v, bounds, c.context))
        return self.head(x, targets, weights)

    def head(self, x, targets, weights):
        x = F.rms_norm(x, (self.cfg.hidden_size,), self.norm.to(x.dtype), self.cfg.norm_eps)
        logits = F.linear(x, self.embed.to(x.dtype)).float()
        losses = F.cross_entropy(logits, targets, reduction="none")
        return (losses * weights).sum() / weights.sum()

    def parts_to_compile(self):
        """Modules and names of their methods."""
        return [(block, name) for block in self.layers for name in ("before_attention", "after_attention")] + [(self, "head")]

    def hf_state(self):
        out = {"model.embed_tokens.weight": self.embed, "model.norm.weight": self.norm}
        where = {"q_proj": "self_attn.", "k_proj": "self_attn.", "v_proj": "self_attn.", "o_proj": "self_attn.", "gate_proj": "mlp.",
                 "up_proj": "mlp.", "down_proj": "mlp.", "input_layernorm": "", "post_attention_layernorm": ""}
        for i, block in enumerate(self.layers):
            out.update({f"model.layers.{i}.{where[n]}{n}.weight": p for n, p in block.named_parameters()})
        return {k: v.detach() for k, v in out.items()}

    def load_hf_state(self, state):
        for name, mine in self.hf_state().items():
            mine.copy_(state[name])


def batch_of(rows, device):
    """(ids, bounds, targets, weights) of some rows, on the device."""
    flat = rows.reshape(-1)
    starts = np.flatnonzero(flat & START)
    bounds = np.union1d(np.append(starts, len(flat)), np.arange(0, len(flat), rows.shape[1])).astype(np.int32)
    ids = (flat & (START - 1)).astype(np.int64)
    targets = np.roll(ids, -1)
    weights = np.roll((flat & TARGET) != 0, -1).astype(np.float32)
    weights[-1] = 0
    tensors = [torch.from_numpy(a) for a in (ids, bounds, targets, weights)]
    if device.type == "cuda":
        return [t.pin_memory().to(device, non_blocking=True) for t in tensors]
    return tensors


@torch.no_grad()
def held_out_loss(model, rows, device, dtype, per_batch):
    losses = [model.loss(*batch_of(rows[i:i + per_batch], device), dtype).item() for i in range(0, len(rows) - per_batch + 1, per_batch)]
    return sum(losses) / len(losses)


def use_fast_kernels(model, rows, device, dtype):
    """Switches to FlashAttention and compiled parts where they work and agree with the plain ones; says so if not."""
    with torch.no_grad():
        plain = model.loss(*batch_of(rows[:4], device), dtype).item()
    model.attention = varlen_attention
    try:
        with torch.no_grad():
            fast = model.loss(*batch_of(rows[:4], device), dtype).item()
        if abs(fast - plain) > 0.02:
            raise RuntimeError(f"loss {fast} instead of {plain}")
    except RuntimeError as error:
        print(f"plain attention, because FlashAttention failed: {error}", flush=True)
        model.attention = masked_attention
    torch._dynamo.config.cache_size_limit = 64
    parts = model.parts_to_compile()
    try:
        for module, name in parts:
            setattr(module, name, torch.compile(getattr(module, name), dynamic=False))
        model.loss(*batch_of(rows, device), dtype).backward()
    except Exception as error:  # whatever the compiler raises, plain PyTorch still works
        print(f"not compiled, because: {error}", flush=True)
        for module, name in parts:
            module.__dict__.pop(name, None)
    model.zero_grad(set_to_none=True)


def train(args, model, rows, device):
    context = model.cfg.context
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters")
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        use_fast_kernels(model, rows[:args.rows_per_step], device, dtype)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    norms = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}], lr=args.lr,
                                  betas=(0.9, 0.95), fused=device.type == "cuda")
    rng = np.random.default_rng(args.seed)
    order, at = rng.permutation(len(rows)), 0
    per_step, begin = args.rows_per_step, time.time()
    for step in range(args.steps):
        progress = max(step / args.steps, (time.time() - begin) / (60 * args.minutes))
        if progress >= 1:
            break
        lr = args.lr * min(1.0, (step + 1) / 300) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))
        for group in optimizer.param_groups:
            group["lr"] = lr
        if at + per_step > len(order):
            order, at = rng.permutation(len(rows)), 0
        loss = model.loss(*batch_of(rows[order[at:at + per_step]], device), dtype)
        at += per_step
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 250 == 0 or step == 20:
            elapsed = time.time() - begin
            print(f"step {step:6d}  progress {progress:.3f}  loss {loss.item():.4f}  {elapsed:6.1f} s  "
                  f"{(step + 1) * per_step * context / elapsed / 1e6:.2f} M tokens/s", flush=True)
    print(f"trained {step} steps, {step * per_step * context / 1e6:.0f} M tokens, in {time.time() - begin:.0f} s")


# ------------------------------------------------------------------------------------------------ command line

def training_arguments(description, stages, documents, steps):
    """A parser of what both training scripts take."""
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", required=True, type=Path)
    p.add_argument("--only", choices=stages, default="all")
    p.add_argument("--documents", type=int, default=documents)
    p.add_argument("--steps", type=int, default=steps)
    p.add_argument("--minutes", type=float, default=60.0, help="stop training, with the schedule completed, after so long")
    p.add_argument("--rows-per-step", type=int, default=64, help="rows of 1024 tokens")
    p.add_argument("--lr", type=float, default=2.5e-3)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    return p


def main():
    p = training_arguments(__doc__, ["all", "check", "golden"], documents=1_900_000, steps=13_400)
    p.add_argument("--quant", choices=["Q6_K", "Q8_0"], default="Q6_K")
    p.add_argument("--golden", type=Path, help="where --only golden writes the golden values")
    p.add_argument("--prompts", type=int, default=200, help="prompts of the instruction check")
    args = p.parse_args()
    cfg, device = Config(), torch.device(args.device)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.only != "all":
        from demo import check
        return getattr(check, args.only)(args, cfg, device)

    begin = time.time()
    tokenizer, rows, held_out = make_text(args, cfg)
    torch.manual_seed(args.seed)
    model = Model(cfg).to(device)
    train(args, model, rows, device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    state = {k: v.clone() for k, v in model.hf_state().items()}
    per_batch = min(args.rows_per_step, len(held_out))
    write_hf(args.out / "hf", state, cfg, tokenizer)
    figures = {"config": asdict(cfg), "trained": held_out_loss(model, held_out, device, dtype, per_batch)}
    for kind, name in (("F16", "demo-f16.gguf"), ("Q8_0", "demo-q8_0.gguf"), ("Q6_K", "demo-q6_k.gguf")):
        write_gguf(args.out / name, state, cfg, tokenizer, kind)
        model.load_hf_state({k: v.to(device) for k, v in read_gguf(args.out / name, cfg).items()})
        figures[kind] = held_out_loss(model, held_out, device, dtype, per_batch)
        print(f"{name}: {(args.out / name).stat().st_size} bytes, held-out loss {figures[kind]:.4f}", flush=True)
    (args.out / f"demo-{args.quant.lower()}.gguf").replace(args.out / "demo.gguf")
    (args.out / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")
    print(f"all done in {time.time() - begin:.0f} s")


if __name__ == "__main__":
    main()
