#!/usr/bin/env python3
"""Writes tests/fixtures/models/llama16, a tiny model whose sizes are multiples of 16, and tests/fixtures/fp8: what
transformers and peft find on it where the products of linears are in fp8.

Needs what make_fixtures.py needs.
  make_fp8_fixtures.py [FOLDER]     FOLDER is tests/fixtures unless told
"""
import json
import pathlib
import shutil
import sys

import torch
from peft import PeftModel
from safetensors.torch import save_file
from transformers import LlamaConfig

import make_fixtures as fixtures

FAMILY = {
    "config": LlamaConfig(hidden_size=64, intermediate_size=160, num_attention_heads=4, num_key_value_heads=2,
                          head_dim=16, rope_parameters=fixtures.rope(10000.0), tie_word_embeddings=False,
                          **fixtures.LLAMA),
    "dtype": torch.bfloat16,
}


def rounded(x):
    """The numbers of x's rows in float8_e4m3fn, and the rows' scales."""
    scales = x.float().abs().amax(dim=-1, keepdim=True) / 448
    codes = (x.float() / scales).clamp(-448, 448).to(torch.float8_e4m3fn).float()
    return torch.where(scales > 0, codes, 0.0), scales


class Fp8Linear(torch.autograd.Function):
    """y = x W^T and dx = dy W, factors rounded row by row; dy is multiplied by the scales of W's rows before. In dW =
    dy^T x both are rounded column by column."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.numbers, ctx.scales = rounded(weight)
        ctx.save_for_backward(x)
        left, scales = rounded(x)
        return (left @ ctx.numbers.T * scales * ctx.scales.T).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        left, scales = rounded(dy.float() * ctx.scales.T)
        dx = (left @ ctx.numbers * scales).to(dy.dtype)
        if not ctx.needs_input_grad[1]:
            return dx, None
        (x,) = ctx.saved_tensors
        left, scales = rounded(dy.flatten(0, -2).T)
        right, right_scales = rounded(x.flatten(0, -2).T)
        return dx, (left @ right.T * scales * right_scales.T).to(dy.dtype)


def load_model(model_folder):
    model = fixtures.load_model(model_folder, torch.bfloat16)
    for name, linear in model.named_modules():
        if isinstance(linear, torch.nn.Linear) and name != "lm_head":
            linear.forward = lambda x, weight=linear.weight: Fp8Linear.apply(x, weight)
    return model


def gradients(model, samples):
    loss = fixtures.accumulate_gradients(model, samples)
    found = {n.replace(".default", ""): p.grad.float() for n, p in model.named_parameters() if p.grad is not None}
    return loss, {n: g.contiguous() for n, g in found.items()}


def main():
    here = pathlib.Path(__file__).resolve().parent.parent / "tests" / "fixtures"
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here
    folder, model_folder = root / "fp8", root / "models" / "llama16"
    torch.set_num_threads(1)
    for each in (folder, model_folder):
        shutil.rmtree(each, ignore_errors=True)
        each.mkdir(parents=True)
    fixtures.write_model(model_folder, FAMILY, 11)
    fixtures.write_large_adapter(model_folder, model_folder / "adapter_init", rank=4)
    samples = [json.loads(line) for line in (root / "models" / "data.jsonl").read_text().splitlines()]
    adapted = PeftModel.from_pretrained(load_model(model_folder), model_folder / "adapter_init", is_trainable=True,
                                        autocast_adapter_dtype=False)
    losses = {}
    for name, model in (("lora", adapted), ("full", load_model(model_folder))):
        losses[name], found = gradients(model, samples)
        save_file(found, folder / f"{name}.safetensors")
    fixtures.write_json(folder / "losses.json", losses)
    print(losses)


if __name__ == "__main__":
    main()
