"""What Dynamo's frontend reads of a model, made from the demo model's GGUF file."""

import json

import gguf


def write_demo_folder(file, folder):
    """config.json, tokenizer.json and tokenizer_config.json; the weights stay in the file."""
    fields = gguf.GGUFReader(file).fields

    def value(key):
        return fields[key].contents()

    tokens, types = value("tokenizer.ggml.tokens"), value("tokenizer.ggml.token_type")
    eos = value("tokenizer.ggml.eos_token_id")
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": i, "content": t, **plain} for i, (t, kind) in enumerate(zip(tokens, types)) if kind == gguf.TokenType.CONTROL]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocab = {token: i for i, token in enumerate(tokens)}
    bpe = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
    bpe |= {"fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": value("tokenizer.ggml.merges")}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None}
    tokenizer |= {"pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level, "model": bpe}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "eos_token_id": eos, "bos_token_id": None}
    config |= {"max_position_embeddings": value("llama.context_length"), "vocab_size": len(tokens)}
    template = {"chat_template": value("tokenizer.chat_template"), "eos_token": tokens[eos], "bos_token": None}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in [("config", config), ("tokenizer", tokenizer), ("tokenizer_config", template)]:
        (folder / f"{name}.json").write_text(json.dumps(content))
