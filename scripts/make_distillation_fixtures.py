#!/usr/bin/env python3
"""Makes the reference values of learning from a teacher, in fp64 by autograd: tests/fixtures/objective/distill.json.

    make_distillation_fixtures.py --model tests/fixtures/models/llama --teacher tests/fixtures/models/llama_gqa7 \\
        --out tests/fixtures/objective

Three steps of the four chosen replies of pairs.jsonl. Of each row the teacher's 64 most likely tokens (`few`: 3) and any
other token are the outcomes, over which both models' softmax are set against each other by torch's kl_div; beside that stands the
cross-entropy.
"""

import argparse
import json
import pathlib

import torch
import torch.nn.functional as F

from make_objective_fixtures import PAIRS, load, train_steps, use_fp64

VARIANTS = {
    "forward": {},
    "reverse": {"distill_beta": 1.0},
    "between": {"distill_beta": 0.25},
    "warm": {"distill_beta": 0.5, "distill_temperature": 2.0},
    "beside": {"distill_weight": 0.5, "distill_temperature": 0.5},
    "weights": {"distill_weight": 0.75, "weights": True},
    "few": {"distill_beta": 0.5, "teacher_top_k": 3},
}
DEFAULTS = {"distill_beta": 0.0, "distill_temperature": 1.0, "distill_weight": 1.0, "teacher_top_k": 64}


def rows(model, pair):
    """Logits of each token of a reply."""
    ids, begin = pair["prompt"] + pair["chosen"], len(pair["prompt"])
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, begin - 1 : -1]


def outcomes(logits, ids, temperature):
    """Log-probabilities of the tokens, and of all others together."""
    log_p = F.log_softmax(logits / temperature, -1)
    others = torch.ones_like(log_p, dtype=torch.bool).scatter(1, ids, False)
    rest = log_p.masked_fill(~others, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.cat([log_p.gather(1, ids), rest], -1)


def divergence(teacher, model, beta):
    """Of each row; kl_div(a, b) is KL(b | a)."""
    kl = lambda of, over: F.kl_div(of, over, reduction="none", log_target=True).sum(-1)
    if beta == 0:
        return kl(model, teacher)
    if beta == 1:
        return kl(teacher, model)
    mixture = (beta * teacher.exp() + (1 - beta) * model.exp()).log()
    return beta * kl(mixture, teacher) + (1 - beta) * kl(mixture, model)


def step_loss(model, teacher, options, pairs):
    tokens = sum(len(pair["chosen"]) for pair in pairs)
    total, distance, agreement = 0.0, 0.0, 0.0
    for i, pair in enumerate(pairs):
        with torch.no_grad():
            theirs = rows(teacher, pair)
        logits, ids = rows(model, pair), theirs.topk(options["teacher_top_k"]).indices
        parts = [outcomes(x, ids, options["distill_temperature"]) for x in (theirs, logits)]
        weight = 0.5 + 0.25 * i if options.get("weights") else 1.0
        found = weight * divergence(*parts, options["distill_beta"]).sum()
        cross_entropy = weight * F.cross_entropy(logits, torch.tensor(pair["chosen"]), reduction="sum")
        share = options["distill_weight"]
        total = total + (share * found + (1 - share) * cross_entropy) / tokens
        distance += found.item() / tokens
        agreement += (logits.argmax(-1) == theirs.argmax(-1)).sum().item() / tokens
    return total, {"kl": distance, "agreement": agreement}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--model", "--teacher", "--out"):
        parser.add_argument(name, type=pathlib.Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    use_fp64()
    pairs = [json.loads(line) for line in (args.out / "pairs.jsonl").read_text().splitlines()]
    teacher, expected = load(args.teacher), {}
    for name, given in VARIANTS.items():
        options = DEFAULTS | given
        steps = train_steps(
            args.model,
            lambda model, first: step_loss(model, teacher, options, pairs[first : first + PAIRS]),
        )
        expected[name] = {"options": given, "steps": steps}
        print(name, " ".join(f"{step['loss']:.9f} {step['metrics']['agreement']:.3f}" for step in steps))
    (args.out / "distill.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
