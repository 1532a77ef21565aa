#!/usr/bin/env python3
"""Make the tiny random models that the architecture tests compare against.

    python tools/make_fixtures.py                 # all of them
    python tools/make_fixtures.py --only gemma2   # one (may be repeated)
    python tools/make_fixtures.py --check         # regenerate in memory, compare with what is committed
    python tools/make_fixtures.py --llama-cpp DIR # also those whose GGUF file llama.cpp's own converter writes

For every variant in VARIANTS the script builds the reference model of the `transformers` library with random weights drawn from
a fixed seed and writes under crates/model/tests/data/arch/<name>/:

    hf/                  Hugging Face folder: config.json, generation_config.json, tokenizer.json, tokenizer_config.json, model.safetensors
    model.gguf           the same weights as GGUF, F32, with the names, metadata and weight transformations of llama.cpp's converter;
    golden.json          prompts, greedy continuations, gap between the two best logits at each greedy step, notes
    logits.f32           little-endian f32 logits at every position of every prompt, one prompt after the other, [positions, vocab]
    draft_logits.f32     of a model with a layer that drafts: that layer's, made of the reference library's parts, in the same form

Where a variant says `converter`, model.gguf comes from the convert_hf_to_gguf.py of a llama.cpp source tree (`--llama-cpp`; that of the
PyPI source package llama-cpp-python 0.3.36), told only that the tokenizer is GPT-2's; otherwise from this script's own tables.

Some variants have extra forms of the same model (`hf-sharded/`, a GGUF in two parts) and some exist as Hugging Face folder only,
because GGUF cannot say what they test; golden.json lists the forms.

The reference runs in float64: transformers pins parts of its forward pass (norms, softmax, RoPE tables) to float32, so those pins
are lifted while the reference runs. The largest difference between that and the plain float32 model is recorded in golden.json.
A seed is accepted only if the model makes a good test: every tensor changes the logits noticeably, the greedy choices are not
ties, no special token appears, and routers are not near a tie. The first good seed counting from the variant's own is used.

Made with (any change of these may change bits): python 3.11, torch 2.15.0, transformers 5.23.0, tokenizers 0.23.3,
safetensors 0.8.0, gguf 0.19.0, numpy 2.4.6, accelerate (to load MXFP4); llama.cpp as in the source distribution of llama_cpp_python 0.3.36 on PyPI.
"""

import argparse
import contextlib
import filecmp
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file

DATA = Path(__file__).resolve().parent.parent / "crates/model/tests/data/arch"
GREEDY_TOKENS = 24
MIN_GAP = 0.01  # of the logits' standard deviation

# ---------------------------------------------------------------------------------------------------------------- tokenizer

MERGES = ["t h", "th e", "Ġ the", "i n", "e r", "a n", "o n", "Ġ a", "an d", "Ġ w", "o u", "in g"]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
ALPHABET = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
TOKENS = ALPHABET + [merge.replace(" ", "") for merge in MERGES] + SPECIALS
VOCAB = len(TOKENS)
END, IM_START, IM_END, PAD = (TOKENS.index(token) for token in SPECIALS)
TEXT = "The owl and the fox went on, singing: 7 stars, 12 moons & one sea... \"Why?\" asked the other; nobody knew."
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer():
    """Byte-level BPE with GPT-2's pre-tokenizer: all 256 bytes, a few merges, four special tokens."""
    ids = {token: i for i, token in enumerate(TOKENS[: VOCAB - len(SPECIALS)])}
    bpe = tokenizers.models.BPE(vocab=ids, merges=[tuple(merge.split(" ")) for merge in MERGES])
    tokenizer = tokenizers.Tokenizer(bpe)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIALS)
    return tokenizer


TOKENIZER = make_tokenizer()


