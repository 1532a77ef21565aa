#!/usr/bin/env python3
"""Makes the tokenizer fixtures in crates/model/tests/data/tokenizers.

Trains small tokenizers of every kind on text that this file generates, with the libraries `tokenizers` and
`sentencepiece`, and writes beside each one `<name>.vectors.json`: texts with the ids and decodings that the library
gives. GGUF twins of some hold the same vocabulary as metadata.

    pip install tokenizers==0.23.* sentencepiece==0.2.* gguf numpy
    python tools/make_tokenizers.py
"""

import json
import os
import random
import tempfile
from pathlib import Path

import gguf
import numpy as np
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = Path(__file__).resolve().parent.parent / "crates/model/tests/data/tokenizers"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPECIAL = ["<|begin|>", "<|end|>", "<|user|>"]

# --- text ---

ANIMALS = "fox owl bear rabbit hedgehog badger mouse otter".split()
PLACES = "forest river meadow village garden mountain harbour library".split()
VERBS = "found lost carried painted counted remembered borrowed repaired".split()
THINGS = "lantern kettle feather map umbrella whistle basket telescope".split()
WORLD = ["Der Igel schläft unter dem Apfelbaum.", "Le renard a trouvé une étoile.", "Лиса нашла фонарь.",
         "きつねは森で灯りを見つけた。", "狐狸在森林里找到了灯笼。", "여우가 숲에서 등불을 찾았다.", "الثعلب وجد المصباح.",
         "αλεπού και φεγγάρι", "déjà vu, naïve café"]


def corpus():
    rng = random.Random(7)
    lines = []
    for i in range(4000):
        a, b = rng.sample(ANIMALS, 2)
        line = f"The {a} {rng.choice(VERBS)} {rng.randint(1, 2026)} {rng.choice(THINGS)}s in the {rng.choice(PLACES)}"
        line += rng.choice([f", and the {b} didn't say a word.", f" — it's the {b}'s, isn't it?", "!", f" ({b}s don't)."])
        lines.append(line)
        if i % 9 == 0:
            lines.append(rng.choice(WORLD))
    return lines


TEXTS = [
    "", " ", "  ", "\n", "\t", "\r\n", " \n \n", "a", "The fox", " The fox", "the  owl   sleeps ",
    "The bear counted 12345 lanterns, didn't it?", "It'S THE OWL'S, WE'LL SEE; I'D'VE 'RE 'ſ", "x=1;y=22;z=333;w=4444",
    "line one\nline two\r\n\r\n  line three\n\n\n", "tabs\tand\u00a0spaces\u3000wide\u2003em", "café cafe\u0301 naïve ﬁn Ⅷ ½ ²",
    "狐狸在森林里 きつね 여우가 Лиса", "الثعلب وجد المصباح", "🦊🦉 👩\u200d🚀 🇫🇷 ❤️", "zero\u200bwidth\ufeffjoin\u00adsoft",
    "null\u0000byte \u0001\u007f \ufffd", "e\u0301\u0301\u0323 \u0301alone", "<|begin|>The fox<|end|>", "<|begin|",
    "a<|user|> b <|user|>c", "<|user|>\n\n the", "<s></s><unk>", "▁under▁score ▁", "CamelCase snake_case SCREAMING kebab-case",
    "https://example.org/a?b=c&d=%20#e", "def f(x):\n    return x ** 2  # square\n", "!!! ... --- ??? ,,, ''' \"\"\"",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", " " * 70, "\n" * 30, "ab" * 60,
    "unaffable unbelievably antidisestablishmentarianism", "1 22 333 4444 55555 666666", "٣٤٥ १२३ 一二三", "\U0010ffff\ue000",
    "Straße ẞ ǅ İ ı ſ K Å", "한국어 한국어", "x" * 120, "owl.Owl,OWL!owl?", " leading", "trailing ", "the\u2028line\u2029para\u0085next",
]


