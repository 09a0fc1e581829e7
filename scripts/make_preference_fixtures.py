#!/usr/bin/env python3
"""Makes tests/fixtures/preferences.json: what TRL makes of pairs of replies, as token ids and where loss begins.

Needs trl (1.16.0 wrote the file), with transformers, torch and datasets.

    python scripts/make_preference_fixtures.py [--out tests/fixtures/preferences.json]

Tokenizers are those of tests/fixtures/tokenizer, under SmolLM2's chat template. Each case is {"family", "trainer",
"records": [...], "expected": [{"chosen", "rejected", "begin"}, or {"ids", "begin"} of KTO]}: whole token ids, and the
first that carries loss. Conversations are given in both ways in which TRL takes them, texts with a prompt alone: without
one TRL looks for a common beginning in characters, and snug in tokens.
"""

import argparse
import json
import pathlib
import types

from datasets import Dataset
from transformers import AutoTokenizer
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer

HERE = pathlib.Path(__file__).parent.parent / "tests/fixtures"

TEXTS = [
    {"prompt": "What is your", "chosen": " time? It was the first.", "rejected": " day? It was not."},
    {"prompt": "Once upon a", "chosen": " time there was water.", "rejected": " time there were people who made more."},
    {"prompt": "there is no wa", "chosen": "ter in it", "rejected": "y down"},  # tokens hold the border
    {"prompt": "question: ", "chosen": " two  blanks\n", "rejected": ""},
    {"prompt": "", "chosen": "an answer", "rejected": "another answer"},
    {"prompt": "q\n", "chosen": "\n42", "rejected": "42é"},
    {"prompt": "it is said", "chosen": " it is long<EOS>", "rejected": " it is said<EOS>"},
]
CHATS = [
    [["user", "What is the time?"]],
    [["system", "Be short."], ["user", "Who is he?"]],
    [["user", "one"], ["assistant", "two"], ["user", "three"]],
]
REPLIES = [["It is long past.", "It is day."], ["He is my hacker.", "I don't know"], ["four", "for\nall"]]


def messages(pairs):
    return [{"role": role, "content": content} for role, content in pairs]


def prepared(trainer, config, tokenizer, records):
    """Returns the rows that a trainer makes of records, without what it drops by length."""
    stub = types.SimpleNamespace(_tokenizer=tokenizer, calculate_KL=False)
    settings = config(output_dir="unused", max_length=None, report_to=[], use_cpu=True, bf16=False)
    return list(trainer._prepare_dataset(stub, Dataset.from_list(records), tokenizer, settings, "train"))


def pair(row):
    prompt = row["prompt_ids"]
    return {"chosen": prompt + row["chosen_ids"], "rejected": prompt + row["rejected_ids"], "begin": len(prompt)}


def cases(family):
    tokenizer = AutoTokenizer.from_pretrained(HERE / "tokenizer" / family)
    tokenizer.chat_template = (HERE / "templates/smollm2.jinja").read_text()
    texts = [{k: v.replace("<EOS>", tokenizer.eos_token) for k, v in record.items()} for record in TEXTS]
    explicit = [{"prompt": messages(p), "chosen": messages([["assistant", c]]), "rejected": messages([["assistant", r]])}
                for p, (c, r) in zip(CHATS, REPLIES)]
    implicit = [{k: record["prompt"] + record[k] for k in ("chosen", "rejected")} for record in explicit]
    kto = [{"prompt": t["prompt"], "completion": t[k], "label": k == "chosen"} for t in texts for k in ("chosen", "rejected")]
    chats = [explicit, implicit] if family == "smollm" else []  # whose markers are tokens of this tokenizer alone
    for records in [texts] + chats:
        yield "dpo", records, [pair(row) for row in prepared(DPOTrainer, DPOConfig, tokenizer, records)]
    for records in [[dict(t, margin=i + 0.5) for i, t in enumerate(texts)]]:
        rows = prepared(RewardTrainer, RewardConfig, tokenizer, [dict(r) for r in records])
        yield "reward", records, [{"chosen": r["chosen_ids"], "rejected": r["rejected_ids"], "margin": r["margin"]} for r in rows]
    rows = prepared(KTOTrainer, KTOConfig, tokenizer, kto)
    yield "kto", kto, [{"ids": r["prompt_ids"] + r["completion_ids"], "begin": len(r["prompt_ids"]), "label": r["label"]}
                       for r in rows]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "preferences.json")
    out = parser.parse_args().out
    lines = []
    for family in ("smollm", "llama3"):
        for trainer, records, expected in cases(family):
            lines.append(json.dumps({"family": family, "trainer": trainer, "records": records, "expected": expected},
                                    separators=(",", ":")))
    out.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