def write_tokenizer(folder, chat_template):
    """tokenizer.json and its config; `chat_template` is None, "config" (inside the config) or "file" (chat_template.jinja)."""
    (folder / "tokenizer.json").write_text(TOKENIZER.to_str(pretty=False) + "\n")
    config = {
        "added_tokens_decoder": {
            str(TOKENS.index(token)): {
                "content": token, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True,
            }
            for token in SPECIALS
        },
        "bos_token": SPECIALS[0],
        "clean_up_tokenization_spaces": False,
        "eos_token": SPECIALS[2] if chat_template else SPECIALS[0],
        "model_max_length": 256,
        "pad_token": SPECIALS[3],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    if chat_template == "config":
        config["chat_template"] = CHATML
    elif chat_template == "file":
        (folder / "chat_template.jinja").write_text(CHATML)
    write_json(folder / "tokenizer_config.json", config)


# ----------------------------------------------------------------------------------------------------------------- variants

# Norm epsilons are larger than any real model's, so that a wrong one shows.
COMMON = dict(
    vocab_size=VOCAB, bos_token_id=END, eos_token_id=END, pad_token_id=PAD, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-3,
)
SMALL = dict(COMMON, hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
             tie_word_embeddings=True)


class Variant:
    """One fixture: the reference class, its configuration and how its files are laid out.

    prompts: lengths in tokens. legacy_rope: write config.json in the form older than transformers 5. hf_only: GGUF cannot
    express it. gguf_prompts: how many of the prompts the GGUF form agrees on (all by default). ternary: linear weights of three
    values. cached: greedy decoding with a key-value cache rather than by whole passes. converter: llama.cpp's converter writes the
    GGUF. vision: the configuration of an image encoder, beside which the model is the text part of a multimodal one; around: what
    else the multimodal configuration states. wrapped: also as the text part of a model that reads images. mxfp4: experts
    of values that MXFP4 has, and stored so. fp8: linear weights of values that FP8 has with scales of blocks, and stored so. published: config.json in the form of NVIDIA's and IBM's folders. mtp: add a layer that only drafts tokens. notes: for golden.json.
    """

    def __init__(self, kind, config, seed, prompts=(6, 20), legacy_rope=False, chat_template=None, hf_only=False, sharded=False,
                 gguf_prompts=None, ternary=False, cached=False, converter=False, vision=None, around=None,
                 wrapped=False, mxfp4=False, fp8=False, mtp=False, published=False, notes=None):
        self.kind, self.config, self.seed, self.prompts = kind, config, seed, prompts
        self.legacy_rope, self.chat_template, self.hf_only, self.sharded = legacy_rope, chat_template, hf_only, sharded
        self.gguf_prompts = len(prompts) if gguf_prompts is None else gguf_prompts
        self.ternary, self.cached, self.notes, self.mxfp4, self.mtp = ternary, cached, notes, mxfp4, mtp
        self.published, self.fp8 = published, fp8
        self.converter, self.vision, self.around, self.wrapped = converter, vision, around or {}, wrapped


def rope(theta=10000.0, kind="default", **rest):
    return dict(rope_type=kind, rope_theta=theta, **rest)


LONGROPE = rope(
    kind="longrope", original_max_position_embeddings=40, short_factor=[1.0, 1.1, 1.3, 1.6], long_factor=[1.0, 2.5, 6.0, 11.0],
)
THREE_HEADS = dict(COMMON, hidden_size=24, intermediate_size=28, num_attention_heads=3, num_key_value_heads=1)
FOUR_HEADS = dict(COMMON, hidden_size=24, intermediate_size=28, head_dim=8)
IMAGE_TOKENS = dict(image_token_id=PAD, video_token_id=PAD, vision_start_token_id=PAD, vision_end_token_id=PAD)
LOCAL, GLOBAL = "sliding_attention", "full_attention"
FIVE_LAYERS = dict(COMMON, hidden_size=32, intermediate_size=28, num_hidden_layers=5)
GEMMA2 = dict(
    FOUR_HEADS, query_pre_attn_scalar=8, sliding_window=8, rope_parameters=rope(), attn_logit_softcapping=3.0,
    final_logit_softcapping=2.5, rms_norm_eps=2e-3, tie_word_embeddings=True,
)
BITNET = dict(THREE_HEADS, rope_parameters=rope(500000.0), tie_word_embeddings=True)

GPT_OSS = dict(
    FOUR_HEADS, num_hidden_layers=3, intermediate_size=20, num_local_experts=5, num_experts_per_tok=3, sliding_window=8,
    rope_parameters=rope(100.0, "yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0, truncate=False),
)
GLM4_MOE = dict(
    FOUR_HEADS, num_hidden_layers=3, moe_intermediate_size=12, first_k_dense_replace=1, n_routed_experts=8, num_experts_per_tok=3,
    n_shared_experts=1, n_group=1, topk_group=1, routed_scaling_factor=1.5, norm_topk_prob=True, use_qk_norm=False, attention_bias=True,
    rope_parameters=rope(partial_rotary_factor=0.5),
)
QWEN2_MOE = dict(
    THREE_HEADS, num_hidden_layers=3, moe_intermediate_size=12, shared_expert_intermediate_size=20, num_experts=6, num_experts_per_tok=3,
    norm_topk_prob=False, rope_parameters=rope(1e6),
)
DELTA_MOE = dict(
    {key: value for key, value in FOUR_HEADS.items() if key != "intermediate_size"}, num_hidden_layers=3, linear_num_key_heads=2,
    linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8, linear_conv_kernel_dim=4, moe_intermediate_size=12,
    shared_expert_intermediate_size=20, num_experts=5, num_experts_per_tok=2,
    layer_types=["linear_attention", "full_attention", "linear_attention"],
)

GEMMA4 = dict(
    FOUR_HEADS, global_head_dim=16, sliding_window=8, vocab_size_per_layer_input=VOCAB, final_logit_softcapping=4.0,
    tie_word_embeddings=True,
    rope_parameters={GLOBAL: rope(1000.0, "proportional", partial_rotary_factor=0.25), LOCAL: rope(10.0)},
)
# Numbers of heads, and of elements of each kind, all differ.
LATENT = dict(
    COMMON, hidden_size=24, intermediate_size=28, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=3, kv_lora_rank=24,
    q_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10, moe_intermediate_size=12, first_k_dense_replace=1,
    n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=2, routed_scaling_factor=1.5,
)
DEEPSEEK_YARN = dict(factor=4.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0)
GRANITE_MOE = dict(
    COMMON, hidden_size=32, intermediate_size=12, tie_word_embeddings=False, attention_bias=False, embedding_multiplier=3.0,
    residual_multiplier=0.4, attention_multiplier=0.2, logits_scaling=0.5,
)
GRANITE_HYBRID = dict(
    GRANITE_MOE, num_hidden_layers=3, layer_types=["linear_attention", "full_attention", "linear_attention"], mamba_n_heads=4,
    mamba_d_head=16, mamba_d_state=10, mamba_chunk_size=8, position_embedding_type="nope",
)
NEMOTRON3 = dict(
    {key: value for key, value in COMMON.items() if key not in ("rms_norm_eps", "num_hidden_layers")}, time_step_min=1e-30, hidden_size=24, num_attention_heads=3, num_key_value_heads=1, head_dim=10, mamba_num_heads=4, mamba_head_dim=16, n_groups=2,
    ssm_state_size=10, chunk_size=8, mlp_hidden_act="relu2", layers_block_type=["linear_attention", "moe", "full_attention", "moe"],
    moe_intermediate_size=12, moe_shared_expert_intermediate_size=20, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1,
    n_group=1, topk_group=1, routed_scaling_factor=2.5, norm_topk_prob=True,
)
VARIANTS = {
    "deepseek2-lite": Variant(
        "DeepseekV2", dict(
            LATENT, q_lora_rank=None, n_group=1, topk_group=1, topk_method="greedy", norm_topk_prob=False, routed_scaling_factor=1.0,
            max_position_embeddings=64, rope_parameters=rope(100.0, "yarn", mscale=0.707, mscale_all_dim=0.707, **DEEPSEEK_YARN),
        ), 41, converter=True, legacy_rope=True, notes="latent attention with one matrix for queries, as in DeepSeek-V2-Lite; YaRN",
    ),
    "deepseek2": Variant(
        "DeepseekV2", dict(
            LATENT, n_group=4, topk_group=2, topk_method="group_limited_greedy", norm_topk_prob=False, rope_parameters=rope(100.0),
            attention_bias=True,
        ), 42, hf_only=True,
        notes="queries from a narrow matrix; groups of experts are compared by their largest scores, for which llama.cpp takes the sum of two; "
        "biases in attention, which llama.cpp's converter does not know",
    ),
    "deepseek3": Variant(
        "DeepseekV3", dict(
            LATENT, n_group=4, topk_group=2, norm_topk_prob=True, max_position_embeddings=64,
            rope_parameters=rope(100.0, "yarn", mscale=1.0, mscale_all_dim=1.0, **DEEPSEEK_YARN),
        ), 43, converter=True, mtp=True, notes="sigmoid router with biases and groups, and a layer that only drafts tokens",
    ),
    "glm4moelite": Variant(
        "Glm4MoeLite", dict(
            LATENT, n_group=1, topk_group=1, norm_topk_prob=True, n_routed_experts=5, n_shared_experts=1, rope_parameters=rope(1000.0),
        ), 44, prompts=(6, 12), converter=True, notes="GLM-4.7-Flash",
    ),
    "mistral4": Variant(
        "Mistral3", dict(
            LATENT, model_type="mistral4", first_k_dense_replace=0, n_routed_experts=5, n_shared_experts=1, n_group=1, topk_group=1,
            norm_topk_prob=True, max_position_embeddings=64,
            rope_parameters=rope(
                100.0, "yarn", mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1, partial_rotary_factor=0.4, **DEEPSEEK_YARN,
            ),
        ), 45, prompts=(6, 24), converter=True,
        vision=dict(
            model_type="pixtral", hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, head_dim=8,
            patch_size=2, image_size=4, rope_parameters=rope(),
        ),
        around=dict(image_token_index=PAD),
        notes="the text part of a multimodal model: latent attention with queries that grow from position 16 on, of which llama.cpp's "
        "converter says nothing; all experts in one tensor",
    ),
    "llama": Variant(
        "Llama", dict(THREE_HEADS, num_key_value_heads=3, tie_word_embeddings=True, rope_parameters=rope()), 1, chat_template="config",
    ),
    "llama-gqa": Variant(
        "Llama", dict(FOUR_HEADS, attention_bias=True, mlp_bias=True, rope_parameters=rope()), 2,
        notes="biases on q, k, v, o, gate, up and down; head_dim is not hidden / heads",
    ),
    "llama-linear": Variant("Llama", dict(SMALL, rope_parameters=rope(kind="linear", factor=2.5)), 3, legacy_rope=True, sharded=True),
    "llama-dynamic": Variant(
        "Llama", dict(SMALL, max_position_embeddings=40, rope_parameters=rope(kind="dynamic", factor=4.0)), 4,
        prompts=(6, 44), gguf_prompts=1, cached=True,
        notes="prompt 1 is longer than max_position_embeddings: its logits are those of one pass over the whole prompt, and each greedy "
        "step rotates only the new token with the base of the length so far. GGUF has no key for dynamic scaling, so the GGUF form is "
        "unscaled and agrees with prompt 0 only",
    ),
    "llama-yarn": Variant(
        "Llama", dict(
            SMALL, max_position_embeddings=2048,
            rope_parameters=rope(100.0, "yarn", factor=4.0, original_max_position_embeddings=512, beta_fast=32.0, beta_slow=1.0),
        ), 5,
        notes="llama.cpp does not read beta_fast and beta_slow for this architecture, so they are its defaults",
    ),
    "llama3": Variant(
        "Llama", dict(
            SMALL, intermediate_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
            rope_parameters=rope(20.0, "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                 original_max_position_embeddings=32),
        ), 6, legacy_rope=True,
    ),
    "mistral": Variant(
        "Mistral", dict(SMALL, sliding_window=8, rope_parameters=rope(), tie_word_embeddings=False), 7,
        notes="the GGUF carries llama.attention.sliding_window, which llama.cpp does not read for this architecture",
    ),
    "mixtral": Variant(
        "Mixtral", dict(FOUR_HEADS, intermediate_size=16, num_local_experts=4, num_experts_per_tok=2, rope_parameters=rope(1e6),
                        tie_word_embeddings=True), 8,
    ),
    "qwen2": Variant(
        "Qwen2", dict(THREE_HEADS, use_sliding_window=False, sliding_window=4, max_window_layers=1, rope_parameters=rope(1e6)), 9,
        chat_template="file", notes="config.json names a sliding window that use_sliding_window=false switches off",
    ),
    "qwen3": Variant("Qwen3", dict(FOUR_HEADS, rope_parameters=rope(1e6), tie_word_embeddings=True), 10),
    "qwen3-fp8": Variant(
        "Qwen3", dict(FOUR_HEADS, intermediate_size=32, rope_parameters=rope(1e6), tie_word_embeddings=True), 46, hf_only=True, fp8=True,
        notes="matrices in FP8 with scales of blocks, as in the published Qwen3-FP8 and DeepSeek-V3",
    ),
    "qwen3moe": Variant(
        "Qwen3Moe", dict(FOUR_HEADS, moe_intermediate_size=12, num_experts=6, num_experts_per_tok=3, norm_topk_prob=True,
                         decoder_sparse_step=1, rope_parameters=rope(1e6), tie_word_embeddings=True), 11,
    ),
    "phi2": Variant(
        "Phi", dict(THREE_HEADS, intermediate_size=96, num_key_value_heads=3, layer_norm_eps=1e-3,
                    rope_parameters=rope(partial_rotary_factor=0.5)), 12, legacy_rope=True,
    ),
    "phi3": Variant(
        "Phi3", dict(THREE_HEADS, sliding_window=12, original_max_position_embeddings=256, rope_parameters=rope()), 13,
        notes="the GGUF carries phi3.attention.sliding_window, which llama.cpp reads but ignores",
    ),
    "phi3-longrope": Variant(
        "Phi3", dict(THREE_HEADS, original_max_position_embeddings=40, max_position_embeddings=160, rope_parameters=LONGROPE,
                     tie_word_embeddings=True), 14,
        prompts=(6, 44), legacy_rope=True,
        notes="prompt 0 and its continuation stay below original_max_position_embeddings (short factors), prompt 1 starts above it "
        "(long factors); llama.cpp chooses by the size of its context instead",
    ),
    "gemma2": Variant("Gemma2", GEMMA2, 15),
    "gemma2-scalar": Variant(
        "Gemma2", dict(GEMMA2, query_pre_attn_scalar=24), 16, hf_only=True,
        notes="query_pre_attn_scalar differs from head_dim, which GGUF cannot say",
    ),
    "gemma3": Variant(
        "Gemma3", dict(
            FOUR_HEADS, num_hidden_layers=3, query_pre_attn_scalar=8, sliding_window=8, rms_norm_eps=2e-3, tie_word_embeddings=True,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters={"full_attention": rope(1000.0, "linear", factor=2.0), "sliding_attention": rope(10.0)},
        ), 17,
    ),
    "gemma4": Variant(
        "Gemma4", dict(
            GEMMA4, num_hidden_layers=7, num_kv_shared_layers=3, use_double_wide_mlp=True, hidden_size_per_layer_input=6,
            layer_types=[LOCAL, GLOBAL, LOCAL, GLOBAL, LOCAL, LOCAL, GLOBAL],
        ), 39, converter=True, wrapped=True,
        notes="the last three layers read the keys and values of layers 2 and 3, and have wider feed-forward blocks; per-layer embeddings; "
        "hf-wrapped has the text model under a prefix, beside tensors for images and sound",
    ),
    "gemma4-moe": Variant(
        "Gemma4", dict(
            GEMMA4, num_hidden_layers=4, hidden_size_per_layer_input=0, attention_k_eq_v=True, num_global_key_value_heads=1,
            enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=12, layer_types=[LOCAL, GLOBAL, LOCAL, GLOBAL],
        ), 40, prompts=(6, 12), converter=True,
        notes="experts beside a dense block; one matrix for keys and values of layers without a window, which have fewer heads",
    ),
    "gpt2": Variant(
        "GPT2", dict(vocab_size=VOCAB, bos_token_id=END, eos_token_id=END, pad_token_id=PAD, n_embd=24, n_layer=2, n_head=3,
                     n_positions=64, layer_norm_epsilon=1e-3, tie_word_embeddings=True), 18,
    ),
    "bitnet": Variant(
        "BitNet", dict(BITNET, hidden_act="silu"), 19, ternary=True,
        notes="ternary weights times one scale per matrix, stored as plain floats; in the GGUF layer 1 keeps -1/0/1 and puts the scale "
        "into .scale tensors",
    ),
    "bitnet-relu2": Variant(
        "BitNet", dict(BITNET, hidden_act="relu2"), 20, ternary=True, hf_only=True,
        notes="squared ReLU, as the published model; the GGUF architecture `bitnet` means SiLU",
    ),
    "olmo2": Variant(
        "Olmo2", dict(COMMON, hidden_size=32, intermediate_size=28, num_hidden_layers=3, rope_parameters=rope(5e5)), 21,
        notes="no norms before the blocks; q and k are normalized over all heads together",
    ),
    "glm4": Variant(
        "Glm4", dict(FOUR_HEADS, num_hidden_layers=3, attention_bias=True, rope_parameters=rope(partial_rotary_factor=0.5)), 22,
        notes="half of each head turns, in interleaved pairs; norms before and after each block; gate and up in one matrix",
    ),
    "qwen35": Variant(
        "Qwen3_5", dict(
            FOUR_HEADS, num_hidden_layers=5, linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=12,
            linear_value_head_dim=12, linear_conv_kernel_dim=4, tie_word_embeddings=True,
            layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention"],
            rope_parameters=rope(1000.0, partial_rotary_factor=0.5, mrope_section=[1, 1, 0]),
        ), 23, prompts=(6, 70), wrapped=True, mtp=True,
        notes="layers of the gated delta rule with three value heads for each key head, which GGUF stores in another order; a gate on "
        "attention's output; hf-wrapped has the text model under a prefix, beside tensors for images and for drafts",
    ),
    "lfm2": Variant(
        "Lfm2", dict(
            {key: value for key, value in COMMON.items() if key != "rms_norm_eps"}, norm_eps=1e-3, hidden_size=24, intermediate_size=40,
            block_multiple_of=4, block_ffn_dim_multiplier=1.1, num_hidden_layers=5, conv_L_cache=3,
            layer_types=["conv", "conv", "full_attention", "conv", "full_attention"], rope_parameters=rope(1000.0),
        ), 24, prompts=(6, 20),
        notes="gated convolutions over three tokens; the width of the feed-forward blocks is 28, rounded from 40 by the rules of the family",
    ),
    "lfm2moe": Variant(
        "Lfm2Moe", dict(
            {key: value for key, value in FOUR_HEADS.items() if key not in ("rms_norm_eps", "head_dim")}, norm_eps=1e-3,
            num_hidden_layers=5, conv_L_cache=3, num_dense_layers=1, moe_intermediate_size=12, num_experts=6, num_experts_per_tok=2,
            layer_types=["conv", "conv", "full_attention", "conv", "full_attention"], rope_parameters=rope(1000.0),
            tie_word_embeddings=True,
        ), 41, converter=True, notes="gated convolutions, and experts chosen by sigmoid behind a dense layer",
    ),
    "ministral3": Variant(
        "Ministral3", dict(
            FOUR_HEADS, max_position_embeddings=64,
            rope_parameters=rope(
                100.0, "yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
                mscale_all_dim=1.0, llama_4_scaling_beta=0.5,
            ),
        ), 23, converter=True,
        notes="YaRN whose factors on cosine and sine cancel; queries grow from position 16 on",
    ),
    "mistral3": Variant(
        "Mistral3", dict(FOUR_HEADS, model_type="mistral", sliding_window=None, rope_parameters=rope(1e9)), 24, converter=True,
        vision=dict(
            model_type="pixtral", hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, head_dim=8,
            patch_size=2, image_size=4, rope_parameters=rope(),
        ),
        around=dict(image_token_index=PAD),
        notes="the text part of a multimodal model, beside an image encoder and its projector",
    ),
    "gemma3-vision": Variant(
        "Gemma3", dict(
            FOUR_HEADS, model_type="gemma3_text", num_hidden_layers=3, query_pre_attn_scalar=8, sliding_window=8, rms_norm_eps=2e-3,
            tie_word_embeddings=True, layer_types=["sliding_attention", "sliding_attention", "full_attention"],
            rope_parameters={"full_attention": rope(1000.0), "sliding_attention": rope(10.0)},
        ), 34, hf_only=True,
        vision=dict(
            model_type="siglip_vision_model", hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
            image_size=4, patch_size=2, vision_use_head=False,
        ),
        around=dict(image_token_index=PAD, mm_tokens_per_image=1),
        notes="the text part of a multimodal model, beside an image encoder and its projector",
    ),
    "qwen2-vl": Variant(
        "Qwen2_5_VL", dict(
            THREE_HEADS, model_type="qwen2_5_vl_text", rope_parameters=rope(1e6, mrope_section=[2, 1, 1]),
        ), 35, converter=True,
        vision=dict(
            model_type="qwen2_5_vl_vision", depth=1, hidden_size=8, intermediate_size=8, num_heads=1, patch_size=2,
            spatial_merge_size=1, temporal_patch_size=1, out_hidden_size=24, fullatt_block_indexes=[0], window_size=4,
        ),
        around=dict(IMAGE_TOKENS), notes="the text part of a multimodal model; for text all sections of a rotation have one position",
    ),
    "qwen3-vl": Variant(
        "Qwen3VL", dict(
            FOUR_HEADS, model_type="qwen3_vl_text", rope_parameters=rope(5e6, mrope_section=[2, 1, 1], mrope_interleaved=True),
            tie_word_embeddings=True,
        ), 36, converter=True,
        vision=dict(
            model_type="qwen3_vl_vision", depth=2, hidden_size=8, intermediate_size=8, num_heads=1, patch_size=2,
            spatial_merge_size=1, temporal_patch_size=1, out_hidden_size=24, deepstack_visual_indexes=[0], num_position_embeddings=4,
        ),
        around=dict(IMAGE_TOKENS), notes="the text part of a multimodal model; for text all sections of a rotation have one position",
    ),
    "hunyuan": Variant(
        "HunYuanDenseV1", dict(
            FOUR_HEADS, max_position_embeddings=32768, rope_parameters=rope(10000.0, "dynamic", alpha=1000.0, factor=1.0),
            tie_word_embeddings=True,
        ), 37, converter=True,
        notes="query and key heads are normalized after their rotation, whose base is stretched once and for all; llama.cpp's converter "
        "states a context of 262144 tokens",
    ),
    "ministral": Variant(
        "Ministral", dict(
            SMALL, num_hidden_layers=3, sliding_window=8, rope_parameters=rope(1e6), tie_word_embeddings=False,
            layer_types=["full_attention", "sliding_attention", "sliding_attention"],
        ), 38, hf_only=True, notes="Mistral with a window in the layers that are listed, which GGUF does not say",
    ),
    "smollm3": Variant(
        "SmolLM3", dict(FIVE_LAYERS, rope_parameters=rope(2e6), tie_word_embeddings=True), 25, converter=True,
        notes="every fourth layer has no rotation",
    ),
    "olmo3": Variant(
        "Olmo3", dict(
            FIVE_LAYERS, max_position_embeddings=128, sliding_window=8, tie_word_embeddings=False,
            rope_parameters={
                "full_attention": rope(
                    1000.0, "yarn", factor=8.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0,
                    attention_factor=0.1 * math.log(8.0) + 1.0,
                ),
                "sliding_attention": rope(1000.0),
            },
        ), 26, converter=True, notes="three of four layers have a window, and only the others' rotation is stretched",
    ),
    "gemma": Variant("Gemma", dict(FOUR_HEADS, rope_parameters=rope(), tie_word_embeddings=True), 27, converter=True),
    "granite": Variant(
        "Granite", dict(
            COMMON, hidden_size=32, intermediate_size=28, rope_parameters=rope(), tie_word_embeddings=False, attention_bias=False,
            embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.2, logits_scaling=0.5,
        ), 28, converter=True, notes="factors on embeddings, block outputs, scores and logits",
    ),
    "seed-oss": Variant(
        "SeedOss", dict(FOUR_HEADS, attention_bias=True, attention_out_bias=False, rope_parameters=rope(1e7)), 29, converter=True,
    ),
    "exaone4": Variant(
        "Exaone4", dict(FIVE_LAYERS, sliding_window=8, sliding_window_pattern=4, rope_parameters=rope(1e6)), 30, converter=True,
        notes="norms after the blocks; every fourth layer sees everything and has no rotation. llama.cpp has windows in models of 64 "
        "layers only",
    ),
    "cohere2": Variant(
        "Cohere2", dict(
            {k: v for k, v in FIVE_LAYERS.items() if k != "rms_norm_eps"}, layer_norm_eps=1e-3, logit_scale=0.25, sliding_window=8,
            rope_parameters=rope(50000.0), tie_word_embeddings=True, rotary_pct=1.0,
        ), 31, converter=True,
        notes="LayerNorm without bias, which both blocks of a layer share; every fourth layer sees everything and has no rotation",
    ),
    "starcoder2": Variant(
        "Starcoder2", dict(
            {k: v for k, v in COMMON.items() if k != "rms_norm_eps"}, hidden_size=24, intermediate_size=40, num_attention_heads=3,
            num_key_value_heads=1, norm_epsilon=1e-3, sliding_window=256, use_bias=True, rope_parameters=rope(1e5),
            tie_word_embeddings=True,
        ), 32, converter=True,
    ),
    "ernie4-5": Variant(
        "Ernie4_5", dict(FOUR_HEADS, use_bias=False, rope_parameters=rope(5e5), tie_word_embeddings=True), 33, converter=True,
        notes="neighbours turn together in both formats",
    ),
    "gpt-oss": Variant(
        "GptOss", GPT_OSS, 23, converter=True,
        notes="plain numbers, which safetensors has transposed and with gate and up in turn; the GGUF cannot say that YaRN's bounds are "
        "not rounded, and llama.cpp rounds them",
    ),
    "gpt-oss-mxfp4": Variant(
        "GptOss", dict(GPT_OSS, hidden_size=32, intermediate_size=128, num_hidden_layers=2, num_local_experts=4, num_experts_per_tok=2), 24, converter=True,
        mxfp4=True, notes="experts in MXFP4, as in the published models",
    ),
    "qwen2moe": Variant("Qwen2Moe", QWEN2_MOE, 25, converter=True),
    "qwen2moe-dense": Variant(
        "Qwen2Moe", dict(QWEN2_MOE, mlp_only_layers=[1], norm_topk_prob=True), 26, hf_only=True,
        notes="a dense layer between those with experts, and normalized weights, which GGUF cannot say",
    ),
    "glm4moe": Variant(
        "Glm4Moe", dict(GLM4_MOE, n_group=2, topk_group=1, use_qk_norm=True, n_shared_experts=2), 27, converter=True, mtp=True,
        notes="experts in groups, two shared experts, and a layer that only drafts tokens",
    ),
    "glm4moe-air": Variant("Glm4Moe", dict(GLM4_MOE, num_mtp_layers=0), 28, converter=True, notes="without norms of queries and keys"),
    "ernie4_5-moe": Variant(
        "Ernie4_5_Moe", dict(THREE_HEADS, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, hidden_size=32,
                             intermediate_size=32, moe_intermediate_size=8, moe_num_experts=6, moe_k=2, moe_num_shared_experts=2,
                             moe_layer_start_index=1, rope_parameters=rope(5e5), tie_word_embeddings=True), 30, converter=True,
    ),
    "minimax-m2": Variant(
        "MiniMaxM2", dict(FOUR_HEADS, num_hidden_layers=3, intermediate_size=12, num_local_experts=6, num_experts_per_tok=2, rotary_dim=4,
                          scoring_func="sigmoid", rope_parameters=rope(5e6, partial_rotary_factor=0.5)), 29, converter=True,
    ),
    "qwen35moe": Variant(
        "Qwen3_5Moe", dict(DELTA_MOE, rope_parameters=rope(1000.0, partial_rotary_factor=0.5, mrope_section=[1, 1, 0])), 31,
        prompts=(6, 12), converter=True, wrapped=True, mtp=True,
        notes="Qwen 3.5's layers with experts, whose gates and ups share a tensor in safetensors; hf-wrapped has the text model under a "
        "prefix, beside tensors for images and for drafts",
    ),
    "granitemoe": Variant(
        "GraniteMoe", dict(
            GRANITE_MOE, num_experts_per_tok=2, num_local_experts=6, rope_parameters=rope(),
        ), 43, converter=True, notes="Granite's factors around experts",
    ),
    "granite-hybrid": Variant(
        "GraniteMoeHybrid", dict(
            GRANITE_HYBRID, num_local_experts=6, num_experts_per_tok=2, shared_intermediate_size=20,
        ), 44, prompts=(6, 12), converter=True, published=True,
        notes="Mamba-2 with one group, attention without positions, experts beside a shared one, and Granite's factors",
    ),
    "granite-hybrid-dense": Variant(
        "GraniteMoeHybrid", dict(GRANITE_HYBRID, num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=12), 45,
        converter=True, published=True, notes="without experts",
    ),
    "nemotron3": Variant(
        "NemotronH", NEMOTRON3, 47, prompts=(6, 12), converter=True, published=True, notes="experts that read the residual, as in Nano",
    ),
    "nemotron3-latent": Variant(
        "NemotronH", dict(NEMOTRON3, moe_latent_size=20), 48, prompts=(6, 12), converter=True, published=True,
        notes="experts between two matrices, as in Super",
    ),
    "nemotron-h": Variant(
        "NemotronH", dict(
            {key: value for key, value in THREE_HEADS.items() if key not in ("rms_norm_eps", "num_hidden_layers")}, head_dim=10,
            layers_block_type=["linear_attention", "mlp", "linear_attention", "full_attention", "mlp", "linear_attention"],
            layer_norm_epsilon=1e-3, mamba_num_heads=4, mamba_head_dim=16, n_groups=2, ssm_state_size=10, chunk_size=8, time_step_min=1e-30,
        ), 42, converter=True, published=True,
        notes="layers of one block each: Mamba-2, attention without positions, or a feed-forward block with a squared ReLU. transformers' "
        "least time step is next to 0, as llama.cpp and NVIDIA's own code have it",
    ),
    "qwen3next": Variant(
        "Qwen3Next", dict(DELTA_MOE, norm_topk_prob=True, tie_word_embeddings=True,
                          rope_parameters=rope(1000.0, partial_rotary_factor=0.5)), 32, prompts=(6, 12), converter=True, mtp=True,
        notes="queries, keys, values and output gates of the delta rule in one tensor, key head by key head, and so the rates; the GGUF "
        "has value heads in the order of safetensors",
    ),
}

# ------------------------------------------------------------------------------------------------------------------ weights


# Added to the scores of experts only to choose among them.
SELECTION_BIASES = ("e_score_correction_bias", "expert_bias")


def random_state(model, variant, seed):
    """Draw every parameter. Scales keep activations near one while letting norms, biases and attention patterns matter."""
    rng = np.random.Generator(np.random.PCG64(seed))
    saved = (*SELECTION_BIASES, "layer_scalar")
    buffers = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith(saved)]
    parameters = sorted([*model.named_parameters(), *buffers])
    return {name: random_tensor(variant, rng, name, tuple(parameter.shape)) for name, parameter in parameters}


def is_zero_centred(variant):
    """Whether norms multiply by 1 more than their weights."""
    return (variant.kind.startswith("Gemma") and variant.kind != "Gemma4") or variant.kind in ("Qwen3_5", "Qwen3_5Moe", "Qwen3Next")


def random_tensor(variant, rng, name, shape):
    noise = rng.standard_normal(shape)
    if name.endswith("bias"):
        value = 0.3 * noise
    elif name.endswith(("layer_scalar", "router.scale", "per_expert_scale")):
        # The router's input is divided by the root of the width.
        value = (1.0 + 0.25 * noise) * (math.sqrt(shape[0]) if name.endswith("router.scale") else 1.0)
    elif re.search(r"(norm|norm_f|layernorm(_[12])?|ln_1|ln_2|ln_f)\.weight$", name):
        value = 0.25 * noise + (0.0 if is_zero_centred(variant) and not name.endswith("linear_attn.norm.weight") else 1.0)
    elif name.endswith(("A_log", "dt_bias")):
        value = 0.7 * noise - 1.0
    elif re.search(r"(embed_tokens|embeddings|wte)\.weight$", name):
        # Small beside what the layers add: with a tied head the current token would otherwise always win.
        value = 0.6 * noise / math.sqrt(shape[1]) if variant.kind.startswith("Gemma") else 0.3 * noise
    elif name.endswith("wpe.weight"):
        value = 0.2 * noise
    elif variant.kind == "GptOss" and ".experts." in name:
        # Large enough that gates and ups reach their limits.
        value = (5.0 if "gate_up" in name else 1.0) / math.sqrt(shape[1]) * noise
        if variant.mxfp4:
            value = np.swapaxes(from_mxfp4(*to_mxfp4(np.swapaxes(value, 1, 2))), 1, 2)
    else:
        fan_in = shape[0] if variant.kind == "GPT2" else shape[-1]
        gain = 1.0 if re.search(r"(v_proj|up_proj)\.weight$", name) else 2.0 if re.search(r"(fc1|c_fc)\.weight$", name) else 1.6
        if variant.ternary:
            value = np.clip(np.round(noise * 1.2), -1, 1) * np.float32(gain / math.sqrt(fan_in))
        else:
            value = gain / math.sqrt(fan_in) * noise
        if variant.fp8:
            value = from_fp8(*to_fp8(torch.from_numpy(value))).numpy()
    return torch.from_numpy(value.astype(np.float32))


def model_class(variant):
    kind = variant.kind
    head = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForConditionalGeneration" if variant.vision else f"{kind}ForCausalLM"
    return getattr(transformers, head)


def is_of_images(name):
    return any(part in name for part in ["vision_tower", "multi_modal_projector", "visual."])


FP4 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def to_mxfp4(values):
    """Blocks of 32 along the last axis, as OpenAI stores them: two codes in a byte, neighbours side by side, and the exponents."""
    blocks = values.reshape(*values.shape[:-1], -1, 32)
    exponents = np.floor(np.log2(np.abs(blocks).max(-1))) - 2
    scaled = blocks / 2.0 ** exponents[..., None]
    codes = np.abs(np.abs(scaled)[..., None] - FP4).argmin(-1).astype(np.uint8) | (scaled < 0).astype(np.uint8) << 3
    return codes[..., ::2] | codes[..., 1::2] << 4, (exponents + 127).astype(np.uint8)


def from_mxfp4(codes, exponents):
    both = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], 32)
    values = FP4[both & 7] * np.where(both & 8, -1.0, 1.0) * 2.0 ** (exponents.astype(np.float64)[..., None] - 127)
    return values.reshape(*codes.shape[:-2], -1)


