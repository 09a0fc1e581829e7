#!/usr/bin/env python3
"""snug beside its rivals on one GPU, in turn: a model of a published shape (Llama-3-8B) with random weights, blocks of
random tokens that all carry loss; LoRA r16 on all linears, or all weights beside a rival that trains them. Beside trl-dpo
and unsloth-dpo a block is a pair: two replies to a prompt, half of each reply's tokens the prompt's.

    gpu_train.py --snug build/cuda-release/snug [--rival peft unsloth] [--rounds 1] [-- --device-memory 23.5GiB]

Rivals run by gpu_rival.py, Liger's kernels with peft where they are installed. Packages of one rival that do not go
with another's, such as two releases of TRL, lie in FOLDER/NAME of --rival-packages FOLDER. Rivals of one call train one
base format by one method, and snug the same. Prints tokens per second and the card's memory of each, what snug forecast
of both, and snug's ratio to each. What follows `--` goes to snug.
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
from gpu_shapes import SHAPES

WARMUP = 3


def write_inputs(options, folder):
    config = SHAPES[options.shape]
    if options.layers:
        config = config | {"num_hidden_layers": options.layers}
    (folder / "config.json").write_text(json.dumps(config))
    write_samples(folder, config["vocab_size"], options.sequence, options.batch, options.pairs)


def write_samples(folder, vocabulary, tokens, count, pairs):
    """Writes blocks of random tokens, all with loss; of pairs half of each reply's tokens are the prompt's."""
    draw = random.Random(1)

    def ids(count):
        return [draw.randrange(vocabulary) for _ in range(count)]

    def sample():
        if not pairs:
            block = ids(tokens)
            return {"input_ids": block, "labels": block}
        part = tokens // 4  # the prompt counts twice
        return {key: ids(part) for key in ("prompt_ids", "chosen_ids", "rejected_ids")}

    lines = [json.dumps(sample()) for _ in range(count)]
    (folder / "samples.jsonl").write_text("".join(line + "\n" for line in lines))


def run_watched(command):
    """Runs snug; returns what it says, and the most bytes that the card held meanwhile. Ends where it fails."""
    used = 0
    with tempfile.TemporaryFile("w+") as said:
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said) as process:
            while process.poll() is None:
                used = max(used, card_bytes())
                time.sleep(0.2)
        said.seek(0)
        errors = said.read()
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{errors}")
    return errors, used


def run_snug(options, folder):
    """Prints median tokens per second after the first steps and the card's memory while it runs, beside what was forecast;
    returns the rate."""
    arguments = f"--init random --device cuda --sequence-length {options.sequence} --ranks 1 --batch-size {options.batch}"
    arguments += f" --packing false --shuffle false --max-steps {options.steps + WARMUP} --save-every 0"
    arguments += "" if options.pairs else " --data-format tokens"
    command = [options.snug, "train", "--model", folder, "--data", folder / "samples.jsonl", "--out", folder / "run"]
    command += ["--overwrite", *arguments.split(), *options.job, *options.more]
    before = card_bytes()
    errors, used = run_watched(command)
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    seconds = statistics.median(line["step_seconds"] for line in lines[WARMUP:])
    rate = statistics.median(line["tokens_per_second"] for line in lines[WARMUP:])
    plan = json.loads((folder / "run" / "plan.json").read_text())
    text = f"snug {rate:.0f} tokens/s, {used / 2**30:.2f} GiB ({before / 2**30:.2f} before it)"
    if plan["step_seconds"] is not None:
        text += f", {plan['step_seconds'] / seconds - 1:+.1%} forecast of {seconds:.3f} s a step"
    print(f"{options.shape}: {text}")
    said = [line for line in errors.splitlines() if options.verbose or line.startswith(("reference:", "arrangement", "memory"))]
    print("".join(f"  {line}\n" for line in said), end="", flush=True)
    return rate


def run_rival(name, options, folder):
    """What gpu_rival.py printed. It runs in the folder, where some rivals leave files."""
    script = pathlib.Path(__file__).resolve().with_name("gpu_rival.py")
    command = [sys.executable, script, name, folder, "--data", folder / "samples.jsonl"]
    command += ["--steps", str(options.steps), "--warmup", str(WARMUP)]
    if options.rival_micro:
        command += ["--micro-batch", str(options.rival_micro)]
    if options.rival_checkpointing:
        command += ["--checkpointing", options.rival_checkpointing]
    if options.pairs:
        command += ["--references", options.rival_references]
    environment = dict(os.environ)
    if options.rival_packages:
        paths = str(options.rival_packages.resolve() / name), environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    output = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
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
    parser.add_argument("--rival-references", choices=["computed", "found"], default="computed", help="of pairs")
    parser.add_argument("--rival-packages", type=pathlib.Path, metavar="FOLDER", help="FOLDER/NAME leads NAME's PYTHONPATH")
    parser.add_argument("--shape", choices=SHAPES, default="llama-3-8b")
    parser.add_argument("--layers", type=int, help="instead of the shape's")
    parser.add_argument("--sequence", type=int, default=2048, help="tokens of a block, or of both halves of a pair")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="what snug says")
    options = parse_until_dashes(parser)
    jobs = {RIVALS[name].job for name in options.rival} or {""}
    if len(jobs) > 1:
        parser.error("--rival: one base format and one method a call, found " + " and ".join(sorted(jobs)))
    options.job = jobs.pop().split()
    options.pairs = "dpo" in options.job
    return options


def main():
    options = parse_options()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_inputs(options, folder)
        ours, theirs = [], {name: [] for name in options.rival}
        for number in range(1, options.rounds + 1):
            if options.snug:
                ours.append(run_snug(options, folder))
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
