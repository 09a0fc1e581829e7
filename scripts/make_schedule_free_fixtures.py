#!/usr/bin/env python3
"""Makes steps of schedule-free AdamW by its authors' package, in fp64: tests/fixtures/schedule_free.json.

    pip install torch transformers peft schedulefree==1.4.1
    make_schedule_free_fixtures.py --model tests/fixtures/models/llama --out tests/fixtures/schedule_free.json

`steps` are of random gradients. `training` is of all weights of a model, held out losses are those of the average.
"""

import argparse
import json
import pathlib

import torch
from schedulefree import AdamWScheduleFree

from make_fixtures import load_model, make_samples, train_and_evaluate

STEPS, COUNT = 6, 67
LR, BETA1, BETA2, EPSILON, DECAY, WARMUP = 3e-2, 0.9, 0.95, 1e-8, 0.1, 3
TRAINING_LR, TRAINING_STEPS = 1e-2, 4


def random_steps(numbers):
    generator = torch.Generator().manual_seed(6)
    weight = torch.randn(COUNT, generator=generator).double()  # numbers of fp32, as gradients are
    numbers["weight"] = weight.tolist()
    weight.requires_grad_()
    optimizer = AdamWScheduleFree(
        [weight], lr=LR, betas=(BETA1, BETA2), eps=EPSILON, weight_decay=DECAY, warmup_steps=WARMUP, foreach=False
    )
    for _ in range(STEPS):
        gradient = torch.randn(COUNT, generator=generator)
        gradient[::9] = 0
        optimizer.train()
        weight.grad = gradient.double()
        optimizer.step()
        group, state = optimizer.param_groups[0], optimizer.state[weight]
        step = {
            "learning_rate": group["scheduled_lr"],
            "gradient": gradient.tolist(),
            "y": weight.tolist(),
            "z": state["z"].tolist(),
            "second_moment": state["exp_avg_sq"].tolist(),
        }
        optimizer.eval()
        yield step | {"x": weight.tolist()}


def training(folder):
    model, samples = load_model(folder, torch.float64), make_samples()
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": DECAY},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer = AdamWScheduleFree(groups, lr=TRAINING_LR, betas=(BETA1, BETA2), eps=EPSILON, foreach=False)
    return {"learning_rate": TRAINING_LR} | train_and_evaluate(model, samples, [optimizer], TRAINING_STEPS)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    numbers = {"beta1": BETA1, "beta2": BETA2, "epsilon": EPSILON, "weight_decay": DECAY}
    steps = list(random_steps(numbers))
    args.out.write_text(json.dumps(numbers | {"steps": steps, "training": training(args.model)}) + "\n")


if __name__ == "__main__":
    main()
