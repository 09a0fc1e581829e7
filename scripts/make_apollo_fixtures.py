#!/usr/bin/env python3
"""Makes steps of APOLLO by its authors' code (apollo_torch 1.0.3), in fp64: tests/fixtures/apollo.json.

    make_apollo_fixtures.py --model tests/fixtures/models/llama --out tests/fixtures/apollo.json

All weights of a model are trained: the linears of its layers by APOLLO, embeddings, head and norms by AdamW, at one rate.
Projections are drawn from snug's streams of random numbers (src/base/rng.h), by the place of a parameter among snug's,
which tests hold against the list of these in the fixture, and are rounded to fp32 as there. Their decay comes after a
step, snug's before it as AdamW's does, so that nothing decays here.
"""

import argparse
import json
import math
import pathlib
from unittest.mock import patch

import torch

from make_fixtures import load_model, make_samples, train_and_evaluate
from philox import INITIALISATION, normal

LR, STEPS, INTERVAL = 1e-2, 5, 2


def normals(stream, window, count):
    """Elements at_step(window, 0 .. count - 1) of the stream."""
    numbers = [normal((window << 40) + i, stream, INITIALISATION) for i in range(count)]
    return torch.tensor(numbers, dtype=torch.float32)


def streams(hidden):
    """Numbers of layers' linears among all parameters, which begin with embeddings; norms stand before what they feed."""
    order = [".input_layernorm", "q_proj", "k_proj", "v_proj", "o_proj", ".post_attention_layernorm", "gate_proj",
             "up_proj", "down_proj"]  # fmt: skip
    number = lambda layer, module: 1 + int(layer) * len(order) + order.index(module)  # noqa: E731
    return {name: number(name.split(".")[2], name.split(".")[-2]) for name in hidden}


def training(folder, rank, scale, scale_type):
    from apollo_torch.apollo import AdamW as Apollo
    from apollo_torch.random_projector import GradientProjector

    model, samples = load_model(folder, torch.float64), make_samples()
    named = dict(model.named_parameters())
    hidden = [name for name, p in named.items() if p.dim() > 1 and ".layers." in name]
    others = [p for name, p in named.items() if name not in hidden]
    numbers = streams(hidden)
    options = {"rank": rank, "scale": scale, "scale_type": scale_type, "update_proj_gap": INTERVAL, "proj": "random"}
    apollo = Apollo([{"params": [named[name] for name in hidden], "proj_type": "std"} | options], lr=LR, eps=1e-8)
    for name in hidden:
        apollo.state[named[name]]["seed"] = numbers[name] << 32 | 1  # the window in the lower half

    def orthogonal_matrix(self, weights, rank, type, seed):
        width = min(weights.shape)  # the side that is summed over
        drawn = normals(seed >> 32, seed & 0xFFFFFFFF, rank * width).reshape(rank, width)
        drawn = drawn * torch.tensor(1 / math.sqrt(rank), dtype=torch.float32)
        return (drawn if type == "right" else drawn.t()).double()

    with (
        patch.object(GradientProjector, "get_orthogonal_matrix", orthogonal_matrix),
        patch("apollo_torch.random_projector.next_seed", lambda seed: seed + 1),
    ):
        adamw = torch.optim.AdamW(others, lr=LR, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
        result = train_and_evaluate(model, samples, [apollo, adamw], STEPS)
    return options | {"learning_rate": LR, "streams": numbers} | result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    runs = [training(args.model, 8, 1.0, "channel"), training(args.model, 1, 16.0, "tensor")]
    args.out.write_text(json.dumps(runs) + "\n")


if __name__ == "__main__":
    main()