def vectors(name, encode, decode, ids_of=None):
    cases = []
    for text in TEXTS:
        ids = encode(text, True, True)
        cases.append({
            "text": text,
            "ids": ids,
            "ids_plain": encode(text, False, False),
            "decoded": decode(ids, False),
            "decoded_skip": decode(ids, True),
        })
    # Parts of encodings: they begin and end anywhere, in the middle of characters too.
    rng = random.Random(11)
    parts = []
    for case in cases:
        ids = case["ids"]
        if len(ids) > 2:
            start = rng.randrange(len(ids) - 1)
            parts.append(ids[start:start + rng.randint(1, 12)])
    parts = [{"ids": ids, "decoded": decode(ids, False), "decoded_skip": decode(ids, True)} for ids in parts]
    path = OUT / f"{name}.vectors.json"
    lines = lambda cases: ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases)
    path.write_text('{"cases": [\n' + lines(cases) + '\n], "parts": [\n' + lines(parts) + "\n]}\n")


def save(name, tokenizer):
    """Writes tokenizer.json and its vectors."""
    path = OUT / f"{name}.json"
    path.write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")

    def encode(text, special, parse):
        tokenizer.encode_special_tokens = not parse
        return tokenizer.encode(text, add_special_tokens=special).ids

    vectors(name, encode, lambda ids, skip: tokenizer.decode(ids, skip_special_tokens=skip))


# --- the tokenizers ---


def byte_level(name, pre_tokenizer, normalizer=None, vocab_size=700, bos=False):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, special_tokens=SPECIAL,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("owlet", single_word=True, normalized=False)])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", tokenizer.token_to_id("<|begin|>"))])
    save(name, tokenizer)
    return tokenizer


def split(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])


def train_sentencepiece(kind, vocab_size, **options):
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text"
        text.write_text("\n".join(corpus()))
        prefix = os.path.join(folder, "model")
        sentencepiece.SentencePieceTrainer.train(
            input=str(text), model_prefix=prefix, model_type=kind, vocab_size=vocab_size, minloglevel=2,
            character_coverage=1.0, hard_vocab_limit=False, num_threads=1, **options)
        model = sentencepiece.SentencePieceProcessor(model_file=prefix + ".model")
        return model, Path(prefix + ".model").read_bytes()


