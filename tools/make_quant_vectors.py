#!/usr/bin/env python3
"""Writes blocks of every element type and what ggml decodes them to: crates/compute/tests/data/quant_vectors.gguf.

    tools/make_quant_vectors.py --ggml FOLDER

FOLDER holds a build's libggml-base.so and libggml-cpu.so (of llama.cpp); the gguf package writes the file. Blocks are random bits, tried again
until all their numbers are finite and below 1000. For a type T the file has the tensors T.q and T.f32, as tests/quant.rs reads them.
"""
import argparse
import ctypes
import pathlib

import gguf
import numpy as np

N_BLOCKS = 3
OUT = pathlib.Path(__file__).parent.parent / "crates/compute/tests/data/quant_vectors.gguf"


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ggml", type=pathlib.Path, required=True)
    folder = parser.parse_args().ggml
    ggml = ctypes.CDLL(str(folder / "libggml-base.so"), ctypes.RTLD_GLOBAL)
    # Fills the table from which halves are converted.
    ctypes.CDLL(str(folder / "libggml-cpu.so")).ggml_cpu_init()
    ggml.ggml_get_type_traits.restype = ctypes.POINTER(Traits)
    random = np.random.default_rng(1)
    OUT.parent.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(OUT, "quant-vectors")
    for kind in gguf.GGMLQuantizationType:
        traits = ggml.ggml_get_type_traits(int(kind)).contents
        # Whole numbers and wider floats are no types of weights, and blocks of Q8_1 and Q8_K are of activations.
        if not traits.to_float or kind.name in ("F32", "F64", "Q8_1", "Q8_K"):
            continue
        n = N_BLOCKS if traits.blck_size > 1 else 64
        blocks = sensible_blocks(traits, random, n)
        writer.add_tensor(f"{kind.name}.q", blocks, raw_dtype=kind)
        writer.add_tensor(f"{kind.name}.f32", decode(traits, blocks))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
