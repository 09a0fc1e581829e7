#!/usr/bin/env python3
"""Makes the reference values of what is added to the cross-entropy of replies, in fp64: tests/fixtures/objective/sft.json.

    make_sft_fixtures.py --model tests/fixtures/models/llama --out tests/fixtures/objective

Three steps of the four chosen replies of pairs.jsonl: label smoothing by transformers' LabelSmoother, z-loss, and noise
on embeddings (NEFTune) as a hook on the embedding module adds it, with uniform numbers by Philox 4x32-10.
"""

import json
import math

import torch
from transformers.trainer_pt_utils import LabelSmoother

from make_objective_fixtures import PAIRS, begin, load, train_steps
from philox import NOISE, bits

VARIANTS = {
    "label_smoothing": {"label_smoothing": 0.1},
    "z_loss": {"z_loss": 0.01},
    "both": {"label_smoothing": 0.2, "z_loss": 0.001},
    "neftune": {"neftune_alpha": 5.0},
}


def uniform(index):
    """Element `index` of the stream, in [-1, 1)."""
    return 2 * (bits(index, 0, NOISE) >> 8) / 2**24 - 1


def noise(step, first_token, length, hidden, alpha):
    """Of a document whose first token is number `first_token` of its step's, without padding."""
    begin = (step << 40) + first_token * hidden
    values = [uniform(begin + i) for i in range(length * hidden)]
    return torch.tensor(values, dtype=torch.float64).view(1, length, hidden) * alpha / math.sqrt(length * hidden)


def step_loss(model, options, pairs, step):
    smoother = LabelSmoother(epsilon=options.get("label_smoothing", 0.0))
    total, first_token = 0.0, 0
    tokens = sum(len(pair["chosen"]) for pair in pairs)
    for pair in pairs:
        ids = torch.tensor([pair["prompt"] + pair["chosen"]])
        labels = torch.tensor([[-100] * len(pair["prompt"]) + pair["chosen"]])
        handle = None
        if "neftune_alpha" in options:
            added = noise(step, first_token, ids.shape[1], model.config.hidden_size, options["neftune_alpha"])
            handle = model.get_input_embeddings().register_forward_hook(lambda m, i, output, added=added: output + added)
        logits = model(input_ids=ids, use_cache=False).logits
        if handle:
            handle.remove()
        count = len(pair["chosen"])
        total = total + smoother({"logits": logits}, labels, shift_labels=True) * count / tokens
        rows = logits[0, len(pair["prompt"]) - 1 : -1]
        total = total + options.get("z_loss", 0.0) * rows.logsumexp(-1).pow(2).sum() / tokens
        first_token += ids.shape[1]
    return total, {}


def main():
    args = begin(__doc__)
    pairs = [json.loads(line) for line in (args.out / "pairs.jsonl").read_text().splitlines()]
    with torch.no_grad():
        expected = {"cross_entropy": step_loss(load(args.model), {}, pairs[:PAIRS], 1)[0].item()}
    for name, options in VARIANTS.items():
        steps = train_steps(
            args.model,
            lambda model, first: step_loss(model, options, pairs[first : first + PAIRS], first // PAIRS + 1),
        )
        expected[name] = {"options": options, "steps": steps}
        print(name, " ".join(f"{step['loss']:.9f}" for step in steps))
    (args.out / "sft.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
