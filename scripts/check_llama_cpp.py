#!/usr/bin/env python3
"""Runs what `snug export` writes in llama.cpp, compares it with what llama.cpp's own quantiser writes, and what snug reads
of that quantiser's files with what llama.cpp reads.

    check_llama_cpp.py SOURCES MODEL_DIR --data FILE.jsonl [--snug build/cpu-release/snug] [--out build/llama_cpp]

SOURCES is llama.cpp's source directory, as the source distribution of llama-cpp-python has it in vendor/llama.cpp; its
programs are built in OUT, once. For each format: the types of all tensors are those that llama.cpp's quantiser gives
them in a file made of the same F16, and in Q8_0 all tensors are those of that file byte for byte, so that llama.cpp goes
on from both alike; `snug eval` finds in the exported file at most 1.01 times the loss of that file; and llama.cpp goes
on from some prompts as snug does in fp32 with the file imported again. Where weights are quantised llama.cpp rounds
activations to 8 bits, so that the two may part at a near tie: there it is only printed how many are equal. For each kind
of file that the quantiser writes without statistics of activations: snug imports the same weights, byte for byte, from
the file and from the F32 file that llama.cpp makes of it; kinds that the quantiser does not write of this model, for its
columns, are named. Needs gguf, CMake and a compiler.
"""
import argparse
import collections
import json
import pathlib
import subprocess
import sys

import gguf

FORMATS = ("f16", "bf16", "q8_0", "q4_k_m")
# Kinds of files, with all of the types that need no statistics.
READ = ("q1_0", "q2_0", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k_m", "q4_k_m", "q5_k_m", "q6_k", "tq1_0",
        "tq2_0", "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs")
ROUNDS_ACTIVATIONS = ("q8_0", "q4_k_m")
PROMPTS = ("The capital of Norway is", "Water boils when", "def fibonacci(n):", "Once upon a time, a fox", "2 + 2 =")
TOKENS = 24


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed ({done.returncode}):\n{done.stderr.decode(errors='replace')[-2000:]}")
    return done.stdout.decode(errors="replace")


def build(sources, out):
    programs = ("llama-simple", "llama-quantize")
    if not all((out / "build/bin" / name).exists() for name in programs):
        options = ("-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF",
                   "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_EXAMPLES=ON", "-DLLAMA_BUILD_TOOLS=ON")
        run("cmake", "-S", sources, "-B", out / "build", *options)
        run("cmake", "--build", out / "build", "--parallel", "2", "--target", *programs)
    return (out / "build/bin" / name for name in programs)


def types_of(path):
    return {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}


def other_tensors(path, expected):
    """The names of the tensors that differ in a byte."""
    ours = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    return [tensor.name for tensor in gguf.GGUFReader(expected).tensors
            if ours[tensor.name].tobytes() != tensor.data.tobytes()]


def check_reading(snug, quantize, source, out):
    """A line for each kind of file that snug reads otherwise than llama.cpp does."""
    failures = []
    for kind in READ:
        packed, plain = out / "read.gguf", out / "read.plain.gguf"
        done = subprocess.run([quantize, source, packed, kind.upper(), "2"], capture_output=True, check=False)
        words = (done.stdout + done.stderr).decode(errors="replace")
        if done.returncode != 0 and "no tensor type fallback" in words:
            print(f"{kind}: not written of this model by the quantiser")
            continue
        if done.returncode != 0:
            failures.append(f"{kind}: the quantiser failed: {words[-500:]}")
            continue
        run(quantize, "--allow-requantize", packed, plain, "F32", 2)
        read = []
        for path in (packed, plain):
            snug("import", path, "--out", out / "read", "--overwrite")
            read.append((out / "read/model.safetensors").read_bytes())
        if read[0] != read[1]:
            failures.append(f"{kind}: snug reads other weights than llama.cpp")
        print(f"{kind}: {'read as llama.cpp reads it' if read[0] == read[1] else 'read otherwise than by llama.cpp'}")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=pathlib.Path, metavar="SOURCES")
    parser.add_argument("model", type=pathlib.Path, metavar="MODEL_DIR")
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--snug", type=pathlib.Path, default="build/cpu-release/snug")
    parser.add_argument("--out", type=pathlib.Path, default="build/llama_cpp")
    options = parser.parse_args()
    out = options.out
    simple, quantize = build(options.sources, out)
    failures = []

    def snug(*arguments):
        return run(options.snug, *arguments)

    def loss(path):
        return json.loads(snug("eval", "--model", path, "--cache-dir", out / "cache", "--data", options.data,
                               "--sequence-length", 512, "--max-samples", 25, "--json"))["loss"]

    files = {}
    for name in FORMATS:
        snug("export", "--model", options.model, "--format", name, "--out", out / name, "--overwrite")
        files[name] = out / name / "model.gguf"
    for name, path in files.items():
        theirs = path if name == "f16" else out / f"{name}.theirs.gguf"
        if name != "f16":
            run(quantize, files["f16"], theirs, name.upper(), 2)
            ours, expected = types_of(path), types_of(theirs)
            if ours != expected:
                other = [f"{key}: {ours.get(key)}, not {expected[key]}" for key in expected if ours.get(key) != expected[key]]
                failures.append(f"{name}: types of tensors differ: {'; '.join(other[:5])}")
        if name == "q8_0" and (other := other_tensors(path, theirs)):
            failures.append(f"{name}: {len(other)} tensors differ from llama.cpp's: {', '.join(other[:5])}")
        counts = collections.Counter(types_of(path).values())
        mine, other = loss(path), loss(theirs)
        if mine > 1.01 * other:
            failures.append(f"{name}: loss {mine}, of llama.cpp's file {other}")
        agreed = []
        for prompt in PROMPTS:
            theirs_text = run(simple, "-m", path, "-ngl", 0, "-n", TOKENS, prompt).strip()
            ours = json.loads(snug("generate", "--model", path, "--cache-dir", out / "cache", "--template", "none", "--json",
                                   "--compute", "fp32", "--prompt", prompt, "--max-new-tokens", TOKENS))
            ours_text = (prompt + ours["text"]).strip()
            equal = ours_text == theirs_text
            agreed.append(equal)
            if not equal and name not in ROUNDS_ACTIVATIONS:
                failures.append(f"{name}: '{prompt}' goes on as {ours_text!r}, in llama.cpp as {theirs_text!r}")
        print(f"{name}: {dict(counts)}; loss {mine:.4f}, of llama.cpp's file {other:.4f}; "
              f"{sum(agreed)} of {len(PROMPTS)} continuations are equal")
    failures += check_reading(snug, quantize, files["f16"], out)
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
