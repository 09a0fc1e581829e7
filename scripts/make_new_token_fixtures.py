#!/usr/bin/env python3
"""Makes tests/fixtures/tokenizer/new_tokens.json: what the `tokenizers` library makes of texts after tokens were added
to the small tokenizers beside it.

    python scripts/make_new_token_fixtures.py [--out tests/fixtures/tokenizer]

{FAMILY: {"ids": [of the added tokens], "cases": [{"text": ..., "ids": [...], "all": decoded, "skipped": without special
tokens}]}}
"""

import argparse
import json
import pathlib

from tokenizers import AddedToken, Tokenizer

TOKENS = ["<think>", "</think>", "naïve word", " ⟂"]
SPECIAL = ["<|turn|>", "<|turn"]
TEXTS = ["<think>I see</think> the rest", "a<think><think>b", "<|turn|>user<|turn<|turn|", "a naïve word, naïve words",
         "x ⟂ y⟂z  ⟂", "<Think> </THINK>", ""]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/fixtures/tokenizer"))
    out = parser.parse_args().out
    result = {"tokens": TOKENS, "special": SPECIAL, "families": {}}
    for family in ["smollm", "llama3", "qwen2"]:
        tokenizer = Tokenizer.from_file(str(out / family / "tokenizer.json"))
        tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in TOKENS])
        tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
        cases = []
        for text in TEXTS:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            cases.append({"text": text, "ids": ids, "all": tokenizer.decode(ids, skip_special_tokens=False),
                          "skipped": tokenizer.decode(ids, skip_special_tokens=True)})
        result["families"][family] = {"ids": [tokenizer.token_to_id(text) for text in TOKENS + SPECIAL], "cases": cases}
    (out / "new_tokens.json").write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
