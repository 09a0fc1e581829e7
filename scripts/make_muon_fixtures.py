#!/usr/bin/env python3
"""Makes steps of torch's Muon, in fp64: tests/fixtures/muon.json.

    make_muon_fixtures.py --model tests/fixtures/models/llama --out tests/fixtures/muon.json

torch.optim.Muon (torch 2.9 or later) works out its directions in bf16; here that cast is left out, so that they are as
exact as the rest. `directions` are of random matrices: what a first step does, over the learning rate. `training` is of
all weights of a model: the linears of its layers by Muon, embeddings, head and norms by AdamW, at one rate.
"""

import argparse
import json
import pathlib
from unittest.mock import patch

import torch

from make_fixtures import load_model, make_samples, train_and_evaluate

LR, DECAY, STEPS = 1e-2, 0.1, 5
SHAPES = [(24, 40), (40, 24), (16, 16), (1, 9), (9, 1)]


def muon(parameters):
    return torch.optim.Muon(parameters, lr=LR, weight_decay=DECAY, momentum=0.95, nesterov=True,
                            adjust_lr_fn="match_rms_adamw")  # fmt: skip


def numbers(tensor):
    return [float(f"{number:.9g}") for number in tensor.flatten().tolist()]


def directions():
    generator = torch.Generator().manual_seed(3)
    for shape in SHAPES:
        gradient = torch.randn(shape, generator=generator)
        weight = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
        weight.grad = gradient.double()
        muon([weight]).step()
        yield {"shape": shape, "gradient": numbers(gradient), "direction": numbers(weight / -LR)}


def training(folder):
    model, samples = load_model(folder, torch.float64), make_samples()
    named = list(model.named_parameters())
    hidden = [p for name, p in named if p.dim() > 1 and ".layers." in name]
    others = [(name, p) for name, p in named if all(p is not h for h in hidden)]
    groups = [
        {"params": [p for _, p in others if p.dim() > 1], "weight_decay": DECAY},
        {"params": [p for _, p in others if p.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizers = [muon(hidden), torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.999), eps=1e-8)]
    return {"learning_rate": LR, "weight_decay": DECAY} | train_and_evaluate(model, samples, optimizers, STEPS)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    with patch.object(torch, "bfloat16", torch.float64):
        args.out.write_text(json.dumps({"directions": list(directions()), "training": training(args.model)}) + "\n")


if __name__ == "__main__":
    main()
