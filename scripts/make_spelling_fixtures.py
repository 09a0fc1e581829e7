#!/usr/bin/env python3
"""Makes adapters of models of texts and images by PEFT, with the losses on texts that PEFT gets when it loads them, and
looks at what it makes of the names that adapters had before transformers 4.52.

    make_spelling_fixtures.py tests/fixtures/spellings

tests/fixtures/README.md says what the files hold. Needs torch, transformers 5, peft and safetensors; one thread, so
that a second run writes the same bytes.
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import torch.nn.functional as F
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

transformers.logging.set_verbosity_error()
TEXT = r".*language_model\..*\.(v_proj|gate_proj)"  # and not the tower's, which snug does not read
OURS, LLAVA, QWEN = "model.language_model.", "language_model.model.", "model."
# By model: its folder, the linears that are adapted, and what names of text and tower began with.
MODELS = {
    "gemma3": ("models/gemma3_vision", TEXT, [(OURS, LLAVA)]),
    "mistral3": ("models/mistral3", TEXT, [(OURS, LLAVA)]),
    "qwen2_vl": ("vision/qwen2_vl", ["v_proj", "gate_proj", "qkv"], [(OURS, QWEN), ("model.visual.", "visual.")]),
    "qwen2_5_vl": ("vision/qwen2_5_vl", ["v_proj", "gate_proj", "qkv"], [(OURS, QWEN), ("model.visual.", "visual.")]),
}  # fmt: skip


def base_of(folder):
    return AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


@torch.no_grad()
def loss(model, samples):
    total, count = 0.0, 0
    for ids in samples:
        logits = model.eval()(input_ids=torch.tensor([ids])).logits[0, :-1].double()
        total += F.cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum").item()
        count += len(ids) - 1
    return total / count


def respelt(name, prefixes):
    path = name.removeprefix("base_model.model.")
    for ours, theirs in prefixes:
        if path.startswith(ours):
            return "base_model.model." + theirs + path.removeprefix(ours)
    return name


def main():
    root = pathlib.Path(sys.argv[1])
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    generator = torch.Generator().manual_seed(3)
    samples = [torch.randint(3, 59, (length,), generator=generator).tolist() for length in (17, 5, 30, 11)]
    expected = {}
    for name, (folder, targets, prefixes) in MODELS.items():
        base = root.parent / folder
        torch.manual_seed(1)
        config = LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=6, target_modules=targets,
                            rank_pattern={"layers.0.self_attn.v_proj": 3})  # fmt: skip
        model = get_peft_model(base_of(base), config)
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for _, parameter in sorted(model.named_parameters()):
                if parameter.requires_grad:
                    parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
        where = root / name
        model.save_pretrained(where)
        (where / "README.md").unlink(missing_ok=True)
        value = loss(PeftModel.from_pretrained(base_of(base), where), samples)
        with tempfile.TemporaryDirectory() as other:
            shutil.copytree(where, other, dirs_exist_ok=True)
            tensors = load_file(where / "adapter_model.safetensors")
            renamed = {respelt(key, prefixes): tensor for key, tensor in tensors.items()}
            assert not set(renamed) & set(tensors)
            save_file(renamed, pathlib.Path(other) / "adapter_model.safetensors", metadata={"format": "pt"})
            older = loss(PeftModel.from_pretrained(base_of(base), other), samples)
        plain = loss(base_of(base), samples)
        print(f"{name:12} {value:.8f}, under older names {older:.8f}, without it {plain:.8f}")
        assert abs(value - plain) > 1e-3
        # Of Qwen's older names peft 0.21 says that keys are missing, and goes on without them.
        assert older == (plain if name.startswith("qwen") else value)
        path = where / "adapter_config.json"
        saved = json.loads(path.read_text()) | {"base_model_name_or_path": folder}
        if isinstance(saved["target_modules"], list):
            saved["target_modules"].sort()
        path.write_text(json.dumps(saved, indent=2) + "\n")
        expected[name] = {"base": folder, "loss": value}
    (root / "samples.json").write_text(json.dumps(samples) + "\n")
    (root / "expected.json").write_text(json.dumps(expected, indent=2) + "\n")


if __name__ == "__main__":
    main()
