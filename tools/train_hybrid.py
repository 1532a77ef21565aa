"""Trains a tiny model of the shape of Qwen 3.5 MoE with a drafting layer, on the demo model's text.

    python tools/train_hybrid.py --out build/hybrid                # everything; needs one GPU and a few minutes
    python tools/train_hybrid.py --out build/hybrid --steps 3 --documents 300 --rows-per-step 1 --device cpu   # does it run?
    python tools/train_hybrid.py --out build/hybrid --only check   # against transformers

Writes a Hugging Face folder, `hf/`, in bf16, and figures.json. Needs what train_demo.py needs.
"""

import copy
import json
import random
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from demo.conversation import document
from demo.export import write_tokenizer
from demo.hybrid import AttentionLayer, Config, Model, draft_agreement
from train_demo import START, batch_of, make_text, masked_attention, render, train, training_arguments

N_AHEAD = 3


@torch.no_grad()
def evaluate(model, rows, device, dtype, per_batch):
    """Means over held-out rows, in nats per token, and shares of drafts."""
    losses, drafts = [], torch.zeros(N_AHEAD, 3)
    # Compiling anew for evaluation would take longer than it.
    with torch.compiler.set_stance("force_eager"):
        for i in range(0, len(rows) - per_batch + 1, per_batch):
            batch = batch_of(rows[i:i + per_batch], device)
            losses.append([loss.item() for loss in model.losses(*batch, dtype)])
            drafts += draft_agreement(model, batch, dtype, N_AHEAD)
    loss, draft_loss, uneven = np.mean(losses, 0)
    made, agree, all_agree = drafts.T
    return {
        "loss": loss, "draft_loss": draft_loss, "unevenness": uneven / (model.cfg.n_layers + 1), "drafts": made.int().tolist(),
        "agree": (agree / made).tolist(), "all_agree": (all_agree / made).tolist(),
    }


def write_hf(folder, state, cfg, tokenizer):
    """`state`: as `Model.hf_state`; written as BF16."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: v.to(torch.bfloat16).contiguous().cpu() for k, v in state.items()}, folder / "model.safetensors", {"format": "pt"})
    kinds = ["full_attention" if (i + 1) % cfg.attention_every == 0 else "linear_attention" for i in range(cfg.n_layers)]
    half = cfg.rotary_dim // 2
    # Sections are for images: in text, all have the same position.
    sections = [half - 2 * (half // 3), half // 3, half // 3]
    config = {
        "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": None, "dtype": "bfloat16", "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
        "pad_token_id": tokenizer.token_to_id("<|endoftext|>"), "head_dim": cfg.head_dim, "hidden_act": "silu",
        "hidden_size": cfg.hidden_size, "initializer_range": 0.02, "layer_types": kinds, "linear_conv_kernel_dim": cfg.conv_width,
        "linear_key_head_dim": cfg.delta_dim, "linear_num_key_heads": cfg.n_k_heads, "linear_num_value_heads": cfg.n_v_heads,
        "linear_value_head_dim": cfg.delta_dim, "max_position_embeddings": cfg.context, "moe_intermediate_size": cfg.expert_size,
        "mtp_num_hidden_layers": 1, "num_attention_heads": cfg.n_heads, "num_experts": cfg.n_experts,
        "num_experts_per_tok": cfg.n_experts_used, "num_hidden_layers": cfg.n_layers, "num_key_value_heads": cfg.n_kv_heads,
        "output_router_logits": False, "rms_norm_eps": cfg.norm_eps,
        "rope_parameters": {"mrope_section": sections, "partial_rotary_factor": cfg.rotary_dim / cfg.head_dim,
                            "rope_theta": cfg.rope_theta, "rope_type": "default"},
        "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": cfg.expert_size, "tie_word_embeddings": True, "use_cache": True,
        "vocab_size": cfg.vocab_size,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_tokenizer(folder, tokenizer, cfg.context)


# ------------------------------------------------------------------------------------------------ against transformers

def draft_logits(reference, state, ids):
    """Logits of the drafting layer, made of the reference library's parts. `ids`: [1, n_tokens]."""
    layer = copy.deepcopy(reference.model.layers[-1])
    for name, p in layer.named_parameters():
        if ".experts." in name:
            def experts(part):
                return torch.stack([state[f"mtp.layers.0.mlp.experts.{i}.{part}.weight"] for i in range(len(p))])
            p.data = experts("down_proj") if "down" in name else torch.cat([experts("gate_proj"), experts("up_proj")], 1)
        else:
            p.data = state[f"mtp.layers.0.{name}"]

    def norm(x, name):
        one = copy.deepcopy(reference.model.norm)
        one.weight.data = state[f"mtp.{name}.weight"]
        return one(x)

    hidden = reference.model(ids, use_cache=False).last_hidden_state
    before = torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :-1]], 1)
    both = [norm(reference.model.embed_tokens(ids), "pre_fc_norm_embedding"), norm(before, "pre_fc_norm_hidden")]
    x = torch.cat(both, -1) @ state["mtp.fc.weight"].T
    positions = torch.arange(ids.shape[1])[None]
    future = torch.full((ids.shape[1], ids.shape[1]), -torch.inf).triu(1)[None, None]
    x = layer(x, attention_mask=future, position_ids=positions, position_embeddings=reference.model.rotary_emb(x, positions))
    return reference.lm_head(norm(x, "norm"))[0]


