#!/usr/bin/env python3
"""Makes steps of Lion in fp32, with the operations of its authors' code in torch: tests/fixtures/lion.json.

    make_lion_fixtures.py --out tests/fixtures/lion.json
"""

import argparse
import json
import pathlib

import torch

STEPS, COUNT = 4, 67
LR, BETA1, BETA2, DECAY = 3e-3, 0.9, 0.99, 0.1


def lion(weight, gradient, mean):
    weight.mul_(1 - LR * DECAY)
    update = mean.clone().mul_(BETA1).add_(gradient, alpha=1 - BETA1).sign_()
    weight.add_(update, alpha=-LR)
    mean.mul_(BETA2).add_(gradient, alpha=1 - BETA2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    generator = torch.Generator().manual_seed(5)
    weight, mean = torch.randn(COUNT, generator=generator), torch.zeros(COUNT)
    numbers = {"learning_rate": LR, "beta1": BETA1, "beta2": BETA2, "weight_decay": DECAY, "weight": weight.tolist()}
    steps = []
    for _ in range(STEPS):
        gradient = torch.randn(COUNT, generator=generator)
        gradient[::9] = 0
        lion(weight, gradient, mean)
        steps.append({"gradient": gradient.tolist(), "weight": weight.tolist(), "mean": mean.tolist()})
    args.out.write_text(json.dumps(numbers | {"steps": steps}) + "\n")


if __name__ == "__main__":
    main()
