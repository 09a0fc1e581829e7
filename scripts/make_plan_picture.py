#!/usr/bin/env python3
"""Draws docs/plan.svg: where every byte of a card goes when a model of 8 billion parameters is trained on cards from 8 to
80 GB, as `snug plan` says.

    make_plan_picture.py [--snug build/cpu-release/snug]
"""

import argparse
import json
import pathlib
import subprocess

MODEL = pathlib.Path(__file__).resolve().parent.parent / "tests/fixtures/configs/llama-3-8b"
JOBS = [("LoRA on an H100 of 80 GB", "H100", "", []), ("LoRA on an RTX 4090 of 24 GB", "RTX4090", "", []),
        ("LoRA, base in int8, on an RTX 4080 of 16 GB", "RTX4080", "", ["--base-format", "int8"]),
        ("LoRA, base in nf4, within 8 GB of it", "RTX4080", "8GB", ["--base-format", "nf4"]),
        ("all weights on an H100 of 80 GB", "H100", "", ["--method", "full"]),
        ("all weights on an RTX 4090 of 24 GB", "RTX4090", "", ["--method", "full"])]
NAMES = {"weights": "weights", "states": "optimizer state", "gradients": "gradients", "activations": "activations",
         "logits": "logits", "other": "everything else"}
COLOURS = {"weights": "#4269d0", "states": "#efb118", "gradients": "#ff725c", "activations": "#6cc5b0",
           "logits": "#a463f2", "other": "#97a0a8"}
WIDTH, LEFT, BAR, ROW, TOP = 860, 20, 620, 58, 64


def plan(snug, machine, memory, options):
    words = [snug, "plan", "--model", MODEL, "--machine", machine, "--host-memory", "64GiB", "--disk-memory", "500GB",
             "--sequence-length", "2048", "--batch-size", "16", "--json", *options]
    if memory:
        words += ["--device-memory", memory]
    return json.loads(subprocess.run(list(map(str, words)), text=True, capture_output=True, check=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snug", type=pathlib.Path, default=pathlib.Path("build/cpu-release/snug"))
    snug = parser.parse_args().snug.resolve()
    height = TOP + ROW * len(JOBS) + 16
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
           'role="img" aria-labelledby="title">',
           '<title id="title">Where every byte goes: a model of 8 billion parameters on cards of 8 to 80 GB</title>',
           "<style>text{font:13px system-ui,sans-serif;fill:#1f2328}.n{fill:#59636e}.f{fill:#fff}"
           "@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.n{fill:#9198a1}.f{fill:#0d1117}}</style>",
           f'<rect class="f" width="{WIDTH}" height="{height}" rx="6"/>']
    x = LEFT
    for key, name in NAMES.items():
        out.append(f'<rect x="{x}" y="20" width="12" height="12" rx="2" fill="{COLOURS[key]}"/>'
                   f'<text x="{x + 17}" y="31">{name}</text>')
        x += 34 + 7 * len(name)
    out.append(f'<text class="n" x="{LEFT}" y="52">Llama-3-8B, steps of 16 blocks of 2,048 tokens, host of 64 GiB; bytes and '
               "rates as snug plan says them</text>")
    for number, (title, machine, memory, options) in enumerate(JOBS):
        found = plan(snug, machine, memory, options)
        total = found["device_bytes"]
        parts = {key: found["classes"].get(key, 0) for key in NAMES if key != "other"}
        parts["other"] = total - sum(parts.values())
        y = TOP + ROW * number
        rate = found["tokens_per_step"] / found["step_seconds"]
        host = found["host_bytes"]
        beside = f", {host / 2**30:.1f} GiB of the host" if host > 2**30 else ""
        out.append(f'<text x="{LEFT}" y="{y + 16}">{title}</text>'
                   f'<text class="n" x="{LEFT + BAR + 14}" y="{y + 38}">{rate:,.0f} tokens/s</text>'
                   f'<text class="n" x="{LEFT + BAR + 14}" y="{y + 16}">{total / 2**30:.2f} GiB{beside}</text>')
        x = float(LEFT)
        for key, size in parts.items():
            width = BAR * size / (80 * 2**30)
            out.append(f'<rect x="{x:.1f}" y="{y + 24}" width="{width:.1f}" height="18" fill="{COLOURS[key]}">'
                       f"<title>{NAMES[key]}: {size / 2**30:.2f} GiB</title></rect>")
            x += width
        print(title, f"{total / 2**30:.2f} GiB", f"{rate:,.0f} tokens/s", found["arrangement"]["words"], flush=True)
    out.append("</svg>")
    (pathlib.Path(__file__).resolve().parent.parent / "docs/plan.svg").write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
