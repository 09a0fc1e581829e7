#!/usr/bin/env python3
"""Makes pairs of answers to the same questions: of a data set, preferred, and of a model, rejected.

    preference_pairs.py questions train.jsonl --count 120 --longest 300 > questions.jsonl
    snug generate --model DIR --prompts questions.jsonl --json > answers.jsonl
    preference_pairs.py pairs train.jsonl answers.jsonl > pairs.jsonl

The data set holds samples of two messages, a line each, as scripts/jargon.py writes them.
"""

import argparse
import json
import pathlib
import sys


def read_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_line(record):
    sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")


def write_questions(samples, count, longest):
    """Questions whose answers are short, spread over the data set."""
    short = [question["content"] for question, answer in samples if len(answer["content"]) <= longest]
    for i in range(count):
        write_line({"prompt": short[i * len(short) // count]})


def write_pairs(samples, answers):
    known = {question["content"]: answer["content"] for question, answer in samples}
    for answer in answers:
        chosen, rejected = known[answer["prompt"]], answer["text"].strip()
        if rejected:
            write_line({"prompt": [{"role": "user", "content": answer["prompt"]}],
                        "chosen": [{"role": "assistant", "content": chosen}],
                        "rejected": [{"role": "assistant", "content": rejected}]})  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["questions", "pairs"])
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("answers", type=pathlib.Path, nargs="?")
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--longest", type=int, default=300, help="characters of an answer (300)")
    options = parser.parse_args()
    samples = [record["messages"] for record in read_lines(options.data)]
    if options.what == "questions":
        write_questions(samples, options.count, options.longest)
    else:
        write_pairs(samples, read_lines(options.answers))


if __name__ == "__main__":
    main()
