#!/usr/bin/env python3
"""Writes blocks of every element type and what ggml decodes them to, crates/compute/tests/data/quant_vectors.gguf, and random weights as ggml
encodes them, encoded.gguf beside it.

    tools/make_quant_vectors.py --ggml FOLDER

FOLDER holds a build's libggml-base.so and libggml-cpu.so (of llama.cpp); the gguf package writes the file. Blocks are random bits, tried again
until all their numbers are finite and below 1000. For a type T the file has the tensors T.q and T.f32, as tests/quant.rs reads them. In the
other file, weights and importance (one row of it for all rows of weights) are F32; T.plain is what they become without the importance, where
ggml encodes T without, and T.weighted with it.
"""
import argparse
import ctypes
import pathlib

import gguf
import numpy as np

N_BLOCKS = 3
OUT = pathlib.Path(__file__).parent.parent / "crates/compute/tests/data"
# Rows and columns of the weights that are encoded.
N_ROWS, N_COLUMNS = 2, 1024
# Types that a model's matrices are encoded in, and those of them that ggml encodes with an importance only.
ENCODED = "Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS IQ3_S IQ3_XXS IQ2_S IQ2_XS IQ2_XXS IQ1_M IQ1_S".split()
NEED_IMPORTANCE = {"IQ2_XS", "IQ2_XXS", "IQ1_S"}


class Traits(ctypes.Structure):
    """struct ggml_type_traits of ggml.h, as far as it is read."""

    _fields_ = [
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    ]


def decode(traits: Traits, blocks: np.ndarray) -> np.ndarray:
    out = np.empty(len(blocks) // traits.type_size * traits.blck_size, np.float32)
    traits.to_float(blocks.ctypes.data, out.ctypes.data, out.size)
    return out


def sensible_blocks(traits: Traits, random: np.random.Generator, n: int) -> np.ndarray:
    blocks = []
    while len(blocks) < n:
        block = random.integers(0, 256, traits.type_size, np.uint8)
        values = decode(traits, block)
        if np.isfinite(values).all() and 1e-3 < np.abs(values).max() < 1000:
            blocks.append(block)
    return np.concatenate(blocks)


def encode(ggml: ctypes.CDLL, kind: gguf.GGMLQuantizationType, x: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
    traits = ggml.ggml_get_type_traits(int(kind)).contents
    out = np.zeros(x.size // traits.blck_size * traits.type_size, np.uint8)
    ggml.ggml_quantize_init(int(kind))
    rows, columns = (ctypes.c_int64(n) for n in x.shape)
    pointers = [ctypes.c_void_p(a.ctypes.data if a is not None else None) for a in (x, out, importance)]
    ggml.ggml_quantize_chunk(int(kind), pointers[0], pointers[1], ctypes.c_int64(0), rows, columns, pointers[2])
    return out


def write_encoded(ggml: ctypes.CDLL, random: np.random.Generator) -> None:
    # Heavier tails than a normal distribution has, as weights have them.
    x = (0.02 * random.standard_t(5, (N_ROWS, N_COLUMNS))).astype(np.float32)
    importance = np.exp(1.5 * random.standard_normal(N_COLUMNS)).astype(np.float32)
    writer = gguf.GGUFWriter(OUT / "encoded.gguf", "quant-vectors")
    writer.add_tensor("weights", x.ravel())
    writer.add_tensor("importance", importance)
    for kind in (gguf.GGMLQuantizationType[name] for name in ENCODED):
        if kind.name not in NEED_IMPORTANCE:
            writer.add_tensor(f"{kind.name}.plain", encode(ggml, kind, x, None), raw_dtype=kind)
        writer.add_tensor(f"{kind.name}.weighted", encode(ggml, kind, x, importance), raw_dtype=kind)
    finish(writer)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ggml", type=pathlib.Path, required=True)
    folder = parser.parse_args().ggml
    ggml = ctypes.CDLL(str(folder / "libggml-base.so"), ctypes.RTLD_GLOBAL)
    # Fills the table from which halves are converted.
    ctypes.CDLL(str(folder / "libggml-cpu.so")).ggml_cpu_init()
    ggml.ggml_get_type_traits.restype = ctypes.POINTER(Traits)
    random = np.random.default_rng(1)
    OUT.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(OUT / "quant_vectors.gguf", "quant-vectors")
    for kind in gguf.GGMLQuantizationType:
        traits = ggml.ggml_get_type_traits(int(kind)).contents
        # Whole numbers and wider floats are no types of weights, and blocks of Q8_1 and Q8_K are of activations.
        if not traits.to_float or kind.name in ("F32", "F64", "Q8_1", "Q8_K"):
            continue
        n = N_BLOCKS if traits.blck_size > 1 else 64
        blocks = sensible_blocks(traits, random, n)
        writer.add_tensor(f"{kind.name}.q", blocks, raw_dtype=kind)
        writer.add_tensor(f"{kind.name}.f32", decode(traits, blocks))
    finish(writer)
    write_encoded(ggml, np.random.default_rng(2))


if __name__ == "__main__":
    main()
