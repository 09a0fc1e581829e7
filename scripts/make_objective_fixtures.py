#!/usr/bin/env python3
"""Makes the reference values of preference objectives, in fp64 by autograd: tests/fixtures/objective.

    make_objective_fixtures.py --model tests/fixtures/models/llama --out tests/fixtures/objective

Three steps of four pairs on a tiny model: loss, gradient norm and metrics of each, and of the first step the norm of
every parameter's gradient and its product with the parameter. transformers passes norms and rotary tables through fp32
whatever the dtype: both are replaced.
"""

import argparse
import json
import math
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.models.llama import modeling_llama

STEPS, PAIRS, VOCABULARY = 3, 4, 997
VARIANTS = {
    "sigmoid": {"objective": "dpo"},
    "cdpo": {"objective": "dpo", "label_smoothing": 0.1},
    "robust": {"objective": "dpo", "label_smoothing": 0.1},
    "hinge": {"objective": "dpo"},
    "ipo": {"objective": "dpo"},
    "sigmoid_norm": {"objective": "dpo", "beta": 5.0},
    "apo_zero": {"objective": "dpo"},
    "apo_down": {"objective": "dpo"},
    "sigmoid+nll": {"objective": "dpo", "nll_weight": 0.5},
    "orpo": {"objective": "orpo", "nll_weight": 1.0},
    "simpo": {"objective": "simpo", "beta": 2.0, "simpo_gamma": 1.0},
    "simpo+nll": {"objective": "simpo", "beta": 2.0, "simpo_gamma": 0.5, "nll_weight": 1.0},
}
DEFAULTS = {"beta": 0.1, "label_smoothing": 0.0, "nll_weight": 0.0, "simpo_gamma": 0.5}


def use_fp64():
    def norm(self, x):
        return self.weight * x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    def rotary(self, x, position_ids):
        exponents = torch.arange(0, self.config.head_dim, 2, dtype=torch.float64) / self.config.head_dim
        angles = position_ids[..., None].double() * self.config.rope_parameters["rope_theta"] ** -exponents
        return torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()

    modeling_llama.LlamaRMSNorm.forward = norm
    modeling_llama.LlamaRotaryEmbedding.forward = rotary


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="sdpa")


def make_pairs():
    generator = torch.Generator().manual_seed(41)

    def draw(low, high):
        count = int(torch.randint(low, high, (1,), generator=generator))
        return torch.randint(3, VOCABULARY, (count,), generator=generator).tolist()

    return [{"prompt": draw(1, 12), "chosen": draw(1, 14), "rejected": draw(1, 14)} for _ in range(STEPS * PAIRS)]


def log_probability(model, pair, side):
    """Of each token of a reply."""
    ids, begin = pair["prompt"] + pair[side], len(pair["prompt"])
    logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, begin - 1 : -1]
    return F.log_softmax(logits, -1).gather(1, torch.tensor(pair[side])[:, None])[:, 0]


def pair_loss(name, options, chosen, rejected, chosen_reference, rejected_reference, lengths):
    beta, eps = options["beta"], options["label_smoothing"]
    a, b = chosen - chosen_reference, rejected - rejected_reference
    p, q = chosen / lengths[0], rejected / lengths[1]
    x = beta * (a - b)
    odds = (p - q) - (torch.log1p(-p.exp()) - torch.log1p(-q.exp()))
    return {
        "sigmoid": lambda: -F.logsigmoid(x),
        "cdpo": lambda: -(1 - eps) * F.logsigmoid(x) - eps * F.logsigmoid(-x),
        "robust": lambda: (-(1 - eps) * F.logsigmoid(x) + eps * F.logsigmoid(-x)) / (1 - 2 * eps),
        "hinge": lambda: torch.relu(1 - x),
        "ipo": lambda: (a / lengths[0] - b / lengths[1] - 1 / (2 * beta)) ** 2,
        "sigmoid_norm": lambda: -F.logsigmoid(beta * (a / lengths[0] - b / lengths[1])),
        "apo_zero": lambda: 1 - torch.sigmoid(beta * a) + torch.sigmoid(beta * b),
        "apo_down": lambda: torch.sigmoid(beta * a) + 1 - torch.sigmoid(x),
        "orpo": lambda: -beta * F.logsigmoid(odds),
        "simpo": lambda: -F.logsigmoid(beta * (p - q) - options["simpo_gamma"]),
    }[name.split("+")[0]]()


