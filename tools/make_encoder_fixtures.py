#!/usr/bin/env python3
"""Make the tiny random encoders that the tests of embeddings and rerankers compare against.

    python tools/make_encoder_fixtures.py --llama-cpp DIR               # all of them
    python tools/make_encoder_fixtures.py --llama-cpp DIR --only bert   # one (may be repeated)

For every variant the script builds the reference model of the `transformers` library with random weights drawn from a fixed seed and writes
under crates/model/tests/data/encoders/<name>/:

    hf/           Hugging Face folder, for embedding models with the modules of sentence-transformers
    model.gguf    the same, written by llama.cpp's convert_hf_to_gguf.py in F32, where it can
    golden.json   texts as token ids, types where not all are 0, and for each the embedding or the scores

Embeddings come from the `sentence-transformers` library where it defines the modules, and scores from `transformers`; both in float64, so that
nothing is left to the order of sums. Models that `transformers` does not have (`OTHERS`) are put together from its BERT, and llama.cpp's server
must give the same vectors within 5e-4 where they compute GELU as it does, by tanh in half precision.

Tokenizers are small, too, so that programs can load a fixture as a whole model: byte-level BPE as of
make_fixtures.py, and WordPiece or Unigram with a few pieces.

Made with: python 3.11, torch 2.15.0, transformers 5.23.0, sentence-transformers 6.2.0, safetensors 0.8.0, llama.cpp as in the source
distribution of llama_cpp_python 0.3.36 on PyPI.
"""

import argparse
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from transformers.models.bloom.modeling_bloom import _get_alibi_slopes

sys.path.insert(0, str(Path(__file__).resolve().parent))
import make_fixtures  # noqa: E402

DATA = Path(__file__).resolve().parent.parent / "crates/model/tests/data/encoders"
LENGTHS = (1, 2, 9, 33)
LETTERS = list("abcdefghijklmnopqrstuvwxyz0123456789.,?!")
WORDS = ["the", "owl", "fox", "star", "moon", "sea", "ing", "er", "who", "and"]
SMALL = dict(hidden_size=24, num_hidden_layers=3, num_attention_heads=3, intermediate_size=40, max_position_embeddings=64)


def wordpiece():
    """BERT's pipeline with letters, a few words and their continuations."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *WORDS, *(f"##{p}" for p in [*LETTERS, *WORDS])]
    t = tokenizers.Tokenizer(models.WordPiece(vocab={p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=True)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    t.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    t.add_special_tokens(pieces[:5])
    config = dict(tokenizer_class="BertTokenizer", do_lower_case=True, unk_token="[UNK]", sep_token="[SEP]", pad_token="[PAD]",
                  cls_token="[CLS]", mask_token="[MASK]")
    return t, config, dict(vocab_size=len(pieces), pad_token_id=0)


def unigram():
    """XLM-RoBERTa's pipeline."""
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -3.0)]
    pieces += [(p, -5.0 - i / 50) for i, p in enumerate(LETTERS)] + [(f"▁{w}", -2.0 - i / 50) for i, w in enumerate(WORDS)]
    pieces += [("<mask>", 0.0)]
    t = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=3, byte_fallback=False))
    # A table that changes nothing: the trie's size in bytes, and a trie without entries.
    t.normalizer = normalizers.Precompiled((4 * 256).to_bytes(4, "little") + bytes(4 * 256))
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    t.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    t.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    t.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    config = dict(tokenizer_class="XLMRobertaTokenizer", bos_token="<s>", eos_token="</s>", unk_token="<unk>", sep_token="</s>",
                  pad_token="<pad>", cls_token="<s>", mask_token="<mask>")
    return t, config, dict(vocab_size=len(pieces), pad_token_id=1, bos_token_id=0, eos_token_id=2)


def byte_level():
    """Byte-level BPE; texts end with the end of text."""
    t = make_fixtures.make_tokenizer()
    end, name = make_fixtures.END, make_fixtures.SPECIALS[0]
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single=f"$A {name}", pair=f"$A {name} $B:1 {name}:1", special_tokens=[(name, end)]),
    ])
    config = dict(tokenizer_class="PreTrainedTokenizerFast", eos_token=name, pad_token=make_fixtures.SPECIALS[3])
    ids = dict(vocab_size=make_fixtures.VOCAB, bos_token_id=end, eos_token_id=end, pad_token_id=make_fixtures.PAD)
    return t, config, ids