# Rows and columns that share a scale.
FP8_BLOCK = [4, 8]


def to_fp8(values):
    """Codes and scales of blocks. Scales have three significant bits, so that products are numbers of BF16, too."""
    rows, columns = FP8_BLOCK
    blocks = values.unflatten(0, (-1, rows)).unflatten(2, (-1, columns))
    largest = blocks.abs().amax((1, 3)) / 128
    # The same for the numbers that come out.
    factors = 1 + torch.arange(largest.numel()).reshape(largest.shape) % 4 / 4
    scales = factors * torch.exp2(torch.floor(torch.log2(largest / factors)))
    return (blocks / scales[:, None, :, None]).flatten(2).flatten(0, 1).to(torch.float8_e4m3fn), scales


def from_fp8(codes, scales):
    numbers = codes.double() * scales.double().repeat_interleave(FP8_BLOCK[0], 0).repeat_interleave(FP8_BLOCK[1], 1)
    assert (numbers == numbers.bfloat16().double()).all()
    return numbers


def build(variant, seed=None, state=None):
    """The reference model in eval mode, with random weights from `seed` or the given ones."""
    kind = variant.kind
    prefix = kind if variant.vision else {"Gemma3": "Gemma3Text", "Gemma4": "Gemma4Text", "Qwen3_5": "Qwen3_5Text", "Qwen3_5Moe": "Qwen3_5MoeText"}.get(kind, kind)
    values = json.loads(json.dumps(variant.config))
    if variant.vision:
        tied = values.get("tie_word_embeddings", False)
        values = dict(text_config=values, vision_config=variant.vision, tie_word_embeddings=tied, **variant.around)
    config = getattr(transformers, f"{prefix}Config")(**values)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = model_class(variant)(config).eval()
    if state is None:
        state = random_state(model, variant, seed)
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    return model, state