def step_loss(model, references, name, options, pairs, first):
    """Returns the step's loss, and its metrics."""
    total, rows = 0.0, []
    nll_sum, nll_tokens = 0.0, sum(len(pair["chosen"]) for pair in pairs)
    with_reference = options["objective"] == "dpo"
    for i, pair in enumerate(pairs):
        chosen, rejected = log_probability(model, pair, "chosen"), log_probability(model, pair, "rejected")
        lengths = (len(pair["chosen"]), len(pair["rejected"]))
        reference = references[first + i]
        total = total + pair_loss(name, options, chosen.sum(), rejected.sum(), *reference, lengths) / len(pairs)
        nll_sum = nll_sum - chosen.sum()
        sums = [chosen.sum().item(), rejected.sum().item()]
        means = [s / n for s, n in zip(sums, lengths)]
        scores = [s - r for s, r in zip(sums, reference)] if with_reference else means
        rows.append([options["beta"] * s for s in scores] + (sums if with_reference else means))
    if options["nll_weight"]:
        total = total + options["nll_weight"] * nll_sum / nll_tokens
    mean = lambda values: sum(values) / len(rows)
    metrics = {
        "rewards/chosen": mean(row[0] for row in rows),
        "rewards/rejected": mean(row[1] for row in rows),
        "rewards/accuracies": mean(float(row[0] > row[1]) for row in rows),
        "rewards/margins": mean(row[0] - row[1] for row in rows),
        "logps/chosen": mean(row[2] for row in rows),
        "logps/rejected": mean(row[3] for row in rows),
    }
    if options["nll_weight"]:
        metrics["nll_loss"] = (nll_sum / nll_tokens).item()
    if name == "orpo":
        odds = [(p - q) - (math.log1p(-math.exp(p)) - math.log1p(-math.exp(q))) for _, _, p, q in rows]
        metrics["log_odds_chosen"] = mean(odds)
        metrics["log_odds_ratio"] = mean(-math.log1p(math.exp(-o)) for o in odds)
    return total, metrics


def train_steps(folder, loss_of_step, model=None):
    model = model or load(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    steps = []
    for step in range(STEPS):
        loss, metrics = loss_of_step(model, step * PAIRS)
        loss.backward()
        result = {"loss": loss.item(), "metrics": metrics}
        if step == 0:
            result["gradients"] = {
                n: {"norm": p.grad.norm().item(), "by_weight": (p.grad * p).sum().item()}
                for n, p in model.named_parameters()
            }
        result["grad_norm"] = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        optimizer.step()
        optimizer.zero_grad()
        steps.append(result)
    return steps


def train(folder, references, name, given, pairs):
    options = DEFAULTS | given
    return {
        "options": given,
        "steps": train_steps(
            folder,
            lambda model, first: step_loss(model, references, name, options, pairs[first : first + PAIRS], first),
        ),
    }


def kto_step(model, references, judged, first, options):
    """Loss and metrics of a step of replies with a judgement; distances of other replies to its prompts give `kl`."""
    with torch.no_grad():
        others = sum(log_probability(model, j, "other").sum().item() - references[first + i][1]
                     for i, j in enumerate(judged)) / len(judged)  # fmt: skip
    kl, total = max(0.0, others), 0.0
    rows = {True: [], False: []}
    for i, reply in enumerate(judged):
        log_p = log_probability(model, reply, "reply").sum()
        distance = log_p - references[first + i][0]
        sign, weight = (1, options["desirable_weight"]) if reply["label"] else (-1, options["undesirable_weight"])
        total = total + weight * (1 - torch.sigmoid(sign * options["beta"] * (distance - kl))) / len(judged)
        rows[reply["label"]].append((options["beta"] * distance.item(), log_p.item()))
    mean = lambda label, column: sum(r[column] for r in rows[label]) / len(rows[label]) if rows[label] else None
    chosen, rejected = mean(True, 0), mean(False, 0)
    return total, {
        "rewards/chosen": chosen,
        "rewards/rejected": rejected,
        "rewards/margins": None if chosen is None or rejected is None else chosen - rejected,
        "logps/chosen": mean(True, 1),
        "logps/rejected": mean(False, 1),
        "kl": kl,
        "count/chosen": len(rows[True]),
        "count/rejected": len(rows[False]),
    }


def make_judged(pairs):
    """One reply of each pair, and the next one's to its prompt; the third step has desirable ones alone."""
    own = [pair["chosen"] if i % 3 else pair["rejected"] for i, pair in enumerate(pairs)]
    return [{"prompt": pair["prompt"], "reply": own[i], "other": own[(i + 1) % len(pairs)],
             "label": bool(i % 3) or i >= 8} for i, pair in enumerate(pairs)]  # fmt: skip


def kto(folder, judged):
    with torch.no_grad():
        model = load(folder)
        scores = [[log_probability(model, j, side).sum().item() for side in ("reply", "other")] for j in judged]
    references = [[a + 0.5 * math.sin(2 * i), b - 0.4 + 0.5 * math.cos(3 * i)] for i, (a, b) in enumerate(scores)]
    options = {"beta": 0.1, "desirable_weight": 1.0, "undesirable_weight": 1.5}
    return references, options, train_steps(
        folder, lambda model, first: kto_step(model, references, judged[first : first + PAIRS], first, options)
    )


def load_scorer(folder, head):
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=1, dtype=torch.float64, attn_implementation="sdpa")  # fmt: skip
    with torch.no_grad():
        model.score.weight.copy_(head)
    return model