def byte_level_answers():
    """Byte-level BPE with the answers of a reranker, and the separator that llama.cpp's converter looks for."""
    t, config, ids = byte_level()
    t.add_tokens(["yes", "no"])
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t, config, dict(ids, vocab_size=t.get_vocab_size())


class Variant:
    """kind: the class of transformers. pooling: of sentence-transformers; None for a reranker. dense: widths of dense modules. vocabulary:
    llama.cpp's converter reads it; otherwise that of byte-level BPE is written. published: the config.json of published folders. converted_as: what
    the converter shall read in config.json instead; False: it cannot convert the model."""

    def __init__(self, kind, tokenizer, pooling=None, normalize=True, dense=(), own_vocabulary=True, published=None, converted_as=None, **config):
        self.kind, self.tokenizer, self.pooling, self.normalize, self.dense = kind, tokenizer, pooling, normalize, dense
        self.own_vocabulary, self.published, self.config = own_vocabulary, published, {**SMALL, **config}
        self.converted_as = {} if converted_as is None else converted_as


VARIANTS = {
    "bert": Variant("BertModel", wordpiece, "cls", layer_norm_eps=1e-3),
    "bert-mean": Variant("BertModel", wordpiece, "mean", normalize=False, num_hidden_layers=2, layer_norm_eps=1e-3),
    "xlm-roberta": Variant("XLMRobertaModel", unigram, "cls", layer_norm_eps=1e-3, type_vocab_size=1),
    "xlm-roberta-reranker": Variant("XLMRobertaForSequenceClassification", unigram, layer_norm_eps=1e-3, type_vocab_size=1, num_labels=1),
    "nomic-bert": Variant("NomicBertModel", wordpiece, "mean", layer_norm_eps=1e-3, published={
        "n_embd": 24, "n_head": 3, "n_inner": 40, "n_layer": 3, "n_positions": 8192, "max_trained_positions": 2048,
        "activation_function": "swiglu", "layer_norm_epsilon": 1e-3, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None, "qkv_proj_bias": False,
        "mlp_fc1_bias": False, "mlp_fc2_bias": False, "prenorm": False, "causal": False, "type_vocab_size": 2, "model_type": "nomic_bert",
        "architectures": ["NomicBertModel"]}, converted_as={
        # The reference library's names, without which the converter reads its defaults.
        "hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 3, "intermediate_size": 40, "max_position_embeddings": 64,
        "layer_norm_eps": 1e-3, "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}),
    "jina-bert-v3": Variant("JinaEmbeddingsV3Model", unigram, "mean", layer_norm_eps=1e-3, type_vocab_size=1, converted_as={
        "architectures": ["XLMRobertaModel"], "lora_adaptations": ["none"], "rotary_emb_base": 10000.0}, rope_parameters={
        "rope_type": "default", "rope_theta": 10000.0}),
    "modern-bert": Variant("ModernBertModel", byte_level, "cls", own_vocabulary=False, num_hidden_layers=4, local_attention=8, norm_eps=1e-3,
                           global_attn_every_n_layers=3),
    # The converter leaves out the pooler, without which there is no score.
    "bert-reranker": Variant("BertForSequenceClassification", wordpiece, layer_norm_eps=1e-3, num_labels=1, converted_as=False),
    "modern-bert-reranker": Variant("ModernBertForSequenceClassification", byte_level, own_vocabulary=False, local_attention=8, norm_eps=1e-3,
                                    num_labels=1, classifier_pooling="mean"),
    "gemma-embedding": Variant("Gemma3TextModel", byte_level, "mean", dense=(36, 24), own_vocabulary=False, num_hidden_layers=7, head_dim=16,
                               num_key_value_heads=1, sliding_window=8, use_bidirectional_attention=True, query_pre_attn_scalar=16,
                               rms_norm_eps=1e-3),
    "qwen3-reranker": Variant("Qwen3ForCausalLM", byte_level_answers, own_vocabulary=False, head_dim=16, num_key_value_heads=1,
                              rms_norm_eps=1e-3, tie_word_embeddings=False),
    "qwen3-embedding": Variant("Qwen3Model", byte_level, "lasttoken", own_vocabulary=False, head_dim=16, num_key_value_heads=1,
                               rms_norm_eps=1e-3, tie_word_embeddings=True),
}


def random_state(model, kind, seed):
    rng = np.random.Generator(np.random.PCG64(seed))
    state = {}
    for name, parameter in sorted(model.named_parameters()):
        noise, shape = rng.standard_normal(tuple(parameter.shape)), tuple(parameter.shape)
        if name.endswith("bias"):
            value = 0.3 * noise
        elif re.search(r"norm[12]?\.weight$", name.lower()) or name.endswith("emb_ln.weight"):
            value = 0.25 * noise + (0.0 if kind.startswith("Gemma") else 1.0)
        elif "embed" in name:
            value = (0.6 / math.sqrt(shape[1]) if kind.startswith("Gemma") else 0.5) * noise
        else:
            value = 1.6 / math.sqrt(shape[-1]) * noise
        state[name] = torch.from_numpy(value.astype(np.float32))
    return state


def write_modules(folder, variant, width, rng):
    """The list of modules of sentence-transformers, and what each needs."""
    base = "sentence_transformers.models"
    modules = [("", "", f"{base}.Transformer"), ("1_Pooling", "1_Pooling", f"{base}.Pooling")]
    (folder / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{m}": m.startswith(variant.pooling) for m in ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens",
                                                                           "weightedmean_tokens", "lasttoken")}
    modes["pooling_mode_mean_sqrt_len_tokens"] = False
    make_fixtures.write_json(folder / "1_Pooling/config.json", dict(word_embedding_dimension=width, **modes, include_prompt=True))
    n_in = width
    for i, n_out in enumerate(variant.dense):
        name = f"{i + 2}_Dense"
        (folder / name).mkdir()
        make_fixtures.write_json(folder / name / "config.json", dict(in_features=n_in, out_features=n_out, bias=False,
                                 activation_function="torch.nn.modules.linear.Identity"))
        weight = torch.from_numpy((rng.standard_normal((n_out, n_in)) / math.sqrt(n_in)).astype(np.float32))
        save_file({"linear.weight": weight}, folder / name / "model.safetensors", metadata={"format": "pt"})
        modules.append((name, name, f"{base}.Dense"))
        n_in = n_out
    if variant.normalize:
        name = f"{len(modules)}_Normalize"
        (folder / name).mkdir()
        modules.append((name, name, f"{base}.Normalize"))
    make_fixtures.write_json(folder / "modules.json", [dict(idx=i, name=str(i), path=path, type=kind) for i, (_, path, kind) in enumerate(modules)])
    make_fixtures.write_json(folder / "sentence_bert_config.json", dict(max_seq_length=64, do_lower_case=False))


CHAT_TEMPLATE = (
    "{{ messages | selectattr('role', 'eq', 'system') | map(attribute='content') | first }}"
    "<|im_start|>{{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }}"
    "<|im_end|>{{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }}<|im_end|>"
    "{% if add_generation_prompt %}:{% endif %}"
)


def write_answers(folder, tokenizer):
    """What makes a decoder a reranker: which tokens are its answers, and its prompt."""
    modules = [("", "base.modules.transformer.Transformer"), ("1_LogitScore", "cross_encoder.modules.logit_score.LogitScore")]
    make_fixtures.write_json(folder / "modules.json", [dict(idx=i, name=str(i), path=path, type=f"sentence_transformers.{kind}")
                                                       for i, (path, kind) in enumerate(modules)])
    (folder / "1_LogitScore").mkdir()
    answers = dict(true_token_id=tokenizer.token_to_id("yes"), false_token_id=tokenizer.token_to_id("no"), module_input_name="causal_logits")
    make_fixtures.write_json(folder / "1_LogitScore/config.json", answers)
    forward = dict(method="forward", method_output_name="logits")
    make_fixtures.write_json(folder / "sentence_bert_config.json", dict(
        transformer_task="text-generation", modality_config=dict(text=forward, message=dict(forward, format="flat")),
        module_output_name="causal_logits", processing_kwargs=dict(chat_template=dict(add_generation_prompt=True))))
    make_fixtures.write_json(folder / "config_sentence_transformers.json", dict(
        model_type="CrossEncoder", prompts=dict(query="Which?"), default_prompt_name="query", activation_fn="torch.nn.modules.linear.Identity"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def golden_answers(folder, variant, tokenizer):
    """Texts, and the logits of both answers; sentence-transformers agrees on their difference."""
    from sentence_transformers import CrossEncoder
    encoder = CrossEncoder(str(folder), device="cpu", model_kwargs=dict(attn_implementation="eager"))
    encoder.double().eval()
    entries = []
    with make_fixtures.float64_reference(), torch.no_grad():
        for n in LENGTHS:
            text = SENTENCE[:n]
            messages = [("system", "Which?"), ("query", "who?"), ("document", text)]
            ids = encoder.tokenizer.apply_chat_template([dict(role=r, content=c) for r, c in messages], add_generation_prompt=True)["input_ids"]
            logits = encoder.model(input_ids=torch.tensor([ids])).logits[0, -1]
            output = [logits[tokenizer.token_to_id(answer)].item() for answer in ("yes", "no")]
            score = encoder.predict([("who?", text)])[0]
            assert abs(score - (output[0] - output[1])) < 1e-5, (score, output)
            entries.append(dict(text=text, ids=ids, output=[float(f"{x:.9g}") for x in output], query="who?"))
    return dict(texts=entries, reference=f"transformers {transformers.__version__}, float64")


SENTENCE = "the owl and the fox went on, singing: 7 stars, 12 moons? who knew. the sea! "


def golden(folder, variant, tokenizer):
    """Texts and what the reference libraries make of them."""
    texts = [SENTENCE[:n] for n in LENGTHS]
    entries = []
    if variant.pooling:
        from sentence_transformers import SentenceTransformer
        model = SentenceTransformer(str(folder), device="cpu", model_kwargs=dict(attn_implementation="eager")).double().eval()
    else:
        model = getattr(transformers, variant.kind).from_pretrained(folder, attn_implementation="eager").double().eval()
    with make_fixtures.float64_reference(), torch.no_grad():
        for t in texts:
            encoding = tokenizer.encode(t) if variant.pooling else tokenizer.encode("who?", t)
            ids = torch.tensor([encoding.ids])
            features = dict(input_ids=ids, attention_mask=torch.ones_like(ids))
            if any(encoding.type_ids) and not variant.pooling and model.config.to_dict().get("type_vocab_size"):
                features["token_type_ids"] = torch.tensor([encoding.type_ids])
            out = model(features)["sentence_embedding"][0] if variant.pooling else model(**features).logits[0]
            entry = dict(text=t, ids=encoding.ids, output=[float(f"{x:.9g}") for x in out])
            if any(encoding.type_ids):
                entry["types"] = encoding.type_ids
            if not variant.pooling:
                entry["query"] = "who?"
            entries.append(entry)
    return dict(texts=entries, reference=f"transformers {transformers.__version__}, float64")


CONVERT = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/gguf-py"]
own_vocabulary = sys.argv[2] == "own"
sys.argv[1:3] = []
import convert_hf_to_gguf as converter
from conversion.base import TextModel
def leaves(kind):
    for sub in kind.__subclasses__():
        yield sub
        yield from leaves(sub)
get_model_class = converter.get_model_class
def with_vocabulary(*args, **kwargs):
    found = get_model_class(*args, **kwargs)
    for kind in leaves(TextModel):
        if not own_vocabulary and "set_vocab" in vars(kind):
            kind.set_vocab = lambda self: self._set_vocab_gpt2()
    return found
converter.get_model_class = with_vocabulary
TextModel.get_vocab_base_pre = lambda *_: "gpt-2" if not own_vocabulary else "jina-v2-en"
converter.main()
"""


def convert(tree, folder, variant, path):
    if variant.converted_as:
        copy = path.parent / "converted"
        shutil.copytree(folder, copy)
        config = json.loads((copy / "config.json").read_text())
        make_fixtures.write_json(copy / "config.json", {**config, **variant.converted_as})
        convert_folder(tree, copy, variant, path)
        shutil.rmtree(copy)
        for adapter in path.parent.glob("lora-*"):
            adapter.unlink()
    else:
        convert_folder(tree, folder, variant, path)


def convert_folder(tree, folder, variant, path):
    words = [sys.executable, "-c", CONVERT, str(tree), "own" if variant.own_vocabulary else "bpe", str(folder), "--outtype", "f32", "--outfile", str(path)]
    if variant.dense:
        words.append("--sentence-transformers-dense-modules")
    done = subprocess.run(words, cwd=tree, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"llama.cpp's converter failed:\n{done.stderr[-3000:]}")


def make(name, target, llama_cpp):
    variant = VARIANTS[name]
    tokenizer, tokenizer_config, ids = variant.tokenizer()
    config_class = variant.kind.replace("TextModel", "TextConfig").replace("ForSequenceClassification", "Config").replace("ForCausalLM", "Config")
    config_class = re.sub("Model$", "Config", config_class)
    config = getattr(transformers, config_class)(**{**variant.config, **ids})
    model = getattr(transformers, variant.kind)(config).eval()
    model.load_state_dict(random_state(model, variant.kind, sum(map(ord, name))), strict=False)
    folder = target / "hf"
    folder.mkdir()
    model.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    make_fixtures.write_json(folder / "tokenizer_config.json", {**tokenizer_config, "model_max_length": 64})
    if variant.pooling:
        write_modules(folder, variant, config.hidden_size, np.random.Generator(np.random.PCG64(1)))
    is_decoder = variant.kind.endswith("ForCausalLM")
    if is_decoder:
        write_answers(folder, tokenizer)
    values = golden_answers(folder, variant, tokenizer) if is_decoder else golden(folder, variant, tokenizer)
    if variant.published:
        make_fixtures.write_json(folder / "config.json", {**variant.published, "vocab_size": ids["vocab_size"], "pad_token_id": 0})
    if variant.converted_as is not False:
        convert(llama_cpp, folder, variant, target / "model.gguf")
    (target / "golden.json").write_text(make_fixtures.compact(values))
    total = sum(f.stat().st_size for f in target.rglob("*") if f.is_file())
    print(f"{name}: {total // 1000} kB", file=sys.stderr)


exact_gelu = torch.nn.functional.gelu


def gelu(x, *args, **kwargs):
    """GELU, or what llama.cpp has of it: by tanh, in a table of half-precision numbers."""
    if not gelu.of_llama_cpp:
        return exact_gelu(x, *args, **kwargs)
    return exact_gelu(x.half().double(), approximate="tanh").half().double()


gelu.of_llama_cpp = False


class GatedLinearUnit(torch.nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gated_layers = torch.nn.Linear(width, 2 * inner, bias=False)

    def forward(self, x):
        gate, up = self.gated_layers(x).chunk(2, dim=-1)
        return gelu(gate) * up


def jina_bert_v2(ids):
    """BERT whose positions are a bias on scores, and whose feed-forward blocks are gated: a config.json, tensors by their published names, and a
    function of token ids."""
    config = transformers.BertConfig(**SMALL, layer_norm_eps=1e-3, attn_implementation="eager", **ids)
    model = transformers.BertModel(config, add_pooling_layer=False)
    for layer in model.encoder.layer:
        layer.intermediate = GatedLinearUnit(config.hidden_size, config.intermediate_size)
    model.load_state_dict(random_state(model, "BertModel", 2), strict=False)
    model.embeddings.position_embeddings.weight.data.zero_()
    model = model.double().eval()
    slopes = _get_alibi_slopes(config.num_attention_heads, "cpu").double()

    def encode(tokens):
        at = torch.arange(len(tokens), dtype=torch.float64)
        bias = -slopes[:, None, None] * (at[:, None] - at[None, :]).abs()
        return model(input_ids=torch.tensor([tokens]), attention_mask=bias[None]).last_hidden_state[0].mean(0)

    names = {".intermediate.": ".mlp.", ".output.dense": ".mlp.wo", ".output.LayerNorm": ".mlp.layernorm"}
    tensors = {}
    for name, value in model.state_dict().items():
        if ".attention." not in name:
            for ours, theirs in names.items():
                name = name.replace(ours, theirs)
        if "position" not in name:
            tensors[name] = value.float().contiguous()
    published = dict(architectures=["JinaBertModel"], model_type="bert", position_embedding_type="alibi", feed_forward_type="geglu", hidden_act="gelu",
                     emb_pooler="mean", type_vocab_size=2, layer_norm_eps=1e-3, **SMALL, **ids)
    return published, tensors, encode


class Mixture(torch.nn.Module):
    """Experts without gates: each token goes to the two of the largest weight."""

    def __init__(self, width, inner, n_experts):
        super().__init__()
        self.router = torch.nn.Linear(width, n_experts, bias=False)
        self.w1 = torch.nn.Parameter(torch.empty(n_experts, inner, width))
        self.w2 = torch.nn.Parameter(torch.empty(n_experts, inner, width))
        self.bias = torch.nn.Parameter(torch.zeros(width))

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(2)
        each = gelu(torch.einsum("btw,ehw->bteh", x, self.w1))
        each = torch.einsum("bteh,ehw->btew", each, self.w2)
        return (each.gather(2, chosen[..., None].expand(-1, -1, -1, x.shape[-1])) * weights[..., None]).sum(2) + self.bias


def nomic_bert_moe(ids, has_bias):
    """Jina v3's BERT, which has rotation and biases, too, with experts in every second layer."""
    n_experts = 4
    config = transformers.JinaEmbeddingsV3Config(**SMALL, layer_norm_eps=1e-3, type_vocab_size=1, attn_implementation="eager", **ids,
                                                 rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    model = transformers.JinaEmbeddingsV3Model(config, add_pooling_layer=False)
    for layer in model.layers[1::2]:
        layer.mlp = Mixture(config.hidden_size, config.intermediate_size, n_experts)
    model.load_state_dict(random_state(model, "NomicBertModel", 3), strict=False)
    for layer in model.layers[1::2]:
        layer.mlp.bias.data.mul_(has_bias)
    model = model.double().eval()

    def encode(tokens):
        return model(input_ids=torch.tensor([tokens])).last_hidden_state[0].mean(0)

    state = {name: value.float().contiguous() for name, value in model.state_dict().items()}
    names = {"post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2", "self_attn.o_proj": "attn.out_proj",
             "mlp.router": "mlp.router.layer", "mlp.w1": "mlp.experts.mlp.w1", "mlp.w2": "mlp.experts.mlp.w2", "mlp.bias": "mlp.experts.bias",
             "embeddings.LayerNorm": "emb_ln"}
    tensors = {}
    for name, value in state.items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        if name.startswith("layers."):
            name = f"encoder.{name}"
        if ".experts.mlp.w" in name:
            value = value.flatten(0, 1)
        if ".self_attn.q_proj" in name:
            parts = [state[name.removeprefix("encoder.").replace("q_proj", f"{part}_proj")] for part in "qkv"]
            name, value = name.replace("self_attn.q_proj", "attn.Wqkv"), torch.cat(parts)
        if ".self_attn." not in name:
            tensors[name] = value
    published = dict(
        architectures=["NomicBertModel"], model_type="nomic_bert", activation_function="gelu", n_embd=24, n_head=3, n_inner=40, n_layer=3,
        n_positions=2048, max_trained_positions=2048, layer_norm_epsilon=1e-3, rotary_emb_base=10000, rotary_emb_fraction=1.0,
        rotary_emb_interleaved=False, rotary_emb_scale_base=None, rotary_scaling_factor=None, qkv_proj_bias=True, mlp_fc1_bias=True,
        mlp_fc2_bias=True, prenorm=False, causal=False, type_vocab_size=1, num_experts=n_experts, moe_top_k=2, moe_every_n_layers=2,
        moe_normalize_expert_weights=False, expert_choice_router=False, num_shared_experts=0, hidden_size=24, **ids)
    return published, tensors, encode


# How each is made, its tokenizer, and whether llama.cpp can read all of it: it leaves out the bias behind experts.
OTHERS = {
    "jina-bert-v2": (jina_bert_v2, wordpiece, True),
    "nomic-bert-moe": (lambda ids: nomic_bert_moe(ids, 0.0), wordpiece, True),
    "nomic-bert-moe-bias": (lambda ids: nomic_bert_moe(ids, 1.0), wordpiece, False),
}


def llama_cpp_embeddings(tree, gguf, texts):
    """What llama.cpp's server makes of token ids."""
    url = "http://127.0.0.1:18739"
    words = [tree / "build/bin/llama-server", "-m", gguf, "--embedding", "--pooling", "mean", "--port", "18739", "-c", "64", "-ub", "64", "-b", "64", "-t", "1"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            for _ in range(200):
                try:
                    urllib.request.urlopen(url + "/health").read()
                    break
                except OSError:
                    time.sleep(0.1)
            body = json.dumps({"input": texts}).encode()
            request = urllib.request.Request(url + "/v1/embeddings", body, {"Content-Type": "application/json"})
            answer = json.load(urllib.request.urlopen(request))
            return [entry["embedding"] for entry in answer["data"]]
        finally:
            server.terminate()


def make_other(name, target, llama_cpp):
    """As `make`, of a model that the reference library does not have."""
    torch.nn.functional.gelu = gelu
    build, tokenizer, has_gguf = OTHERS[name]
    tokenizer, tokenizer_config, ids = tokenizer()
    published, tensors, encode = build(ids)
    folder = target / "hf"
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    make_fixtures.write_json(folder / "tokenizer_config.json", {**tokenizer_config, "model_max_length": 64})
    make_fixtures.write_json(folder / "config.json", published)
    variant = Variant(None, None, "mean")
    write_modules(folder, variant, published["hidden_size"], None)
    entries = []
    with torch.no_grad():
        for n in LENGTHS:
            tokens = tokenizer.encode(SENTENCE[:n]).ids
            vector = encode(tokens)
            entries.append(dict(text=SENTENCE[:n], ids=tokens, output=[float(f"{x:.9g}") for x in vector / vector.norm()]))
    others = []
    if has_gguf:
        # The reference library's names, without which the converter reads its defaults.
        variant.converted_as = dict(SMALL, layer_norm_eps=1e-3, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
        convert(llama_cpp, folder, variant, target / "model.gguf")
        others = llama_cpp_embeddings(llama_cpp, target / "model.gguf", [entry["ids"] for entry in entries])
    gelu.of_llama_cpp = True
    for entry, other in zip(entries, others):
        with torch.no_grad():
            vector = encode(entry["ids"])
        error = max(abs(x - y) for x, y in zip((vector / vector.norm()).tolist(), other))
        print(f"{name}: {error:.1e} from llama.cpp", file=sys.stderr)
        assert error < 5e-4, error
    gelu.of_llama_cpp = False
    reference = f"the BERT of transformers {transformers.__version__} with other parts, float64; llama.cpp's server"
    (target / "golden.json").write_text(make_fixtures.compact(dict(texts=entries, reference=reference)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=sorted([*VARIANTS, *OTHERS]), help="make this one (may be repeated)")
    parser.add_argument("--llama-cpp", type=Path, required=True, help="llama.cpp's source tree")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in args.only or [*VARIANTS, *OTHERS]:
        with tempfile.TemporaryDirectory() as scratch:
            fresh = Path(scratch) / name
            fresh.mkdir()
            (make_other if name in OTHERS else make)(name, fresh, args.llama_cpp.resolve())
            shutil.rmtree(DATA / name, ignore_errors=True)
            shutil.copytree(fresh, DATA / name)


if __name__ == "__main__":
    main()
