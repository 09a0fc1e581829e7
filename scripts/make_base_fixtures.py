#!/usr/bin/env python3
"""Writes tests/fixtures/base: what transformers and peft find on bases that bitsandbytes (fp8: torch) quantised.

Needs what make_fixtures.py and make_quantize_fixtures.py need.
  make_base_fixtures.py [FOLDER]     FOLDER is tests/fixtures unless told
"""
import json
import pathlib
import shutil
import sys

import make_quantize_fixtures as quantised  # first: it decides which kernels bitsandbytes uses
import bitsandbytes.functional as bnb
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

import make_fixtures as fixtures

FORMATS = ("int8", "fp8", "nf4", "nf4_plain")


def through(weight, form):
    """The fp32 numbers that come back of a linear's weight."""
    result = {}
    if form == "int8":
        quantised.int8(weight, result, "w")
        return result["w.int8.fp32"]
    if form == "fp8":
        quantised.fp8(weight, result, "w")
        return result["w.fp8.fp32"]
    quantised.nf4(weight, result, "w")
    return result["w.nf4.fp32" if form == "nf4" else "w.nf4.plain.fp32"]


def linears(model):
    return [m for name, m in model.named_modules() if isinstance(m, torch.nn.Linear) and name != "lm_head"]


def lora_gradients(model_folder, adapter, form, samples):
    base = fixtures.load_model(model_folder, torch.float32)
    for linear in linears(base):
        linear.weight.data = through(linear.weight.data, form)
    model = PeftModel.from_pretrained(base, adapter, is_trainable=True)
    loss = fixtures.accumulate_gradients(model, samples)
    gradients = {n.replace(".default", ""): p.grad for n, p in model.named_parameters() if p.grad is not None}
    return loss, gradients


def stored_loss(folder, sample):
    """The loss of a model that transformers saved quantised, on the numbers that its codes stand for."""
    stored = load_file(folder / "model.safetensors")
    config = AutoConfig.from_pretrained(folder)
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    weights = {}
    for name, parameter in model.named_parameters():
        value = stored[name]
        if value.dtype == torch.int8:
            value = bnb.int8_vectorwise_dequant(value, stored[name.replace("weight", "SCB")])
        elif value.dtype == torch.uint8:
            state = bnb.QuantState.from_dict({k[len(name) + 1:]: v for k, v in stored.items()
                                              if k.startswith(name + ".")}, device="cpu")
            value = quantised.nf4_numbers(value.flatten(), state, torch.float32)
        weights[name] = value.float().reshape(parameter.shape)
    model.load_state_dict(weights, strict=False)
    with torch.no_grad():
        loss, count = fixtures.loss_sum(model, sample)
    return loss.item() / count


def main():
    here = pathlib.Path(__file__).resolve().parent.parent / "tests" / "fixtures"
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here
    folder, model_folder = root / "base", root / "models" / "llama"
    torch.set_num_threads(1)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    fixtures.write_large_adapter(model_folder, folder / "adapter", rank=2)
    samples = [json.loads(line) for line in (root / "models" / "data.jsonl").read_text().splitlines()]
    reference = {"loss": {}, "stored": {}}
    for form in FORMATS:
        reference["loss"][form], gradients = lora_gradients(model_folder, folder / "adapter", form, samples)
        save_file({n: g.contiguous() for n, g in gradients.items()}, folder / f"gradients.{form}.safetensors")
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 40, (24,), generator=generator).tolist()
    reference["ids"] = ids
    for form in ("int8", "nf4", "nf4_single"):
        reference["stored"][form] = stored_loss(root / "bnb" / form, {"input_ids": ids, "labels": ids})
    (folder / "reference.json").write_text(json.dumps(reference, indent=1) + "\n")
    print(json.dumps(reference))


if __name__ == "__main__":
    main()