@torch.no_grad()
def check(folder, cfg):
    """Compares the folder's logits with transformers', of two documents that share a row here and are alone there."""
    from transformers import Qwen3_5MoeForCausalLM
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    cfg.vocab_size = tokenizer.get_vocab_size()
    reference = Qwen3_5MoeForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    state = {k: v.float() for k, v in load_file(folder / "model.safetensors").items()}
    model = Model(cfg, masked_attention)
    model.load_hf_state(state)

    rng = random.Random("check")
    docs = [tokenizer.encode(render(document(rng))).ids[:cfg.context // 2 - 30] for _ in range(2)]
    row, at = np.zeros((1, cfg.context), np.uint16), 0
    for ids in docs:
        row[0, at:at + len(ids)] = ids
        row[0, at] |= START
        at += len(ids)
    row[0, at] |= START
    ids, bounds, _, _ = batch_of(row, torch.device("cpu"))
    places = model.places(len(ids), bounds, torch.float32)
    x, _ = model.hidden(ids, bounds, places, torch.float32)
    y, _ = model.drafted(ids, x, bounds, places)
    at = 0
    for one in docs:
        tokens = torch.tensor([one])
        for name, mine, theirs in (("model", x, reference(tokens, use_cache=False).logits[0]),
                                   ("drafting layer", y, draft_logits(reference, state, tokens))):
            logits = mine[at:at + len(one)] @ model.embed.T
            difference = ((logits - theirs).abs().max() / theirs.abs().max()).item()
            print(f"{name}, {len(one)} tokens: largest relative difference {difference:.1e}")
            assert difference < 1e-4, "not the model of the reference library"
        at += len(one)


# ------------------------------------------------------------------------------------------------ command line

def main():
    parser = training_arguments(__doc__, ["all", "check"], documents=800_000, steps=1_640)
    parser.set_defaults(lr=2e-3)
    args = parser.parse_args()
    cfg, device = Config(), torch.device(args.device)
    if args.only == "check":
        return check(args.out / "hf", cfg)
    args.out.mkdir(parents=True, exist_ok=True)
    begin = time.time()
    tokenizer, rows, held_out = make_text(args, cfg)
    torch.manual_seed(args.seed)
    model = Model(cfg, masked_attention).to(device)
    train(args, model, rows, device)
    write_hf(args.out / "hf", model.hf_state(), cfg, tokenizer)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    figures = {"config": asdict(cfg), **evaluate(model, held_out, device, dtype, min(8, args.rows_per_step, len(held_out)))}
    (args.out / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")
    print(f"held out: loss {figures['loss']:.4f}, of the drafting layer {figures['draft_loss']:.4f}; "
          f"unevenness of experts {figures['unevenness']:.3f}")
    for ahead, (n, agree, all_agree) in enumerate(zip(figures["drafts"], figures["agree"], figures["all_agree"]), 1):
        print(f"{ahead} ahead: {n} drafts, {agree:.4f} of them the model's best token, {all_agree:.4f} with those before")
    print(f"all done in {time.time() - begin:.0f} s")


if __name__ == "__main__":
    main()