def score(model, pair, side):
    return model(input_ids=torch.tensor([pair["prompt"] + pair[side]]), use_cache=False).logits[0, 0]


def reward_step(model, pairs, centre):
    """Loss and metrics of a step of pairs, each with a margin."""
    scores = [(score(model, p, "chosen"), score(model, p, "rejected"), p["margin"]) for p in pairs]
    total = sum(-F.logsigmoid(c - r - m) + centre * (c + r) ** 2 for c, r, m in scores) / len(scores)
    every = [s.item() for c, r, _ in scores for s in (c, r)]
    return total, {
        "accuracy": sum(float(c > r) for c, r, _ in scores) / len(scores),
        "margin": sum((c - r).item() for c, r, _ in scores) / len(scores),
        "min_reward": min(every),
        "mean_reward": sum(every) / len(every),
        "max_reward": max(every),
    }


def reward(folder, out, pairs):
    """Writes the head, and returns scores before and steps of a model that gives scores."""
    generator = torch.Generator().manual_seed(43)
    hidden = load(folder).config.hidden_size
    head = torch.randn((1, hidden), generator=generator) / (hidden + 1)
    save_file({"score.weight": head}, out / "score.safetensors")
    pairs = [pair | {"margin": 0.25 * (i % 3)} for i, pair in enumerate(pairs)]
    centre = 0.01
    with torch.no_grad():
        initial = load_scorer(folder, head.double())
        scores = [[score(initial, p, side).item() for side in ("chosen", "rejected")] for p in pairs]
    steps = train_steps(
        folder, lambda model, first: reward_step(model, pairs[first : first + PAIRS], centre),
        load_scorer(folder, head.double()),
    )  # fmt: skip
    return {"options": {"objective": "reward", "center_coefficient": centre}, "scores": scores, "steps": steps,
            "margins": [p["margin"] for p in pairs]}  # fmt: skip


def begin(description):
    """The options --model and --out; from here on one thread computes in fp64."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    torch.set_num_threads(1)
    use_fp64()
    return parser.parse_args()


def main():
    args = begin(__doc__)
    pairs = make_pairs()
    with torch.no_grad():
        initial = load(args.model)
        scores = [[log_probability(initial, p, side).sum().item() for side in ("chosen", "rejected")] for p in pairs]
    # A reference other than the model, so that the first step's ratios are none of them 1.
    moved = [[s + 0.5 * math.sin(2 * i), r + 0.5 * math.cos(3 * i)] for i, (s, r) in enumerate(scores)]
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    expected = {"scores": scores, "references": moved}
    for name, options in VARIANTS.items():
        expected[name] = train(args.model, moved, name, options, pairs)
        print(name, " ".join(f"{step['loss']:.9f}" for step in expected[name]["steps"]))
    judged = make_judged(pairs)
    (args.out / "judged.jsonl").write_text("".join(json.dumps(reply) + "\n" for reply in judged))
    references, options, steps = kto(args.model, judged)
    expected["kto"] = {"references": references, "options": options, "steps": steps}
    print("kto", " ".join(f"{step['loss']:.9f} {step['metrics']['kl']:.4f}" for step in steps))
    expected["reward"] = reward(args.model, args.out, pairs)
    print("reward", " ".join(f"{step['loss']:.9f}" for step in expected["reward"]["steps"]))
    (args.out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