def sentencepiece_bpe():
    model, _ = train_sentencepiece("bpe", 900, byte_fallback=True, normalization_rule_name="identity",
                                   remove_extra_whitespaces=False, user_defined_symbols=["<|user|>"])
    n = model.get_piece_size()
    pieces = [model.id_to_piece(i) for i in range(n)]
    scores = [model.get_score(i) for i in range(n)]
    ids = {piece: i for i, piece in enumerate(pieces)}
    # Merges for tokenizer.json follow from the scores.
    merges = []
    for piece in sorted((p for i, p in enumerate(pieces) if not (model.is_control(i) or model.is_byte(i) or model.is_unknown(i) or p == "<|user|>") and len(p) > 1),
                        key=lambda p: -scores[ids[p]]):
        local = [(piece[:i], piece[i:]) for i in range(1, len(piece)) if piece[:i] in ids and piece[i:] in ids]
        merges += sorted(local, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in ["<unk>", "<s>", "</s>"]])
    tokenizer.add_tokens([AddedToken("<|user|>", normalized=False, rstrip=True)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    save("sentencepiece_bpe", tokenizer)

    # The GGUF twin, with the ids that sentencepiece itself gives.
    kinds = [gguf.TokenType.CONTROL if model.is_control(i) else gguf.TokenType.UNKNOWN if model.is_unknown(i)
             else gguf.TokenType.BYTE if model.is_byte(i) else gguf.TokenType.USER_DEFINED if pieces[i] == "<|user|>"
             else gguf.TokenType.NORMAL for i in range(n)]

    def fill(writer):
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(pieces)
        writer.add_token_scores(scores)
        writer.add_token_types(kinds)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(False)
    write_gguf("sentencepiece_bpe", fill)
    plain = [{"text": text, "ids_plain": model.encode(text)} for text in TEXTS if "<|user|>" not in text and text != "\0"]
    # The processor stops at NUL, and takes ▁ for a space at the beginning.
    plain = [case for case in plain if "\0" not in case["text"] and not case["text"].startswith("▁")]
    (OUT / "sentencepiece_bpe.gguf.vectors.json").write_text(
        '{"cases": [\n' + ",\n".join(json.dumps(case) for case in plain) + "\n]}\n")


def unigram():
    # A character map of our own: small, and with every kind of rule (one to many, many to one, removal).
    rules = [("ﬁ", "fi"), ("½", "1/2"), ("\u00a0", " "), ("\u3000", " "), ("e\u0301", "é"), ("²", "2"), ("\u200b", ""), ("\t", " ")]
    with tempfile.NamedTemporaryFile("w", suffix=".tsv", delete=False) as tsv:
        for source, target in rules:
            point = lambda text: " ".join(f"{ord(c):x}" for c in text)
            tsv.write(f"{point(source)}\t{point(target)}\n")
    model, blob = train_sentencepiece("unigram", 700, byte_fallback=False, normalization_rule_tsv=tsv.name)
    os.unlink(tsv.name)
    from sentencepiece import sentencepiece_model_pb2
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(blob)
    vocab = [(p.piece, p.score) for p in proto.pieces]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap), normalizers.Strip(left=False, right=True),
        normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="first")
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in ["<unk>", "<s>", "</s>"]])
    tokenizer.add_tokens([AddedToken("<|user|>", normalized=True, lstrip=True)])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    save("unigram", tokenizer)

    def fill(writer):
        writer.add_tokenizer_model("t5")
        writer.add_token_list([piece for piece, _ in vocab] + ["<|user|>"])
        writer.add_token_scores([score for _, score in vocab] + [0.0])
        writer.add_token_types([gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
                               + [gguf.TokenType.NORMAL] * (len(vocab) - 3) + [gguf.TokenType.USER_DEFINED])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        writer.add_precompiled_charsmap(proto.normalizer_spec.precompiled_charsmap)
    write_gguf("unigram", fill)


def word_piece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=600, show_progress=False, special_tokens=special)
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    save("word_piece", tokenizer)

    ids = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])

    def fill(writer):
        tokens = [text if text in special else text[2:] if text.startswith("##") else "▁" + text for text, _ in ids]
        writer.add_tokenizer_model("bert")
        writer.add_token_list(tokens)
        writer.add_token_types([gguf.TokenType.CONTROL if text in special else gguf.TokenType.NORMAL for text, _ in ids])
        writer.add_unk_token_id(1)
        writer.add_uint32("tokenizer.ggml.cls_token_id", 2)
        writer.add_sep_token_id(3)
        writer.add_pad_token_id(0)
    write_gguf("word_piece", fill)


def gguf_of_byte_level(name, tokenizer, pre):
    data = json.loads(tokenizer.to_str())
    ids = sorted(tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])

    def fill(writer):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list([text for text, _ in ids])
        writer.add_token_types([gguf.TokenType.CONTROL if text in SPECIAL else gguf.TokenType.USER_DEFINED
                                if text == "<tool>" else gguf.TokenType.NORMAL for text, _ in ids])
        writer.add_token_merges([" ".join(pair) for pair in data["model"]["merges"]])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)
    write_gguf(name, fill)


