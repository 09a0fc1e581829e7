#!/usr/bin/env python3
"""What little memory and what long texts snug trains with: each job of docs/extremes.md is planned, and run with random
weights within the memory that it names.

    extremes.py --snug build/cuda-release/snug [--job NAME ...] [--steps 3] [-- --machine 1xH200]

Prints a row of the table a job: the most bytes of a card by the driver's count and of the process on the host, beside what
was planned, and tokens a second beside the forecast. What follows `--` goes to snug.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from gpu_train import parse_until_dashes, write_samples
from gpus_rival import used_bytes
from image_jobs import metrics_of

CONFIGS = pathlib.Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "configs"

# By name: the shape, tokens of a block (of both replies to a prompt where pairs are asked for), and options.
JOBS = {
    "8b-2gib": ("llama-3-8b", 512, "--lora-rank 16 --base-format nf4 --device-memory 2GiB --host-memory 16GiB"),
    "8b-bf16-3.4gib": ("llama-3-8b", 2048, "--lora-rank 16 --device-memory 3.4GiB --host-memory 32GiB"),
    "70b-5.5gib": ("llama-3-70b", 2048, "--lora-rank 16 --base-format nf4 --device-memory 5.5GiB --host-memory 60GiB"),
    "70b-bf16-23.5gib": ("llama-3-70b", 2048, "--lora-rank 16 --device-memory 23.5GiB --host-memory 170GiB"),
    "8b-32k-7.5gib": ("llama-3-8b", 32768, "--lora-rank 32 --base-format nf4 --device-memory 7.5GiB --host-memory 100GiB"),
    "8b-120k-23.5gib": ("llama-3-8b", 122880, "--lora-rank 32 --base-format nf4 --device-memory 23.5GiB --host-memory 100GiB"),
    "8b-352k-79gib": ("llama-3-8b", 360448, "--lora-rank 32 --base-format nf4 --device-memory 79GiB --host-memory 100GiB"),
    "70b-dpo-2x79gib": ("llama-3-70b", 2048, "--objective dpo --lora-rank 16 --base-format int8 --ranks 2 --batch-size 16 "
                        "--device-memory 79GiB"),
}  # fmt: skip


def batch_of(words):
    return int(words.split("--batch-size ")[1].split()[0]) if "--batch-size" in words else 1


def host_bytes(pid):
    """The most that the process has had; 0 if it has ended meanwhile."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def run_job(options, name, folder):
    shape, tokens, words = JOBS[name]
    batch = batch_of(words)
    shutil.copy(CONFIGS / shape / "config.json", folder / "config.json")
    write_samples(folder, 128000, tokens, batch, "--objective dpo" in words)
    command = [options.snug, "train", "--model", folder, "--data", folder / "samples.jsonl", "--out", folder / "run"]
    command += f"--init random --device cuda --sequence-length {tokens} --packing false --save-every 0".split()
    command += [] if "--objective" in words else ["--data-format", "tokens"]
    command += [] if "--batch-size" in words else ["--batch-size", "1"]
    command += [] if "--ranks" in words else ["--ranks", "1"]
    command += ["--max-steps", str(options.steps), *words.split(), *options.more]
    before, card, host, begin = max(used_bytes(8)), 0, 0, time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said) as process:
            while process.poll() is None:
                card = max(card, *used_bytes(8))
                host = max(host, host_bytes(process.pid))
                time.sleep(0.2)
        said.seek(0)
        errors = said.read()
    if process.returncode != 0:
        print(f"{name}: exit {process.returncode}\n{' '.join(map(str, command))}\n{errors[-3000:]}", flush=True)
        return
    lines = metrics_of(folder / "run")
    seconds = lines[-1]["step_seconds"]
    plan = json.loads((folder / "run" / "plan.json").read_text())
    forecast = f"{plan['step_seconds'] / seconds - 1:+.1%}" if plan["step_seconds"] else "none"
    print(f"| {name} | {card / 2**30:.2f} | {host / 2**30:.2f} | {batch * tokens / seconds:,.0f} | {forecast} |  "
          f"({before / 2**30:.2f} GiB of the card before it, {seconds:.2f} s a step, {time.monotonic() - begin:.0f} s in "
          f"all, losses {', '.join(str(round(line['loss'], 4)) for line in lines)})")  # fmt: skip
    keep = ("arrangement", "memory", "host", "device")
    print("".join(f"  {line}\n" for line in errors.splitlines() if line.strip().startswith(keep)), end="", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snug", required=True, help="the program")
    parser.add_argument("--job", nargs="+", choices=JOBS, default=list(JOBS), metavar="NAME", help=", ".join(JOBS))
    parser.add_argument("--steps", type=int, default=3)
    options = parse_until_dashes(parser)
    for name in options.job:
        with tempfile.TemporaryDirectory() as folder:
            run_job(options, name, pathlib.Path(folder))


if __name__ == "__main__":
    sys.exit(main())