@contextlib.contextmanager
def float64_reference():
    """Lift the float32 pins of the reference library, for models built and run inside."""
    saved = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = saved


def reference(variant, state):
    """A float64 model with the same weights."""
    model, _ = build(variant, state={name: tensor.double() for name, tensor in state.items()})
    return model.double()


@torch.no_grad()
def logits_of(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0]


@torch.no_grad()
def greedy(variant, state, ids):
    """Greedy continuation and the gap between the two best logits at each step, in float64."""
    chosen, gaps = [], []
    model, cache = reference(variant, state), None
    for _ in range(GREEDY_TOKENS):
        if variant.cached:
            fresh = ids + chosen if cache is None else chosen[-1:]
            out = model(torch.tensor([fresh]), past_key_values=cache, use_cache=True)
            cache, last = out.past_key_values, out.logits[0, -1]
        else:
            last = logits_of(model, ids + chosen)[-1]
        best = torch.topk(last, 2)
        chosen.append(int(best.indices[0]))
        gaps.append(float(best.values[0] - best.values[1]))
        if gaps[-1] < MIN_GAP * float(last.std()):
            raise PoorTest(f"gap {gaps[-1]:.4f}")
        if chosen[-1] >= END:
            raise PoorTest("a special token is chosen")
    if len(set(chosen)) < 6:
        raise PoorTest("too repetitive")
    return chosen, gaps


