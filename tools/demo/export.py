"""Writes the trained model: a Hugging Face folder, and GGUF files in F16 and in Q6_K.

`quantize_q6_k` and `read_gguf` are also what the golden values and the evaluation rest on: they use the weights that the
shipped file holds after quantization, not the trained ones.
"""

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

CHAT_TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
                 "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def write_hf(folder, state, cfg, tokenizer):
    """`state`: Hugging Face tensor names to tensors; written as F16."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    eos = tokenizer.token_to_id("<|im_end|>")
    pad = tokenizer.token_to_id("<|endoftext|>")
    save_file({k: v.to(torch.float16).contiguous().cpu() for k, v in state.items()}, folder / "model.safetensors", {"format": "pt"})
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "attention_dropout": 0.0,
              "bos_token_id": None, "eos_token_id": eos, "pad_token_id": pad, "head_dim": cfg.head_dim, "hidden_act": "silu",
              "hidden_size": cfg.hidden_size, "initializer_range": 0.02, "intermediate_size": cfg.intermediate_size,
              "max_position_embeddings": cfg.context, "mlp_bias": False, "num_attention_heads": cfg.n_heads,
              "num_hidden_layers": cfg.n_layers, "num_key_value_heads": cfg.n_kv_heads, "pretraining_tp": 1,
              "rms_norm_eps": cfg.norm_eps, "rope_scaling": None, "rope_theta": cfg.rope_theta, "tie_word_embeddings": True,
              "torch_dtype": "float16", "use_cache": True, "vocab_size": cfg.vocab_size}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_tokenizer(folder, tokenizer, cfg.context)


def write_tokenizer(folder, tokenizer, context):
    """What a Hugging Face folder has beside weights and config.json."""
    eos, pad = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos, "pad_token_id": pad, "do_sample": True,
                                                               "temperature": 0.7, "top_p": 0.95}, indent=2) + "\n")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": context, "add_bos_token": False, "add_eos_token": False,
        "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None,
        "clean_up_tokenization_spaces": False, "chat_template": CHAT_TEMPLATE}, indent=2) + "\n")


def _interleave(w, n_heads):
    """Reorders the rows of q_proj or k_proj, [n_heads * head_dim, hidden], for GGUF's llama architecture.

    Hugging Face rotates element i of a head with element i + head_dim / 2, GGUF rotates neighbours.
    """
    head_dim = w.shape[0] // n_heads
    return w.reshape(n_heads, 2, head_dim // 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def _separate(w, n_heads):
    """The inverse of `_interleave`."""
    head_dim = w.shape[0] // n_heads
    return w.reshape(n_heads, head_dim // 2, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


_LAYER_NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
                "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
                "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def _names(n_layers):
    """GGUF tensor names to Hugging Face ones."""
    names = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    for i in range(n_layers):
        names.update({f"blk.{i}.{g}.weight": f"model.layers.{i}.{h}.weight" for g, h in _LAYER_NAMES.items()})
    return names


def quantize_q6_k(x):
    """Float32 [rows, columns], columns a multiple of 256, to Q6_K blocks as uint8 [rows, columns / 256 * 210].

    Every 16 weights share a scale. Of some candidate scales around max / 32, the one with the least squared error is
    taken, after the scale was fitted to the rounded values; then the 16 scales of a block are rounded to 8 bits.
    """
    sub = x.reshape(-1, 16, 16).astype(np.float32)  # [blocks, sub-blocks, weights]
    extreme = np.take_along_axis(sub, np.abs(sub).argmax(-1)[..., None], -1)[..., 0]
    best_error = np.full(extreme.shape, np.inf, np.float32)
    scale = np.zeros_like(extreme)
    for step in np.linspace(-36.0, -28.0, 33):
        s = extreme / step
        inverse = np.divide(1.0, s, out=np.zeros_like(s), where=s != 0)
        q = np.clip(np.rint(sub * inverse[..., None]), -32, 31)
        qq = (q * q).sum(-1)
        fitted = np.divide((sub * q).sum(-1), qq, out=np.zeros_like(s), where=qq > 0)
        error = ((sub - fitted[..., None] * q) ** 2).sum(-1)
        better = error < best_error
        best_error = np.where(better, error, best_error)
        scale = np.where(better, fitted, scale)
    widest = np.take_along_axis(scale, np.abs(scale).argmax(-1)[:, None], -1)[:, 0]
    d = (widest / -128.0).astype(np.float16)
    df = d.astype(np.float32)[:, None]
    sc = np.clip(np.rint(np.divide(scale, df, out=np.zeros_like(scale), where=df != 0)), -128, 127)
    step = (df * sc)[..., None]
    q = np.clip(np.rint(np.divide(sub, step, out=np.zeros_like(sub), where=step != 0)), -32, 31).astype(np.int8) + 32
    q = q.reshape(-1, 2, 4, 32).astype(np.uint8)  # two halves of four runs of 32 weights
    ql = np.concatenate([(q[:, :, 0] & 15) | ((q[:, :, 2] & 15) << 4), (q[:, :, 1] & 15) | ((q[:, :, 3] & 15) << 4)], -1)
    qh = (q[:, :, 0] >> 4) | ((q[:, :, 1] >> 4) << 2) | ((q[:, :, 2] >> 4) << 4) | ((q[:, :, 3] >> 4) << 6)
    blocks = np.concatenate([ql.reshape(len(q), 128), qh.reshape(len(q), 64), sc.astype(np.int8).view(np.uint8), d[:, None].view(np.uint8)], 1)
    return blocks.reshape(x.shape[0], -1)


def write_gguf(path, state, cfg, tokenizer, kind):
    """`kind`: "F16", "Q8_0" or "Q6_K", the type of every matrix; norms stay F32."""
    w = gguf.GGUFWriter(str(path), "llama")
    file_type = {"F16": gguf.LlamaFileType.MOSTLY_F16, "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0, "Q6_K": gguf.LlamaFileType.MOSTLY_Q6_K}[kind]
    w.add_type("model")
    w.add_name("realizar demo")
    w.add_basename("realizar-demo")
    w.add_size_label("7M")
    w.add_description("A tiny model that tells small stories; trained from nothing on generated text by tools/train_demo.py.")
    w.add_license("mit OR apache-2.0")
    w.add_languages(["en"])
    w.add_context_length(cfg.context)
    w.add_embedding_length(cfg.hidden_size)
    w.add_block_count(cfg.n_layers)
    w.add_feed_forward_length(cfg.intermediate_size)
    w.add_head_count(cfg.n_heads)
    w.add_head_count_kv(cfg.n_kv_heads)
    w.add_key_length(cfg.head_dim)
    w.add_value_length(cfg.head_dim)
    w.add_rope_dimension_count(cfg.head_dim)
    w.add_rope_freq_base(cfg.rope_theta)
    w.add_layer_norm_rms_eps(cfg.norm_eps)
    w.add_vocab_size(cfg.vocab_size)
    w.add_file_type(file_type)
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)

    vocab = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    model = json.loads(tokenizer.to_str())["model"]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list([token for token, _ in vocab])
    w.add_token_types([gguf.TokenType.CONTROL if token in SPECIAL_TOKENS else gguf.TokenType.NORMAL for token, _ in vocab])
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in model["merges"]])
    w.add_eos_token_id(tokenizer.token_to_id("<|im_end|>"))
    w.add_pad_token_id(tokenizer.token_to_id("<|endoftext|>"))
    w.add_add_bos_token(False)
    w.add_chat_template(CHAT_TEMPLATE)

    for name, hf_name in _names(cfg.n_layers).items():
        data = state[hf_name].float().cpu().numpy()
        if ".attn_q." in name or ".attn_k." in name:
            data = _interleave(data, cfg.n_heads if ".attn_q." in name else cfg.n_kv_heads)
        if data.ndim == 1:
            w.add_tensor(name, data.astype(np.float32))
        elif kind == "F16":
            w.add_tensor(name, data.astype(np.float16))
        elif kind == "Q8_0":
            w.add_tensor(name, gguf.quants.quantize(data, gguf.GGMLQuantizationType.Q8_0), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            w.add_tensor(name, quantize_q6_k(data), raw_dtype=gguf.GGMLQuantizationType.Q6_K)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def read_gguf(path, cfg):
    """The file's weights, dequantized to float32 under their Hugging Face names."""
    names = _names(cfg.n_layers)
    state = {}
    for t in gguf.GGUFReader(str(path)).tensors:
        data = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).reshape([int(n) for n in reversed(t.shape)])
        if ".attn_q." in t.name or ".attn_k." in t.name:
            data = _separate(data, cfg.n_heads if ".attn_q." in t.name else cfg.n_kv_heads)
        state[names[t.name]] = torch.from_numpy(np.ascontiguousarray(data))
    return state
