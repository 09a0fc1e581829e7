#!/usr/bin/env python3
"""Makes steps of transformers' Adafactor, in fp64: tests/fixtures/adafactor.json.

    make_adafactor_fixtures.py --model tests/fixtures/models/llama --out tests/fixtures/adafactor.json

All weights of a model are trained as transformers' trainer does by `--optim adafactor`: without relative steps, scaling
by parameters and momentum.
"""

import argparse
import json
import pathlib

import torch
from transformers.optimization import Adafactor

from make_fixtures import load_model, make_samples, train_and_evaluate

LR, DECAY, STEPS = 1e-2, 0.1, 5


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    model, samples = load_model(args.model, torch.float64), make_samples()
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": DECAY},
        {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0},
    ]
    adafactor = Adafactor(groups, lr=LR, scale_parameter=False, relative_step=False)
    training = train_and_evaluate(model, samples, [adafactor], STEPS)
    args.out.write_text(json.dumps({"learning_rate": LR, "weight_decay": DECAY} | training) + "\n")


if __name__ == "__main__":
    main()
