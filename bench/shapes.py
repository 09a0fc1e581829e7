#!/usr/bin/env python3
"""Steps of 40 shapes of a decoder on one card: measured beside forecast, and what each reaches beside its friendly
neighbour. A forecast should be within 10 % of what is measured, and no shape below half its neighbour's rate unless the
plan says which of its ops are slow.

    shapes.py --step build/cuda-release/bench/step --snug build/cuda-release/snug --machine PROFILE [--only WORD]

PROFILE is what `snug doctor` wrote on that card. Weights are random, every token carries loss. A shape is four layers
(one where it is very wide) of LoRA at rank 16 over 8,192 tokens a step, or as its row says.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

BASE = {"hidden": 2048, "heads": 16, "kv": 8, "dim": 128, "ffn": 5632, "vocabulary": 32000, "layers": 4, "length": 2048,
        "rank": 16, "compute": "bf16", "method": "lora"}


def shapes():
    """(name, what differs from BASE); the first of a kind is the friendly one of those after it."""
    yield "heads of 128", {}
    for dim, heads in ((32, 64), (48, 40), (64, 32), (72, 28), (80, 24), (96, 20), (100, 20), (112, 18), (160, 12),
                       (192, 10), (256, 8)):
        yield f"heads of {dim}", {"dim": dim, "heads": heads, "kv": heads // 2}
    for kv in (1, 2, 4, 16):
        yield f"16 heads, {kv} of keys", {"kv": kv}
    for vocabulary in (32001, 49152, 128256, 128257, 151936, 256000, 262208):
        yield f"{vocabulary} tokens", {"vocabulary": vocabulary}
    for length in (128, 512, 8192, 32768, 131072):
        yield f"documents of {length}", {"length": length}
    for hidden, heads, ffn, layers in ((896, 14, 4864, 8), (1536, 12, 8960, 4), (4096, 32, 14336, 2),
                                       (8192, 64, 28672, 1), (16384, 128, 53248, 1)):
        dim = hidden // heads
        yield f"hidden {hidden}", {"hidden": hidden, "heads": heads, "kv": 2 if heads == 14 else heads // 4, "dim": dim, "ffn": ffn,
                                   "layers": layers}
    for rank in (4, 8, 12, 32, 64, 256):
        yield f"rank {rank}", {"rank": rank}
    yield "fp32", {"compute": "fp32"}
    yield "all weights", {"method": "full"}


def config_of(s):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": s["hidden"],
            "intermediate_size": s["ffn"], "num_hidden_layers": s["layers"], "num_attention_heads": s["heads"],
            "num_key_value_heads": s["kv"], "head_dim": s["dim"], "vocab_size": s["vocabulary"], "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0, "max_position_embeddings": max(8192, s["length"]), "tie_word_embeddings": False,
            "torch_dtype": "bfloat16"}


def flops_of(s, tokens):
    """Of a step: every product forward, its input's gradient, and its weight's where that is trained."""
    attention = s["hidden"] * s["dim"] * (2 * s["heads"] + 2 * s["kv"])
    linears = s["layers"] * (attention + 3 * s["hidden"] * s["ffn"])
    times = 6 if s["method"] == "full" else 4
    scores = s["layers"] * 3.5 * 2 * s["heads"] * s["dim"] * s["length"]  # causal: half of all
    return tokens * (times * linears + 2 * (times / 2) * s["hidden"] * s["vocabulary"] + scores)


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return None, (done.stderr or done.stdout).strip().splitlines()[-1:]
    return done.stdout, []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", required=True)
    parser.add_argument("--snug", required=True)
    parser.add_argument("--machine", required=True)
    parser.add_argument("--only", default="", help="shapes whose name has this word")
    given = parser.parse_args()
    rates, worst = {}, []
    print("| shape | tokens/s | ms | forecast | off | of its neighbour's rate | what the plan calls slow |")
    print("|---|---:|---:|---:|---:|---:|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, differs in shapes():
            if given.only not in name and name != "heads of 128":
                continue
            s = BASE | differs
            model = pathlib.Path(folder) / name.replace(" ", "_")
            model.mkdir()
            (model / "config.json").write_text(json.dumps(config_of(s)))
            blocks = max(1, 8192 // s["length"])
            options = {"model": str(model), "init": "random", "device": "cuda", "machine": given.machine,
                       "method": s["method"], "sequence_length": s["length"], "batch_size": blocks,
                       "compute": s["compute"], "lora_rank": s["rank"] if s["method"] == "lora" else None}
            options = {key: value for key, value in options.items() if value is not None}
            out, wrong = run([given.step, "--whole"] + [f"{key}={value}" for key, value in options.items()])
            if out is None:
                print(f"| {name} | - | | | | | {' '.join(wrong)} |", flush=True)
                worst.append(name)
                continue
            found = re.search(r"([\d.]+) tokens/s, ([\d.]+) ms a step, ([\d.]+) forecast", out)
            tokens_per_second, measured, forecast = map(float, found.groups())
            plan, _ = run([given.snug, "plan", "--json"] +
                          [f"--{key.replace('_', '-')}={value}" for key, value in options.items()])
            kernels = json.loads(plan)["kernels"] if plan else []
            slow = sorted({f"{k['op']}: {k['slow']}" for k in kernels if k["slow"]})
            tokens = blocks * s["length"]
            rates[name] = flops_of(s, tokens) / measured
            friendly = rates[name] / rates["heads of 128"]
            off = forecast / measured - 1
            print(f"| {name} | {tokens_per_second:,.0f} | {measured:.2f} | {forecast:.2f} | {100 * off:+.0f} % | "
                  f"{friendly:.2f} | {'; '.join(slow)} |", flush=True)
            if abs(off) > 0.1 or (friendly < 0.5 and not slow):
                worst.append(name)
    print(f"\n{len(rates)} shapes; forecast more than 10 % off, or slow without a word: {', '.join(worst) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
