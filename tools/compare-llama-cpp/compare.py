#!/usr/bin/env python3
"""Compare the logits of llama.cpp with ours on the GGUF file of every architecture's fixture.

    tools/compare-llama-cpp/compare.py LLAMA_CPP   # its source tree, built with CMake in LLAMA_CPP/build

Both programs read the same file. Where they are known to differ, by a bug or a limit of llama.cpp, ADJUSTED changes a number in a copy
of the file that both then read, so that everything else is still compared; INCOMPARABLE says why a file cannot be compared at all.
Prints the largest difference of a logit, relative to the largest logit, and fails where it exceeds what the file is allowed.
Needs numpy and gguf (PyPI), g++ and cargo.
"""

import json
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "crates/model/tests/data/arch"

TOLERANCE = 1e-4
# ggml looks GELU up in a table of half-precision numbers.
GELU_TABLE = {name: 5e-3 for name in ["gemma", "gemma2", "gemma3", "gemma4", "gemma4-moe", "gpt2", "phi2", "starcoder2"]}

EPSILON = "attention.layer_norm_rms_epsilon"
# Changes of the file that both read, and what llama.cpp is told on top.
ADJUSTED = {
    # llama.cpp normalizes latent vectors and gated delta heads with the model's epsilon, transformers with 1e-6.
    "deepseek3": ({EPSILON: 1e-6}, "deepseek2.expert_gating_func=2"),
    # Without the key llama.cpp tells a sigmoid router by the number of layers.
    "glm4moelite": ({EPSILON: 1e-6}, "deepseek2.expert_gating_func=2"),
    "qwen35": ({EPSILON: 1e-6}, None),
    "qwen35moe": ({EPSILON: 1e-6}, None),
    "qwen3next": ({EPSILON: 1e-6}, None),
    # llama.cpp reads no epsilon for this architecture and takes 0.
    "qwen2-vl": ({EPSILON: 1e-20}, None),
    # llama.cpp rounds the bounds of YaRN although the model says not to; a factor of 1 scales nothing.
    "gpt-oss": ({"rope.scaling.factor": 1.0}, None),
    # The converter writes groups of experts for models without experts, and llama.cpp refuses them.
    "nemotron-h": ({"expert_group_count": 0, "expert_group_used_count": 0}, None),
    # llama.cpp has no windows in these architectures.
    "mistral": ({"attention.sliding_window": 1000}, None),
    "phi3": ({"attention.sliding_window": 1000}, None),
}
INCOMPARABLE = {
    "deepseek2-lite": "llama.cpp tells the Lite models, which have no compressed queries, by their number of layers",
    "exaone4": "llama.cpp has windows only where there are 64 layers",
    "gpt-oss-mxfp4": "llama.cpp rounds activations to 8 bits before products with MXFP4",
    "llama-dynamic": "llama.cpp has no dynamic scaling",
    "mistral4": "llama.cpp's converter leaves out how queries grow with their position",
}


def write_prompts(golden, path):
    words = [len(golden["prompts"])]
    for prompt in golden["prompts"]:
        words += [len(prompt["ids"]), *prompt["ids"]]
    path.write_bytes(struct.pack(f"<{len(words)}i", *words))


def adjust(path, changes):
    """Changes numbers of a file's metadata in place."""
    reader = gguf.GGUFReader(str(path), "r+")
    arch = reader.fields["general.architecture"].contents()
    for key, value in changes.items():
        field = reader.fields[f"{arch}.{key}"]
        field.parts[field.data[0]][0] = value


def build(llama_cpp, work):
    libraries = llama_cpp / "build/bin"
    theirs = work / "logits"
    source = Path(__file__).with_name("logits.cpp")
    include = [f"-I{llama_cpp}/include", f"-I{llama_cpp}/ggml/include"]
    link = [f"-L{libraries}", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{libraries}"]
    subprocess.run(["g++", "-O1", *include, source, "-o", theirs, *link], check=True)
    command = ["cargo", "build", "--workspace", "--example", "logits", "--message-format", "json"]
    messages = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout.splitlines()
    ours = next(path for path in (json.loads(m).get("executable") for m in messages) if path and path.endswith("/logits"))
    return theirs, ours


def compare(name, folder, theirs, ours, work):
    """The largest relative difference of a logit."""
    changes, override = ADJUSTED.get(name, ({}, None))
    # All parts of a split file, of which the programs open the first.
    copies = [Path(shutil.copy(path, work)) for path in sorted(folder.glob("*.gguf"))]
    model = copies[0]
    if changes:
        adjust(model, changes)
    prompts = work / "prompts"
    write_prompts(json.loads((folder / "golden.json").read_text()), prompts)
    extra = [override] if override else []
    subprocess.run([theirs, model, prompts, work / "theirs", *extra], check=True)
    subprocess.run([ours, model, prompts, work / "ours"], check=True)
    a, b = (np.fromfile(work / side, "<f4") for side in ["theirs", "ours"])
    for copy in copies:
        copy.unlink()
    return np.abs(a - b).max() / np.abs(b).max()


def main():
    llama_cpp = Path(sys.argv[1]).resolve()
    failed = []
    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        theirs, ours = build(llama_cpp, work)
        for folder in sorted(FIXTURES.iterdir()):
            name = folder.name
            if not list(folder.glob("*.gguf")):
                continue
            if name in INCOMPARABLE:
                print(f"{name:24} not compared: {INCOMPARABLE[name]}")
                continue
            difference = compare(name, folder, theirs, ours, work)
            allowed = GELU_TABLE.get(name, TOLERANCE)
            print(f"{name:24} {difference:.1e}")
            if not difference <= allowed:
                failed.append(f"{name}: {difference:.1e}, and {allowed:.0e} is allowed")
    if failed:
        sys.exit("\n".join(["llama.cpp's logits differ:", *failed]))


if __name__ == "__main__":
    main()