class PoorTest(Exception):
    """Why a seed makes a model that would not show a mistake, or would show one where there is none."""


def relative(a, b):
    """Largest difference over the largest magnitude of the reference."""
    return float((a - b).abs().max() / b.abs().max())


# -------------------------------------------------------------------------------------------------------------- acceptance


def router_margin(model, ids):
    """Smallest distance between the last expert chosen and the first left out, over layers and positions."""
    margins = []

    def margin(values, n):
        ordered = values.sort(-1, descending=True).values
        margins.append(float((ordered[:, n - 1] - ordered[:, n]).min()))

    def watch(module, inputs, output):
        if type(module).__name__ == "Gemma4TextRouter":
            return margin(output[0], module.config.top_k_experts)
        bias = inputs[1] if len(inputs) > 1 else getattr(module, "e_score_correction_bias", None)
        if bias is None:
            scores = torch.softmax(output[0], -1)
            if getattr(module, "topk_method", None) == "group_limited_greedy":
                groups = scores.view(scores.shape[0], module.num_group, -1)
                largest = groups.max(-1).values
                margin(largest, module.topk_group)
                kept = torch.zeros_like(largest).scatter(1, largest.topk(module.topk_group, -1).indices, 1.0)
                scores = groups.masked_fill(kept[..., None] == 0, 0.0).flatten(1)
            statics = getattr(module, "moe_statics", None)
            return margin(statics(scores) if statics else scores, module.top_k)
        values = output[0].sigmoid() + bias
        if (n_groups := getattr(module, "num_group", 1)) > 1:
            groups = values.view(values.shape[0], n_groups, -1)
            sums = groups.topk(2, -1).values.sum(-1)
            margin(sums, module.topk_group)
            kept = torch.zeros_like(sums).scatter(1, sums.topk(module.topk_group, -1).indices, 1.0)
            values = groups.masked_fill(kept[..., None] == 0, -1e9).flatten(1)
        margin(values, module.top_k)

    handles = [m.register_forward_hook(watch) for n, m in model.named_modules() if type(m).__name__.lower().endswith(("topkrouter", "textrouter"))]
    logits_of(model, ids)
    for handle in handles:
        handle.remove()
    return min(margins, default=1.0)


