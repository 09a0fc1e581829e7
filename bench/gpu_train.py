#!/usr/bin/env python3
"""snug beside its rivals on one GPU, in turn: a Llama-3-8B shape with random weights, blocks of random tokens that all
carry loss; LoRA r16 on all linears, or all weights beside a rival that trains them.

    gpu_train.py --snug build/cuda-release/snug [--rival peft unsloth] [--rounds 1] [-- --device-memory 23.5GiB]

Rivals run by gpu_rival.py, Liger's kernels with peft where they are installed. Those of one call train one base format
by one method, and snug the same. Prints tokens per second and the card's memory of each, and snug's ratio to each. What
follows `--` goes to snug.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

from gpu_rival import RIVALS, card_bytes

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
WARMUP = 3


def write_inputs(options, folder):
    (folder / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": options.layers}))
    draw = random.Random(1)
    blocks = [[draw.randrange(CONFIG["vocab_size"]) for _ in range(options.sequence)] for _ in range(options.batch)]
    (folder / "blocks.jsonl").write_text("".join(json.dumps({"input_ids": b, "labels": b}) + "\n" for b in blocks))


def run_snug(options, folder):
    """Median tokens per second after the first steps; the card's memory while it runs."""
    arguments = f"--init random --device cuda --data-format tokens --sequence-length {options.sequence}"
    arguments += f" --batch-size {options.batch} --packing false --shuffle false --max-steps {options.steps + WARMUP}"
    command = [options.snug, "train", "--model", folder, "--data", folder / "blocks.jsonl", "--out", folder / "run"]
    command += ["--overwrite", *arguments.split(), "--save-every", "0", *options.job, *options.more]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    used = 0
    while process.poll() is None:
        used = max(used, card_bytes())
        time.sleep(0.5)
    errors = process.stderr.read()
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{errors}")
    if options.verbose:
        print(errors)
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(line["tokens_per_second"] for line in lines[WARMUP:]), used


def run_rival(name, options, folder):
    """What gpu_rival.py printed. It runs in the folder, where some rivals leave files."""
    script = pathlib.Path(__file__).resolve().with_name("gpu_rival.py")
    command = [sys.executable, script, name, folder, "--data", folder / "blocks.jsonl"]
    command += ["--steps", str(options.steps), "--warmup", str(WARMUP)]
    if options.rival_micro:
        command += ["--micro-batch", str(options.rival_micro)]
    if options.rival_checkpointing:
        command += ["--checkpointing", options.rival_checkpointing]
    output = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if output.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{output.stderr[-2000:]}")
    return json.loads(output.stdout.splitlines()[-1])


def parse_until_dashes(parser):
    """This program's options; what follows `--` is `more`, for snug."""
    own, more = sys.argv[1:], []
    if "--" in own:
        own, more = own[: own.index("--")], own[own.index("--") + 1 :]
    options = parser.parse_args(own)
    options.more = more
    return options


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snug", help="the program; without it, rivals alone")
    parser.add_argument("--rival", nargs="*", choices=RIVALS, default=["peft"], metavar="NAME", help=", ".join(RIVALS))
    parser.add_argument("--rival-micro", type=int, help="blocks a pass of rivals, instead of their best")
    parser.add_argument("--rival-checkpointing", choices=["true", "false"], help="instead of their best")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="what snug says")
    options = parse_until_dashes(parser)
    jobs = {RIVALS[name].job for name in options.rival} or {""}
    if len(jobs) > 1:
        parser.error("--rival: one base format and one method a call, found " + " and ".join(sorted(jobs)))
    options.job = jobs.pop().split()
    return options


def main():
    options = parse_options()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_inputs(options, folder)
        ours, theirs = [], {name: [] for name in options.rival}
        for number in range(1, options.rounds + 1):
            if options.snug:
                rate, used = run_snug(options, folder)
                ours.append(rate)
                print(f"round {number}: snug {rate:.0f} tokens/s, {used / 2**30:.2f} GiB", flush=True)
            for rival, rates in theirs.items():
                result = run_rival(rival, options, folder)
                rates.append(result["rate"])
                memory = result["bytes"] / 2**30
                print(f"round {number}: {result['title']} {rates[-1]:.0f} tokens/s, {memory:.2f} GiB", flush=True)
        for rival, rates in theirs.items():
            if ours:
                print(f"ratio of medians to {rival}: {statistics.median(ours) / statistics.median(rates):.2f}")


if __name__ == "__main__":
    main()
