#!/usr/bin/env python3
"""snug beside transformers + peft: LoRA r16 on all linears, blocks of 1024 tokens, in turn, on this CPU.

    cpu_train.py --snug build/cpu-release/snug --model build/demo/model --data build/demo/train.jsonl [--rounds 3]

Needs torch, transformers and peft (bench/peft_train.py, with the settings found fastest for it). Both train on the same
blocks of tokens, all of which carry loss. Prints tokens per second of both in each round, and the ratio of the medians.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

BLOCK = 1024


def token_blocks(options, path):
    """The data as whole blocks, so that neither side packs or pads."""
    command = [options.snug, "tokenize", "--model", options.model, "--data", options.data, "--json"]
    ids = []
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        ids += json.loads(line)["ids"]
    blocks = [ids[i : i + BLOCK] for i in range(0, BLOCK * (options.steps + 2), BLOCK)]
    path.write_text("".join(json.dumps({"input_ids": b, "labels": b}) + "\n" for b in blocks))


def run_snug(options, data, out):
    """Median tokens per second after two steps."""
    arguments = f"--data {data} --data-format tokens --sequence-length {BLOCK} --batch-size 1 --packing false"
    arguments += f" --shuffle false --max-steps {options.steps + 2} --threads {options.threads} --save-every 0"
    arguments += f" --out {out} --overwrite"
    command = [options.snug, "train", "--model", options.model, *arguments.split()]
    subprocess.run(command, check=True, capture_output=True)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(line["tokens_per_second"] for line in lines[2:])


def run_peft(options, data):
    script = pathlib.Path(__file__).with_name("peft_train.py")
    command = [sys.executable, script, options.model, "--data", data, "--steps", str(options.steps)]
    command += ["--threads", str(options.threads)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])["tokens_per_second"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snug", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder) / "blocks.jsonl"
        token_blocks(options, data)
        ours, theirs = [], []
        for number in range(1, options.rounds + 1):
            ours.append(run_snug(options, data, pathlib.Path(folder) / "run"))
            theirs.append(run_peft(options, data))
            print(f"round {number}: snug {ours[-1]:.0f} tokens/s, transformers + peft {theirs[-1]:.0f} tokens/s", flush=True)
        print(f"ratio of medians: {statistics.median(ours) / statistics.median(theirs):.2f}")


if __name__ == "__main__":
    main()
