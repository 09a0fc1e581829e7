#!/usr/bin/env python3
"""Makes tests/fixtures/sampling.json: what the logits processors of transformers make of some logits.

    python scripts/make_sampling_fixtures.py [--out tests/fixtures/sampling.json]

A list of {"options": {...}, "text": token ids, "logits": [...], "probabilities": [...]}, the last in fp64.
"""
import argparse
import json
import random

import torch
from transformers import (LogitsProcessorList, MinPLogitsWarper, RepetitionPenaltyLogitsProcessor,
                          TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)

OPTIONS = (
    {"temperature": 0.7},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.5, "top_p": 0.8},
    {"temperature": 0.9, "min_p": 0.15},
    {"temperature": 1.0, "repetition_penalty": 1.3},
    {"temperature": 0.8, "repetition_penalty": 0.7, "top_k": 9},
    {"temperature": 1.1, "repetition_penalty": 1.2, "top_k": 12, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 2.0, "top_p": 1e-6},
)


def processors(options):
    made = LogitsProcessorList()
    if "repetition_penalty" in options:
        made.append(RepetitionPenaltyLogitsProcessor(options["repetition_penalty"]))
    made.append(TemperatureLogitsWarper(options["temperature"]))
    if "top_k" in options:
        made.append(TopKLogitsWarper(options["top_k"]))
    if "top_p" in options:
        made.append(TopPLogitsWarper(options["top_p"]))
    if "min_p" in options:
        made.append(MinPLogitsWarper(options["min_p"]))
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="tests/fixtures/sampling.json")
    arguments = parser.parse_args()
    rng = random.Random(11)
    cases = []
    for options in OPTIONS:
        for _ in range(3):
            logits = [round(rng.gauss(0, 3), 3) for _ in range(23)]
            text = [rng.randrange(23) for _ in range(9)]
            scores = processors(options)(torch.tensor([text]), torch.tensor([logits], dtype=torch.float64))
            cases.append({"options": options, "text": text, "logits": logits,
                          "probabilities": torch.softmax(scores, -1)[0].tolist()})
    with open(arguments.out, "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
