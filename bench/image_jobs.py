#!/usr/bin/env python3
"""snug's two founding jobs with images, with random weights, on the cards of this machine: what a step takes beside what
was planned, and beside the same without images.

    image_jobs.py 2|3 --snug build/cuda-release/snug [--without-images] [--launch "mpirun -n 2 ..."] [-- OPTIONS]

2: Qwen2-VL-72B, LoRA r8 on all linears, one image of 768 x 768 pixels a block (729 of its 2,048 tokens).
3: MiniCPM-Llama3-V 2.5, everything trains, one image of nine slices and an overview a block (980 of its 2,048 tokens).

Blocks are one sample each. --without-images trains on texts of as many tokens as well, in the same call. The run ends
after --steps steps that count; nothing is saved. OPTIONS go to snug. Prints tokens per second, the most bytes of a card
that the driver counted, what was planned and forecast, and with --without-images the ratio of both rates.
"""

import argparse
import json
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from gpu_train import parse_until_dashes
from gpus_rival import used_bytes
from vision_train import FIXTURE, write_picture

ROOT = pathlib.Path(__file__).resolve().parents[1]
WARMUP, SEQUENCE, MARGIN = 2, 2048, 120
JOBS = {
    "2": {"config": "qwen2-vl-72b", "side": 768, "tokens": 729, "options": "--method lora --lora-rank 8",
          "saves_much": False},
    "3": {"config": "minicpm-llama3-v-2.5", "side": 1344, "tokens": 980,
          "options": "--method full --freeze-vision-tower false --freeze-projector false", "saves_much": True},
}  # fmt: skip
# Tokens of images, by the number that the tokenizer of bytes gives them.
QWEN = {"vision_start_token_id": 259, "vision_end_token_id": 260, "image_token_id": 261, "video_token_id": 262}
MINICPM = ["<unk>", "<image>", "</image>", "<slice>", "</slice>"]


def write_model(job, folder):
    config = json.loads((ROOT / "tests/fixtures/configs" / job["config"] / "config.json").read_text())
    tokenizer = json.loads((FIXTURE / "tokenizer.json").read_text())
    if config["model_type"] == "qwen2_vl":
        config |= QWEN | {"bos_token_id": 256, "eos_token_id": 258}
        processor = json.loads((FIXTURE / "preprocessor_config.json").read_text()) | {"max_pixels": 12845056}
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    else:
        config |= {"bos_token_id": 256, "eos_token_id": 258}
        last = tokenizer["added_tokens"][-1]
        tokenizer["added_tokens"] += [last | {"id": last["id"] + 1 + n, "content": t} for n, t in enumerate(MINICPM)]
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    shutil.copy(FIXTURE / "tokenizer_config.json", folder / "tokenizer_config.json")


def write_data(job, count, images, folder):
    import numpy

    draw, noise = random.Random(1), numpy.random.default_rng(1)
    lines = []
    for number in range(count):
        length = SEQUENCE - MARGIN - (job["tokens"] if images else 0)
        reply = "".join(draw.choice("abcdefgh ") for _ in range(length))
        sample = {"messages": [{"role": "user", "content": "<image>?" if images else "?"}, {"role": "assistant", "content": reply}]}
        if images:
            write_picture(folder / f"{number}.jpg", job["side"], noise)
            sample["images"] = [f"{number}.jpg"]
        lines.append(json.dumps(sample) + "\n")
    (folder / "data.jsonl").write_text("".join(lines))


def metrics_of(run):
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def train(options, job, images, folder):
    """Runs snug until enough steps are there; returns tokens a second."""
    write_data(job, options.batch, images, folder)
    run = folder / "run"
    words = f"--init random --device cuda --sequence-length {SEQUENCE} --packing false --shuffle false --save-every 0"
    # All weights would be saved when the run ends: it is killed before that.
    more_steps = 1000 if job["saves_much"] else 0
    words += f" --batch-size {options.batch} --max-steps {options.steps + WARMUP + more_steps} {job['options']}"
    command = [*options.launch.split(), options.snug, "train", "--model", folder, "--data", folder / "data.jsonl"]
    command += ["--out", run, "--overwrite", *words.split(), *options.more]
    used, begin = [0], time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True) as process:
            while process.poll() is None and len(metrics_of(run)) < options.steps + WARMUP + (not more_steps):
                used = [max(pair) for pair in zip(used * 8, used_bytes(8))]
                time.sleep(0.3)
            if process.poll() is None:
                subprocess.run(["kill", "-KILL", "--", f"-{process.pid}"], check=False)
        said.seek(0)
        errors = said.read()
    lines = metrics_of(run)
    if len(lines) < options.steps + WARMUP:
        sys.exit(f"{' '.join(map(str, command))}\n{errors[-4000:]}")
    seconds = statistics.median(line["step_seconds"] for line in lines[WARMUP:])
    tokens = statistics.median(line["tokens"] for line in lines[WARMUP:])
    plan = json.loads((run / "plan.json").read_text())
    rate = options.batch * SEQUENCE / seconds
    title = f"job {options.job}, {'images' if images else 'texts'}"
    forecast = f", forecast {plan['step_seconds'] / seconds - 1:+.1%}" if plan["step_seconds"] else ""
    print(f"{title}: {rate:.0f} tokens/s, {seconds:.2f} s a step{forecast}; {tokens:.0f} tokens with loss a step; the driver's "
          f"GiB a card: {', '.join(f'{card / 2**30:.2f}' for card in used)}; {time.monotonic() - begin:.0f} s in all, losses "
          f"{', '.join(str(round(line['loss'], 3)) for line in lines[:3])}", flush=True)  # fmt: skip
    keep = ("arrangement", "memory", "ranks", "time", "images", "all weights", "  step", "  load")
    print("".join(f"  {line}\n" for line in errors.splitlines() if line.startswith(keep)), end="", flush=True)
    shutil.rmtree(run)
    return rate


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--snug", required=True, help="the program")
    parser.add_argument("--without-images", action="store_true")
    parser.add_argument("--launch", default="", help="what starts several processes of snug")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--at", help="where the run's directory is made; it has room for a checkpoint, which is never written")
    options = parse_until_dashes(parser)
    job = JOBS[options.job]
    rates = []
    for images in [True, False] if options.without_images else [True]:
        with tempfile.TemporaryDirectory(dir=options.at) as name:
            folder = pathlib.Path(name)
            write_model(job, folder)
            rates.append(train(options, job, images, folder))
    if len(rates) == 2:
        print(f"with images {rates[0] / rates[1]:.3f} of the rate without")


if __name__ == "__main__":
    main()
