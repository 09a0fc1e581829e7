#!/usr/bin/env python3
"""Runs the commands that README.md and docs/ show, each page's in a folder of its own, from top to bottom.

M and the other names that pages use are tiny models with random weights, and a few samples each; training takes two
steps. A page's command fails here if snug does not exit with 0, so that no page shows an option that is not there or a
file that is not made. What cannot run here is listed below, with the reason.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "tests" / "fixtures"

# Tests or scripts of their own hold what these pages show (tests/*_doc_test.cpp, scenarios_test.cpp, scaling_test.cpp,
# option_pages_test.cpp; scripts/make_fits_table.py).
ELSEWHERE = {"scenarios.md", "scaling.md", "fits.md", "memory.md", "options.md", "translate.md"}
# Begin commands of other programs, or of other machines.
SKIPPED = {
    "scripts/demo.sh": "a stage of its own", "scripts/test.sh": "CI itself", "scripts/setup.sh": "CI itself",
    "pip install": "scripts/check_packages.sh", "apt-get install": "scripts/check_packages.sh",
    "tar -xzf": "scripts/check_packages.sh", "ollama": "another program",
    "srun": "needs Slurm", "mpirun -n 2 --host": "needs two hosts",
}  # fmt: skip

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 256,
         "num_hidden_layers": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
         "rms_norm_eps": 1e-5, "max_position_embeddings": 2048, "tie_word_embeddings": False, "bos_token_id": 1,
         "eos_token_id": 2, "torch_dtype": "bfloat16"}  # fmt: skip
AXOLOTL = """base_model: M
adapter: lora
lora_r: 16
lora_alpha: 32
lora_target_linear: true
datasets:
  - path: chats.jsonl
    type: chat_template
sequence_len: 256
micro_batch_size: 2
gradient_accumulation_steps: 1
num_epochs: 1
learning_rate: 2e-4
bf16: true
output_dir: run
"""
QUICK = {"--max-steps": "2", "--sequence-length": "256", "--batch-size": "4"}
# What a page takes as there already, by the number of the command that it comes before.
BEFORE = {
    ("runs.md", 0): "snug train --model M --data chats.jsonl --out run --max-steps 400 --save-every 400 --batch-size 1 "
                    "--sequence-length 128 --validation 0.1 --eval-every 200 --keep 9",
    ("runs.md", 2): "snug train --model M --data chats.jsonl --out run --method full --validation 0.1 --eval-every 1",
    ("serving.md", 0): "snug train --model M --data chats.jsonl --out run",
}  # fmt: skip


def commands_of(page):
    """Returns the lines of the page's code that begin with a command, without comments."""
    found, fenced, language = [], False, ""
    for line in page.read_text().splitlines():
        if line.startswith("```"):
            fenced, language = not fenced, line[3:]
            continue
        if fenced and language:  # Python, JSON
            continue
        words = line if fenced else line[4:] if line.startswith("    ") else ""
        words = re.split(r"\s#\s", words)[0].strip()
        if words and re.match(r"(snug|mpirun|srun|scripts/|pip|apt-get|tar|ollama|ssh)\b", words):
            found.append(words)
    return found


def chats(count):
    return [{"messages": [{"role": "user", "content": f"What is {n} and {n}?"},
                          {"role": "assistant", "content": f"It is {2 * n}."}]} for n in range(count)]  # fmt: skip


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_model(run, folder, config, tokenizer, data, extra):
    """Makes a model with random weights: snug draws them, trains a step at no rate, and writes what it has."""
    source = folder.with_name(folder.name + "-config")
    shutil.copytree(tokenizer, source)
    (source / "config.json").write_text(json.dumps(config))
    out = folder.with_name(folder.name + "-run")
    run(f"snug train --model {source} --init random --method full --data {data} --max-steps 1 --batch-size 1 "
        f"--learning-rate 0 --out {out} {extra}")  # fmt: skip
    (out / "model").rename(folder)


def make_inputs(run, folder):
    write_lines(folder / "chats.jsonl", chats(40))
    for name in ("held_out.jsonl", "d.jsonl", "data.jsonl"):
        write_lines(folder / name, chats(12))
    write_lines(folder / "pairs.jsonl", [
        {"prompt": f"What is {n}?", "chosen": "A number.", "rejected": "Who knows?"} for n in range(40)])  # fmt: skip
    (folder / "train.yaml").write_text(AXOLOTL)
    images = FIXTURES / "image_text" / "qwen2_vl"  # whose tokenizer of bytes has a chat template
    make_model(run, folder / "M", LLAMA, images, folder / "chats.jsonl", "--sequence-length 128")
    (folder / "M" / "preprocessor_config.json").unlink()
    for name in ("DIR", "STUDENT", "TEACHER"):
        (folder / name).symlink_to(folder / "M")
    shutil.copy(FIXTURES / "image" / "444.jpg", folder / "photo.jpg")
    write_lines(folder / "photos.jsonl", [{"messages": [{"role": "user", "content": "<image>What is it?"},
                {"role": "assistant", "content": "A photo."}], "images": ["photo.jpg"]}] * 4)  # fmt: skip
    (folder / "Qwen").mkdir()
    config = json.loads((FIXTURES / "vision" / "qwen2_vl" / "config.json").read_text())
    config |= {"image_token_id": 261, "video_token_id": 262, "vision_start_token_id": 259, "vision_end_token_id": 260}
    config["vision_config"]["patch_size"] = 14
    make_model(run, folder / "Qwen" / "Qwen2-VL-2B-Instruct", config, images, folder / "photos.jsonl",
               "--sequence-length 256")  # fmt: skip


def quick(command):
    """Returns a command of training with two steps in the place of many, and others as they are."""
    if " train " not in command:
        return command
    more = [f"{option} {value}" for option, value in QUICK.items() if option not in command]
    return " ".join([command, "--overwrite", *more])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snug", type=pathlib.Path, default=ROOT / "build/cpu-release/snug")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/nightly/doc_commands")
    parser.add_argument("pages", nargs="*", help="names of pages; all unless given")
    options = parser.parse_args()
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    environment = {**os.environ, "PATH": f"{options.snug.resolve().parent}:{os.environ['PATH']}",
                   "XDG_CACHE_HOME": str(options.out.resolve() / "cache"), "OMPI_ALLOW_RUN_AS_ROOT": "1",
                   "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # fmt: skip

    def run(command, folder=options.out):
        command = command.replace("mpirun ", "mpirun --oversubscribe ")
        try:
            done = subprocess.run(["sh", "-ec", command], cwd=folder, env=environment, input="Hello\n", text=True,
                                  errors="replace", capture_output=True, timeout=600)  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise RuntimeError("not done after 10 minutes") from error
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-600:]}")

    inputs = options.out.resolve() / "inputs"
    inputs.mkdir()
    make_inputs(run, inputs)
    ran, failed = 0, []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        if page.name in ELSEWHERE or (options.pages and page.name not in options.pages):
            continue
        folder = options.out / page.stem
        folder.mkdir()
        for item in inputs.iterdir():
            (folder / item.name).symlink_to(item)
        for number, command in enumerate(commands_of(page)):
            try:
                if before := BEFORE.get((page.name, number)):
                    run(quick(before), folder)
                if any(command.startswith(beginning) for beginning in SKIPPED):
                    continue
                begin = time.monotonic()
                run(quick(command), folder)
                ran += 1
                print(f"{time.monotonic() - begin:6.1f} s  {page.name}: {command}", flush=True)
            except RuntimeError as error:
                failed.append(f"{page.name}: {command}\n  {error}")
    print(f"{ran} commands of the documents ran")
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