class DraftLayer:
    """A layer that drafts tokens: one like the model's last with attention, with random weights, and what makes its input and output."""

    def __init__(self, variant, state, seed):
        rng = np.random.Generator(np.random.PCG64(seed))
        self.variant, self.n_layers = variant, variant.config["num_hidden_layers"]
        self.index = max(i for i in range(self.n_layers) if f"model.layers.{i}.self_attn.o_proj.weight" in state)
        self.last = f"model.layers.{self.index}."
        width = state["model.norm.weight"].shape[0]
        names = sorted(name for name in state if name.startswith(self.last))
        self.blocks = {name: random_tensor(variant, rng, name, tuple(state[name].shape)) for name in names}
        shapes = {"eh_proj": (width, 2 * width), "enorm": (width,), "hnorm": (width,), "shared_head.norm": (width,)}
        self.others = {name: random_tensor(variant, rng, f"{name}.weight", shape) for name, shape in shapes.items()}

    def norm(self, x, name, eps):
        weight = self.others[name].to(x.dtype) + (1 if is_zero_centred(self.variant) else 0)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight

    @torch.no_grad()
    def logits(self, build, state, ids):
        """At each position: those of the token after the next as the layer has them, of `ids` and what the model makes of the token before,
        zeros before the first. `build` makes a model of weights."""
        model, drafting = build(state), build({**state, **self.blocks})
        eps = model.config.get_text_config().rms_norm_eps
        tokens = torch.tensor([ids])
        hidden = model.model(tokens, use_cache=False).last_hidden_state
        before = torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :-1]], dim=1)
        both = [self.norm(model.model.embed_tokens(tokens), "enorm", eps), self.norm(before, "hnorm", eps)]
        x = torch.cat(both, dim=-1) @ self.others["eh_proj"].to(hidden.dtype).T
        positions = torch.arange(len(ids))[None]
        future = torch.full((len(ids), len(ids)), -math.inf, dtype=x.dtype).triu(1)[None, None]
        x = drafting.model.layers[self.index](
            x, attention_mask=future, position_ids=positions, position_embeddings=drafting.model.rotary_emb(x, positions))
        x = x[0] if isinstance(x, tuple) else x
        return model.lm_head(self.norm(x, "shared_head.norm", eps))[0]

    def add(self, path, state):
        """Adds it to model.safetensors as published files have it."""
        variant = self.variant
        with tempfile.TemporaryDirectory() as scratch:
            build(variant, state={**state, **self.blocks})[0].save_pretrained(scratch)
            blocks = {name: t for name, t in load_file(Path(scratch) / "model.safetensors").items() if name.startswith(self.last)}
        if variant.kind.startswith("Qwen"):
            outside = {"eh_proj": "fc", "enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "shared_head.norm": "norm"}
            layer, prefix = "mtp.layers.0.", "mtp."
        else:
            layer = prefix = f"model.layers.{self.n_layers}."
            outside = {name: name for name in self.others}
        added = {name.replace(self.last, layer): t for name, t in blocks.items()}
        added.update({f"{prefix}{outside[name]}.weight": t for name, t in self.others.items()})
        save_file({**load_file(path), **added}, path, metadata={"format": "pt"})


def draft_layer(variant, state, prompts):
    """A layer that drafts, and its logits for each prompt."""
    for seed in range(1000):
        layer, found = DraftLayer(variant, state, seed), []
        for prompt in prompts:
            with float64_reference():
                exact = layer.logits(lambda s: reference(variant, s), state, prompt["ids"])
            plain = layer.logits(lambda s: build(variant, state=s)[0], state, prompt["ids"])
            if relative(plain.double(), exact) > 1e-5:
                break
            found.append(exact)
        else:
            return layer, found
    raise SystemExit("no seed makes a good drafting layer")


def weakest_tensor(variant, state, ids, expected):
    """The tensor (or expert) whose change by up to a quarter moves the logits least, and by how much.

    The change differs from element to element: a norm behind the tensor would undo a common factor.
    """
    worst = (math.inf, None)
    model = reference(variant, state)
    for name, bias in [*model.named_buffers(), *((name, p.data) for name, p in model.named_parameters())]:
        if name.endswith(SELECTION_BIASES):
            # It only changes which experts are chosen.
            before = bias.clone()
            bias.zero_()
            worst = min(worst, (relative(logits_of(model, ids), expected), name))
            bias.copy_(before)
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        if is_of_images(name) or name.endswith(SELECTION_BIASES):
            continue
        # Single channels of Mamba's B and C count for little.
        is_stack = parameter.dim() == 3 and not re.search(r"(mixer|mamba)\.conv1d", name)
        parts = [parameter.data[j] for j in range(parameter.shape[0])] if is_stack else [parameter.data]
        for part in parts:
            before = part.clone()
            part.mul_(1.0 + 0.25 * torch.cos(torch.arange(part.numel(), dtype=part.dtype)).reshape(part.shape))
            worst = min(worst, (relative(logits_of(model, ids), expected), name))
            part.copy_(before)
    return worst


def goldens(variant, seed):
    """Try one seed. Returns (weights, logits per prompt, golden.json content); raises PoorTest."""
    ids = TOKENIZER.encode(TEXT).ids
    with float64_reference():
        _, double = build(variant, seed)
    state = {name: tensor.to(torch.float32) for name, tensor in double.items()}
    prompts, all_logits, difference = [], [], 0.0
    for length in variant.prompts:
        prompt = ids[:length]
        text = TOKENIZER.decode(prompt)
        assert TOKENIZER.encode(text).ids == prompt, "the cut must be a token border"
        with float64_reference():
            exact = logits_of(reference(variant, state), prompt)
            tokens, gaps = greedy(variant, state, prompt)
            margin = router_margin(reference(variant, state), prompt)
        plain = logits_of(build(variant, state=state)[0], prompt)
        difference = max(difference, relative(plain.double(), exact))
        if margin < 0.002:
            raise PoorTest(f"router margin {margin:.5f}")
        all_logits.append(exact)
        prompts.append({
            "text": text, "ids": prompt, "shape": list(exact.shape), "greedy": tokens,
            "gaps": [float(f"{gap:.6g}") for gap in gaps],
        })
    if difference > 1e-5:
        raise PoorTest(f"ill-conditioned: float32 differs by {difference:.1e}")
    with float64_reference():
        weakest, name = weakest_tensor(variant, state, prompts[-1]["ids"], all_logits[-1])
    if weakest < 2e-3:
        raise PoorTest(f"{name} hardly matters: {weakest:.1e}")
    forms = ["hf"] + ["hf-sharded"] * variant.sharded + ["hf-wrapped"] * variant.wrapped
    if not variant.hf_only:
        forms += ["model.gguf"] + ["model-00001-of-00002.gguf"] * variant.sharded
    golden = {
        "forms": forms, "gguf_prompts": 0 if variant.hf_only else variant.gguf_prompts, "seed": seed, "prompts": prompts,
        "float32_difference": float(f"{difference:.2g}"), "weakest_tensor": f"{name}: {weakest:.2g}",
        "reference": f"transformers {transformers.__version__}, float64",
    }
    if variant.notes:
        golden["notes"] = variant.notes
    return state, all_logits, golden


# --------------------------------------------------------------------------------------------------------------- HF folder


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def compact(value):
    """golden.json: one line per list of numbers."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    return re.sub(r"\[\s+([-+\d.e,\s]+?)\s+\]", lambda m: "[" + re.sub(r"\s+", " ", m.group(1)) + "]", text) + "\n"


def to_legacy_rope(config):
    """The layout of config.json before transformers 5: rope_theta and partial_rotary_factor at the top, rope_scaling or null."""
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    if (factor := parameters.pop("partial_rotary_factor", None)) is not None:
        config["partial_rotary_factor"] = factor
    if parameters["rope_type"] == "longrope":
        parameters["type"] = parameters.pop("rope_type")
        parameters.pop("original_max_position_embeddings")
    config["rope_scaling"] = None if parameters.get("rope_type") == "default" else parameters


def write_hf(variant, state, folder, expected, draft):
    """Save with the reference library, add the tokenizer, and prove that the folder loads to the same logits."""
    model, _ = build(variant, state=state)
    if variant.chat_template:
        model.generation_config.eos_token_id = [IM_END, END]
    model.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    config = json.loads((folder / "config.json").read_text())
    if variant.legacy_rope:
        to_legacy_rope(config)
    if variant.published:
        as_published(config)
    if draft:
        draft.add(folder / "model.safetensors", state)
        if variant.kind.startswith("Qwen3_5"):
            config["mtp_num_hidden_layers"] = 1
    if variant.mxfp4:
        store_mxfp4(folder / "model.safetensors", state)
        config["quantization_config"] = {"quant_method": "mxfp4"}
    if variant.fp8:
        store_fp8(folder / "model.safetensors")
        config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": FP8_BLOCK}
    write_json(folder / "config.json", config)
    write_tokenizer(folder, variant.chat_template)
    verify_hf(folder, variant, expected)
    if variant.wrapped:
        write_wrapped(folder, folder.parent / "hf-wrapped")
    if variant.sharded:
        sharded = folder.parent / "hf-sharded"
        sharded.mkdir()
        model.save_pretrained(sharded, max_shard_size=(folder / "model.safetensors").stat().st_size * 3 // 5)
        shards = list(sharded.glob("*.safetensors"))
        assert len(shards) == 2
        for shard in shards:
            shard.chmod(0o644)
        for extra in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
            shutil.copy(folder / extra, sharded / extra)
        verify_hf(sharded, variant, expected)


def as_published(config):
    """Granite's config.json with older names of layers; Nemotron-H's with a letter for each layer, nothing about experts, and numbers that
    JSON lacks."""
    if config["model_type"] == "granitemoehybrid":
        names = {"linear_attention": "mamba", "full_attention": "attention"}
        config["layer_types"] = [names[kind] for kind in config["layer_types"]]
        del config["time_step_limit"]
        return
    letters = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
    kinds = config.pop("layers_block_type")
    config["hybrid_override_pattern"] = "".join(letters[kind] for kind in kinds)
    config["num_hidden_layers"] = len(kinds)
    config["time_step_limit"] = [0.0, math.inf]
    for key in [] if "moe" in kinds else list(config):
        if key.startswith("moe_") or key in ("num_experts_per_tok", "n_routed_experts", "n_shared_experts", "mtp_layers_block_type"):
            del config[key]


def write_wrapped(folder, target):
    """The folder as the text part of a model with other parts, which only have to be there."""
    target.mkdir()
    config = json.loads((folder / "config.json").read_text())
    (name,) = config.pop("architectures")
    wrapper = {"architectures": [name.replace("ForCausalLM", "ForConditionalGeneration")], "text_config": config,
               "tie_word_embeddings": config["tie_word_embeddings"], "vision_config": {"hidden_size": 8, "depth": 1}}
    others = {"model.visual.blocks.0.attn.qkv.weight": (24, 8)}
    if name.startswith("Gemma4"):
        others = {"model.vision_tower.patch_embedder.input_proj.weight": (8, 12), "model.audio_tower.output_proj.weight": (8, 8),
                  "model.embed_vision.embedding_projection.weight": (24, 8), "model.embed_audio.embedding_projection.weight": (24, 8)}
    write_json(target / "config.json", wrapper)
    tensors = {re.sub(r"^model\.", "model.language_model.", key): value
               for key, value in load_file(folder / "model.safetensors").items()}
    tensors.update({name: torch.ones(shape) for name, shape in others.items()})
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    for extra in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / extra, target / extra)


def store_mxfp4(path, state):
    """Puts the experts of gpt-oss into the layout of the published files."""
    tensors = load_file(path)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        values = tensors.pop(name).transpose(1, 2).numpy().astype(np.float64)
        codes, exponents = to_mxfp4(values)
        assert (from_mxfp4(codes, exponents) == values).all(), name
        for end, array in (("blocks", codes), ("scales", exponents)):
            tensors[f"{name}_{end}"] = torch.from_numpy(np.ascontiguousarray(array))
    save_file(tensors, path, metadata={"format": "pt"})


def store_fp8(path):
    """Puts the matrices of layers into the layout of the published files."""
    tensors = load_file(path)
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        values = tensors[name].double()
        codes, scales = to_fp8(values)
        assert (from_fp8(codes, scales) == values).all(), name
        tensors[name], tensors[f"{name}_scale_inv"] = codes, scales.float()
    save_file(tensors, path, metadata={"format": "pt"})


def verify_hf(folder, variant, expected):
    ids = TOKENIZER.encode(TEXT).ids
    for length, exact in zip(variant.prompts, expected):
        model = model_class(variant).from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
        assert relative(logits_of(model, ids[:length]).double(), exact) < 2e-5, folder
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.encode(TEXT, add_special_tokens=False) == ids, folder


# --------------------------------------------------------------------------------------------------------------------- GGUF

GGUF_ARCH = {"Llama": "llama", "Mistral": "llama", "Mixtral": "llama", "Qwen2": "qwen2", "Qwen3": "qwen3", "Qwen3Moe": "qwen3moe",
             "Phi": "phi2", "Phi3": "phi3", "Gemma2": "gemma2", "Gemma3": "gemma3", "GPT2": "gpt2", "BitNet": "bitnet",
             "Olmo2": "olmo2", "Glm4": "glm4", "Qwen3_5": "qwen35", "Lfm2": "lfm2"}
TOP_NAMES = {"embed_tokens": "token_embd", "norm": "output_norm", "final_layernorm": "output_norm", "embedding_norm": "token_embd_norm", "lm_head": "output",
             "wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm"}
LAYER_NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv", "self_attn.dense": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "self_attn.attn_sub_norm": "attn_sub_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up",
    "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "mlp.ffn_sub_norm": "ffn_sub_norm", "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp", "ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down", "eh_proj": "nextn.eh_proj", "enorm": "nextn.enorm",
    "hnorm": "nextn.hnorm", "shared_head.norm": "nextn.shared_head_norm",
}
DELTA_NAMES = {
    "post_attention_layernorm": "post_attention_norm", "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
}
LFM2_NAMES = {
    "operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm",
    "self_attn.out_proj": "attn_output", "conv.in_proj": "shortconv.in_proj", "conv.conv": "shortconv.conv",
    "conv.out_proj": "shortconv.out_proj", "feed_forward.w1": "ffn_gate", "feed_forward.w2": "ffn_down", "feed_forward.w3": "ffn_up",
}
GEMMA_NAMES = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
               "post_feedforward_layernorm": "post_ffw_norm"}
OTHER_NAMES = {"Gemma2": GEMMA_NAMES, "Gemma3": GEMMA_NAMES, "Olmo2": GEMMA_NAMES,
               "Qwen3_5": DELTA_NAMES, "Lfm2": LFM2_NAMES, "Glm4": {"post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm"}}
EXPERT_NAMES = {"w1": "ffn_gate_exps", "w2": "ffn_down_exps", "w3": "ffn_up_exps", "gate_proj": "ffn_gate_exps",
                "down_proj": "ffn_down_exps", "up_proj": "ffn_up_exps"}


def interleave_rotary(weight, heads):
    """Rows of Q or K from rotate-halves order to the interleaved pairs that the GGUF architecture `llama` expects."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, half, -1).swapaxes(1, 2).reshape(weight.shape)


def tile_heads(array, axis, config, head_dim):
    """Value heads along an axis, from those of one key head side by side to one of each key head in turn."""
    keys = config["linear_num_key_heads"]
    shape = array.shape
    split = shape[:axis] + (keys, shape[axis] // head_dim // keys, head_dim) + shape[axis + 1 :]
    return array.reshape(split).swapaxes(axis, axis + 1).reshape(shape)


def delta_tensor(module, array, config):
    """A weight of the gated delta rule in GGUF's order of heads."""
    part = module.rpartition(".")[2]
    dim = config["linear_value_head_dim"]
    if part in ("in_proj_qkv", "conv1d"):
        if part == "conv1d":
            array = array[:, 0]
        keys = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
        return np.concatenate([array[:keys], tile_heads(array[keys:], 0, config, dim)])
    if part in ("in_proj_z", "out_proj"):
        return tile_heads(array, 0 if part == "in_proj_z" else 1, config, dim)
    if part in ("in_proj_b", "in_proj_a", "dt_bias", "A_log"):
        return tile_heads(array, 0, config, 1)
    return array


def gguf_tensors(variant, config, tensors):
    """GGUF names and arrays from the tensors of model.safetensors."""
    kind, out, experts = variant.kind, {}, {}
    for name, array in sorted(tensors.items()):
        bare = re.sub(r"^(model|transformer)\.", "", name)
        if bare.startswith("mtp."):
            layer = config["num_hidden_layers"]
            bare = re.sub(r"^mtp\.layers\.0\.", f"layers.{layer}.", bare)
            for outside, inside in (("fc", "eh_proj"), ("pre_fc_norm_embedding", "enorm"), ("pre_fc_norm_hidden", "hnorm"), ("norm", "shared_head.norm")):
                bare = re.sub(rf"^mtp\.{outside}\.", f"layers.{layer}.{inside}.", bare)
        if expert := re.match(r"layers\.(\d+)\.\w+\.experts\.(\d+)\.(\w+)\.weight$", bare):
            layer, index, part = expert.groups()
            experts.setdefault(f"blk.{layer}.{EXPERT_NAMES[part]}.weight", {})[int(index)] = array
            continue
        if whole := re.match(r"layers\.(\d+)\.linear_attn\.(dt_bias|A_log)$", bare):
            layer, part = whole.groups()
            array = delta_tensor(part, array, config)
            out[f"blk.{layer}." + {"dt_bias": "ssm_dt.bias", "A_log": "ssm_a"}[part]] = -np.exp(array) if part == "A_log" else array
            continue
        module, _, suffix = bare.rpartition(".")
        if module.endswith("conv.conv"):
            array = array[:, 0]
        if module.split(".")[-2:-1] == ["linear_attn"]:
            array = delta_tensor(module, array, config)
        if inner := re.match(r"(?:layers|h)\.(\d+)\.(.+)$", module):
            layer, module = inner.groups()
            names = {**LAYER_NAMES, **OTHER_NAMES.get(kind, {})}
            target = f"blk.{layer}.{names[module]}"
        else:
            target = TOP_NAMES[module]
        if kind in ("Llama", "Mistral", "Mixtral") and module in ("self_attn.q_proj", "self_attn.k_proj"):
            heads = config["num_attention_heads" if module == "self_attn.q_proj" else "num_key_value_heads"]
            array = interleave_rotary(array, heads)
        if (kind.startswith("Gemma") or kind == "Qwen3_5" and module != "linear_attn.norm") and module.endswith("norm"):
            array = array + np.float32(1.0)
        if kind == "GPT2" and ".c_" in f".{module}" and suffix == "weight":
            array = array.T
        if variant.ternary and target.startswith("blk.1.") and array.ndim == 2:
            scale = np.abs(array).max()
            out[f"{target}.scale"] = np.array([scale], np.float32)
            array = np.round(array / scale)
        out[f"{target}.{suffix}"] = np.ascontiguousarray(array, dtype=np.float32)
    for name, parts in experts.items():
        out[name] = np.stack([parts[i] for i in sorted(parts)])
    parameters = config.get("rope_parameters") or {}
    if parameters.get("rope_type") == "llama3":
        out["rope_freqs.weight"] = llama3_divisors(config["head_dim"], parameters)
    if parameters.get("rope_type") == "longrope":
        out["rope_factors_long.weight"] = np.array(parameters["long_factor"], np.float32)
        out["rope_factors_short.weight"] = np.array(parameters["short_factor"], np.float32)
    return out


def llama3_divisors(head_dim, parameters):
    """What each RoPE frequency is divided by under llama3 scaling."""
    wavelength = 2 * math.pi * parameters["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim)
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    smooth = np.clip((parameters["original_max_position_embeddings"] / wavelength - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1.0 - smooth) / parameters["factor"] + smooth)).astype(np.float32)


def gguf_metadata(writer, variant, config):
    """Hyper-parameters under the keys that the field's converter writes for this architecture."""
    kind, arch = variant.kind, GGUF_ARCH[variant.kind]
    parameters = config.get("rope_parameters") or {}
    full = parameters.get("full_attention", parameters)
    if kind == "GPT2":
        writer.add_context_length(config["n_positions"])
        writer.add_embedding_length(config["n_embd"])
        writer.add_block_count(config["n_layer"])
        writer.add_feed_forward_length(4 * config["n_embd"])
        writer.add_head_count(config["n_head"])
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
        return
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"] + variant.mtp)
    if variant.mtp:
        writer.add_nextn_predict_layers(1)
    writer.add_feed_forward_length(28 if kind == "Lfm2" else config["intermediate_size"])
    writer.add_head_count(heads)
    kv_heads = config["num_key_value_heads"]
    writer.add_head_count_kv([0 if t == "conv" else kv_heads for t in config["layer_types"]] if kind == "Lfm2" else kv_heads)
    if kind == "Phi":
        writer.add_layer_norm_eps(config["layer_norm_eps"])
    else:
        writer.add_layer_norm_rms_eps(config["norm_eps" if kind == "Lfm2" else "rms_norm_eps"])
        writer.add_rope_freq_base(full["rope_theta"])
    if config.get("head_dim"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if arch in ("llama", "phi2", "phi3", "bitnet", "glm4", "qwen35"):
        writer.add_rope_dimension_count(int(head_dim * full.get("partial_rotary_factor", 1.0)))
    if kind == "Lfm2":
        writer.add_shortconv_l_cache(config["conv_L_cache"])
    if arch in ("llama", "bitnet", "lfm2"):
        writer.add_vocab_size(config["vocab_size"])
    if kind in ("Mixtral", "Qwen3Moe"):
        writer.add_expert_count(config.get("num_local_experts") or config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if kind == "Qwen3Moe":
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if kind in ("Mistral", "Phi3", "Gemma2", "Gemma3"):
        writer.add_sliding_window(config.get("sliding_window") or 0)
    if kind == "Gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if kind == "Gemma3":
        writer.add_uint32("gemma3.attention.sliding_window_pattern", config["layer_types"].index("full_attention") + 1)
        writer.add_rope_freq_base_swa(parameters["sliding_attention"]["rope_theta"])
    if kind == "Qwen3_5":
        delta_metadata(writer, config, full, variant.mtp)
    rope_metadata(writer, kind, config, full)


def delta_metadata(writer, config, rope_parameters, n_drafting):
    values = config["linear_num_value_heads"]
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(values)
    writer.add_ssm_inner_size(values * config["linear_value_head_dim"])
    writer.add_array("qwen35.attention.recurrent_layers", [kind == "linear_attention" for kind in config["layer_types"]] + [False] * n_drafting)
    writer.add_uint32("qwen35.full_attention_interval", 4)
    writer.add_rope_dimension_sections(rope_parameters["mrope_section"] + [0])


def rope_metadata(writer, kind, config, parameters):
    scaling = parameters["rope_type"]
    if kind == "BitNet":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(1.0)
    elif kind == "Phi3":
        original = config["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        if scaling == "longrope":
            stretch = config["max_position_embeddings"] / original
            writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
            writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(stretch) / math.log(original)))
    elif scaling == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(parameters["factor"])
    elif scaling == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(parameters["factor"])
        writer.add_rope_scaling_orig_ctx_len(parameters["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(parameters["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(parameters["beta_slow"])


def write_gguf(variant, name, config, tensors, path, **split):
    writer = gguf.GGUFWriter(path, GGUF_ARCH[variant.kind], **split)
    # llama.cpp expects certain tokens of any model whose name holds "phi3" or "phi-3".
    writer.add_name(f"fixture {name.replace('phi3', 'phi 3')}")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    gguf_metadata(writer, variant, config)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.CONTROL if token in SPECIALS else gguf.TokenType.NORMAL for token in TOKENS])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(END)
    writer.add_eos_token_id(IM_END if variant.chat_template else END)
    writer.add_pad_token_id(PAD)
    writer.add_add_bos_token(False)
    if variant.chat_template:
        writer.add_chat_template(CHATML)
    for tensor, array in gguf_tensors(variant, config, tensors).items():
        writer.add_tensor(tensor, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# llama.cpp knows tokenizers by a hash, which a made-up one does not have; a vocabulary of another kind would take other files.
CONVERT = """
import json
import sys
from pathlib import Path
sys.path[:0] = [sys.argv.pop(1)]
import convert_hf_to_gguf as converter
from conversion.base import ModelBase, TextModel

def leaves(kind):
    for sub in kind.__subclasses__():
        yield sub
        yield from leaves(sub)

get_model_class = converter.get_model_class

def with_vocabulary(*args, **kwargs):
    found = get_model_class(*args, **kwargs)
    for kind in leaves(TextModel):
        # One that hands everything to another has no vocabulary of its own.
        if "set_vocab" in vars(kind) and "impl" not in kind.__annotations__:
            kind.set_vocab = lambda self: self._set_vocab_gpt2()
    return found

converter.get_model_class = with_vocabulary
TextModel.get_vocab_base_pre = lambda *_: "gpt-2"
config = json.loads((Path(sys.argv[1]) / "config.json").read_text())
if {"hybrid_override_pattern", "mamba_n_heads"} & set(config):
    # The reference library would state experts, which the folder does not, and other names of layers.
    ModelBase.load_hparams = staticmethod(lambda *_, **__: dict(config))
converter.main()
"""


def convert_with_llama_cpp(tree, hf, path):
    command = [sys.executable, "-c", CONVERT, str(tree), str(hf), "--outtype", "f32", "--outfile", str(path)]
    if "linear_num_key_heads" in json.loads((hf / "config.json").read_text()) and "mtp.fc.weight" not in load_file(hf / "model.safetensors"):
        # Otherwise the converter insists on tensors that only draft tokens.
        command.append("--no-mtp")
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"llama.cpp's converter failed:\n{done.stderr}")


# --------------------------------------------------------------------------------------------------------------------- main


def make(name, target, llama_cpp):
    """Write one fixture into `target`, an empty folder. `llama_cpp` is a source tree for variants that need its converter."""
    variant = VARIANTS[name]
    for seed in range(1000 * variant.seed, 1000 * (variant.seed + 1)):
        try:
            state, all_logits, golden = goldens(variant, seed)
            break
        except PoorTest as reason:
            print(f"{name}: seed {seed} passed over: {reason}", file=sys.stderr)
    else:
        raise SystemExit(f"{name}: no seed makes a good test")
    hf = target / "hf"
    hf.mkdir()
    draft, draft_logits = draft_layer(variant, state, golden["prompts"]) if variant.mtp else (None, [])
    write_hf(variant, state, hf, all_logits, draft)
    if variant.converter:
        convert_with_llama_cpp(llama_cpp, hf, target / "model.gguf")
    elif not variant.hf_only:
        config = build(variant, state=state)[0].config.to_dict()
        tensors = {key: value.numpy() for key, value in load_file(hf / "model.safetensors").items()}
        write_gguf(variant, name, config, tensors, target / "model.gguf")
        if variant.sharded:
            half = (len(gguf_tensors(variant, config, tensors)) + 1) // 2
            write_gguf(variant, name, config, tensors, target / "model.gguf", split_max_tensors=half)
    for file, logits in (("logits.f32", all_logits), ("draft_logits.f32", draft_logits)):
        if logits:
            (target / file).write_bytes(b"".join(t.to(torch.float32).numpy().astype("<f4").tobytes() for t in logits))
    (target / "golden.json").write_text(compact(golden))
    total = sum(f.stat().st_size for f in target.rglob("*") if f.is_file())
    print(f"{name}: seed {golden['seed']}, weakest tensor {golden['weakest_tensor']}, float32 differs by "
          f"{golden['float32_difference']}, {total // 1000} kB", file=sys.stderr)


def same(a, b):
    """Whether two folders hold the same files, byte for byte."""
    files = [sorted(f.relative_to(root) for f in root.rglob("*") if f.is_file()) for root in (a, b)]
    return files[0] == files[1] and all(filecmp.cmp(a / f, b / f, shallow=False) for f in files[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=sorted(VARIANTS), help="make this one (may be repeated)")
    parser.add_argument("--check", action="store_true", help="compare with the committed files instead of writing them")
    parser.add_argument("--llama-cpp", type=Path, help="llama.cpp's source tree, for fixtures that its converter makes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    stale = []
    for name in args.only or VARIANTS:
        if VARIANTS[name].converter and not args.llama_cpp:
            print(f"{name}: left out, because it needs --llama-cpp", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as scratch:
            fresh = Path(scratch) / name
            fresh.mkdir()
            make(name, fresh, args.llama_cpp and args.llama_cpp.resolve())
            if args.check:
                if not same(fresh, DATA / name):
                    stale.append(name)
                continue
            shutil.rmtree(DATA / name, ignore_errors=True)
            shutil.copytree(fresh, DATA / name)
    if stale:
        raise SystemExit(f"differ from what is committed: {', '.join(stale)}")


if __name__ == "__main__":
    main()