def write_gguf(name, fill):
    writer = gguf.GGUFWriter(str(OUT / f"{name}.gguf"), "llama")
    fill(writer)
    # A file without tensors is a vocabulary; one scalar keeps every reader content.
    writer.add_tensor("unused", np.zeros(1, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def zoo():
    """Rarer components, each in a tokenizer of its own with a tiny vocabulary."""
    def make(name, normalizer=None, pre=None, decoder=None, model=None, post=None, added=()):
        tokenizer = Tokenizer(model or models.BPE(unk_token="[UNK]"))
        if normalizer:
            tokenizer.normalizer = normalizer
        if pre:
            tokenizer.pre_tokenizer = pre
        if decoder:
            tokenizer.decoder = decoder
        if model is None:
            trainer = trainers.BpeTrainer(vocab_size=260, show_progress=False, special_tokens=["[UNK]"] + SPECIAL)
            tokenizer.train_from_iterator(corpus()[:300], trainer)
        if post:
            tokenizer.post_processor = post
        tokenizer.add_tokens(list(added))
        save("zoo_" + name, tokenizer)

    p, n, d = pre_tokenizers, normalizers, decoders
    make("whitespace", n.Sequence([n.NFD(), n.StripAccents(), n.Lowercase()]), p.Whitespace())
    make("digits", n.NFKC(), p.Sequence([p.WhitespaceSplit(), p.Digits(individual_digits=True), p.Punctuation("merged_with_previous")]))
    make("split", n.NFKD(), p.Sequence([p.Split(Regex(r"\d+|[aeiou]"), "merged_with_next"), p.Split(" ", "removed"), p.Split(Regex("[a-m]+"), "contiguous", invert=True)]))
    make("suffix", n.Strip(), p.WhitespaceSplit(), d.BPEDecoder("</w>"),
         models.BPE({c: i for i, c in enumerate(["[UNK]", "t", "h", "e", "t</w>", "h</w>", "e</w>", "th", "the</w>", "o", "x</w>", "f", "ox</w>"])},
                    [("t", "h"), ("th", "e</w>"), ("o", "x</w>")], unk_token="[UNK]", end_of_word_suffix="</w>"))
    make("prefix", None, p.WhitespaceSplit(), d.WordPiece(prefix="##", cleanup=False),
         models.BPE({c: i for i, c in enumerate(["[UNK]", "t", "##h", "##e", "th", "the", "f", "##o", "##x", "##ox", "fox"])},
                    [("t", "##h"), ("th", "##e"), ("##o", "##x"), ("f", "##ox")], unk_token="[UNK]", continuing_subword_prefix="##"))
    make("metaspace", n.Replace(Regex("[\r\n\t]+"), " "), p.Metaspace(replacement="_", prepend_scheme="always", split=True), d.Metaspace(replacement="_", prepend_scheme="always"),
         added=[AddedToken("fox", single_word=True, normalized=True), AddedToken("<|pad|>", lstrip=True, rstrip=True)])
    make("fused", n.Nmt(), p.CharDelimiterSplit(" "), d.Sequence([d.Fuse(), d.Replace("he", "HE"), d.Strip("T", 1, 0)]))
    make("falcon", None, p.Sequence([p.Punctuation("contiguous"), p.ByteLevel(add_prefix_space=False), p.Digits(False), p.Split(Regex("[0-9][0-9][0-9]"), "isolated")]), d.ByteLevel(),
         post=processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(single="$A <|end|>", special_tokens=[("<|end|>", 2)])]))
    make("prefix_space", None, p.ByteLevel(add_prefix_space=True), d.ByteLevel(), post=processors.RobertaProcessing(("<|end|>", 2), ("<|begin|>", 1)),
         added=[AddedToken("<mask>", lstrip=True)])


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    gpt2 = byte_level("gpt2", pre_tokenizers.ByteLevel(add_prefix_space=False))
    llama3 = byte_level("llama3", split(LLAMA3), bos=True)
    qwen2 = byte_level("qwen2", split(QWEN2), normalizers.NFC())
    gguf_of_byte_level("gpt2", gpt2, "gpt-2")
    gguf_of_byte_level("llama3", llama3, "llama-bpe")
    gguf_of_byte_level("qwen2", qwen2, "qwen2")
    sentencepiece_bpe()
    unigram()
    word_piece()
    zoo()


if __name__ == "__main__":
    main()
