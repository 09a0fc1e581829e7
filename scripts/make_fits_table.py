#!/usr/bin/env python3
"""Writes the table of docs/fits.md: what can be trained on cards of 8 to 80 GB, and how fast, as `snug plan` says.

    make_fits_table.py [--snug build/cpu-release/snug]

Each cell is a plan of its own: the fastest arrangement that fits, with its forecast. Takes half an hour or more. What
stands above and below the table is written by hand and stays.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

PAGE = pathlib.Path("docs/fits.md")
CARDS = [("8 GB", "RTX4080", "8GB"), ("16 GB", "RTX4080", ""), ("24 GB", "RTX4090", ""), ("48 GB", "L40S", ""),
         ("80 GB", "H100", "")]
HOST, DISK, LENGTH, BATCH = "64GiB", "500GB", 2048, 16
# Name, hidden size, MLP, layers, heads, heads of keys, vocabulary, tied, rope theta.
MODELS = [("Llama 3.2 1B", 2048, 8192, 16, 32, 8, 128256, True), ("Llama 3.2 3B", 3072, 8192, 28, 24, 8, 128256, True),
          ("Llama 3.1 8B", 4096, 14336, 32, 32, 8, 128256, False), ("Qwen2.5 14B", 5120, 13824, 48, 40, 8, 152064, False),
          ("Qwen2.5 32B", 5120, 27648, 64, 40, 8, 152064, False), ("Llama 3.1 70B", 8192, 28672, 80, 64, 8, 128256, False)]
METHODS = [("full", ["--method", "full"]), ("LoRA", []), ("LoRA, base in int8", ["--base-format", "int8"]),
           ("LoRA, base in nf4", ["--base-format", "nf4"])]


def write_config(folder, hidden, mlp, layers, heads, kv_heads, vocabulary, tied):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": mlp,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": 64 if hidden == 2048 else 128, "vocab_size": vocabulary, "tie_word_embeddings": tied,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16"}))


def cell(snug, model, machine, memory, method):
    words = [snug, "plan", "--model", model, "--machine", machine, "--host-memory", HOST, "--disk-memory", DISK,
             "--sequence-length", LENGTH, "--batch-size", BATCH, "--json", *method]
    if memory:
        words += ["--device-memory", memory]
    run = subprocess.run(list(map(str, words)), text=True, capture_output=True)
    if run.returncode == 3:
        return "–"
    if run.returncode:
        raise SystemExit(run.stderr)
    plan = json.loads(run.stdout)
    rate = plan["tokens_per_step"] / plan["step_seconds"]
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"


def with_table(page, table):
    """The page with the lines of its one table, from the first to the last that begin with a bar, replaced."""
    lines = page.splitlines()
    rows = [number for number, line in enumerate(lines) if line.startswith("|")]
    if not rows or rows != list(range(rows[0], rows[-1] + 1)):
        raise SystemExit(f"{PAGE}: found {'no' if not rows else 'more than one'} table, expected one to replace")
    return "\n".join(lines[:rows[0]] + table + lines[rows[-1] + 1:]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snug", type=pathlib.Path, default=pathlib.Path("build/cpu-release/snug"))
    snug = parser.parse_args().snug.resolve()
    page = PAGE.read_text()
    with_table(page, [])  # refuses now what would be refused after the work
    lines = ["| model | trained | " + " | ".join(f"{name} ({machine})" for name, machine, _ in CARDS) + " |",
             "|---|---|" + "--:|" * len(CARDS)]
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, *shape) in enumerate(MODELS):
            model = pathlib.Path(folder) / str(number)
            write_config(model, *shape)
            for method, options in METHODS:
                cells = [cell(snug, model, machine, memory, options) for _, machine, memory in CARDS]
                lines.append(f"| {name} | {method} | " + " | ".join(cells) + " |")
                print(lines[-1], flush=True)
    PAGE.write_text(with_table(page, lines))


if __name__ == "__main__":
    main()
