#!/usr/bin/env python3
"""Makes tests/fixtures/sentencepiece: small models of SentencePiece, and what its library makes of texts that are hard to
cut. Needs sentencepiece and what make_tokenizer_fixtures.py needs.

    python scripts/make_sentencepiece_fixtures.py [--out tests/fixtures/sentencepiece] [--cases 230]

NAME.model     llama: as Llama 2's and Mistral's; gemma: without a prefix, with pieces that the user defined; collapsed: by
               the library's own defaults, but for the characters' normalisation; unknown: without byte fallback
cases.jsonl    {"text": ..., NAME: ids}, ids as make_tokenizer_kinds.py writes them
decoded.jsonl  {"kind": NAME, "ids": ids, "all": text}
"""

import argparse
import io
import json
import pathlib
import random

import sentencepiece
from make_tokenizer_fixtures import Texts, corpus, packed
from make_tokenizer_kinds import hard_texts

IDENTITY = {"normalization_rule_name": "identity"}
PLAIN = IDENTITY | {"remove_extra_whitespaces": False, "byte_fallback": True}
USER_DEFINED = ["<start_of_turn>", "\n\n", "\n\n\n", "▁▁", "▁▁▁▁", "[INST]", "<b>", "é", "\t\t"]
MODELS = {
    "llama": PLAIN | {"split_digits": True, "allow_whitespace_only_pieces": True},
    "gemma": PLAIN | {"add_dummy_prefix": False, "user_defined_symbols": USER_DEFINED, "split_digits": True,
                      "control_symbols": ["<2mass>"], "pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3,
                      "allow_whitespace_only_pieces": True},
    "collapsed": IDENTITY | {"byte_fallback": True},
    "unknown": IDENTITY | {"remove_extra_whitespaces": False, "split_by_whitespace": False},
}


def train(options):
    model = io.BytesIO()
    lines = [line for line in corpus(random.Random(7)) if line.strip()]
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, model_type="bpe",
                                             vocab_size=1200, character_coverage=0.98, num_threads=1, minloglevel=2,
                                             **options)
    return model.getvalue()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/fixtures/sentencepiece"))
    parser.add_argument("--cases", type=int, default=230)
    arguments = parser.parse_args()
    out = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    processors = {}
    for name, options in MODELS.items():
        (out / f"{name}.model").write_bytes(train(options))
        processors[name] = sentencepiece.SentencePieceProcessor(model_file=str(out / f"{name}.model"))

    texts = Texts(random.Random(5))
    cases = hard_texts(texts, arguments.cases)
    cases += ["\n\n\n\n\n", "  \n\n  x", "▁▁▁▁▁▁▁", " " * 37 + "x", "<start_of_turn> a", "<2mass>", "e\u0301é"]
    cases = [text for text in cases if "\0" not in text]  # the library ends texts there
    with open(out / "cases.jsonl", "w", encoding="ascii") as file:
        for text in cases:
            line = {"text": text} | {name: packed(model.encode(text)) for name, model in processors.items()}
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
    with open(out / "decoded.jsonl", "w", encoding="ascii") as file:
        for name, model in processors.items():
            for text in cases[:: max(1, len(cases) // 40)]:
                ids = model.encode(text)
                line = {"kind": name, "ids": packed(ids), "all": model.decode(ids)}
                if "\ufffd" not in line["all"] and model.unk_id() not in ids and name != "collapsed":
                    file.write(json.dumps(line, separators=(",", ":")) + "\n")
    print(len(cases), "cases,", sum(path.stat().st_size for path in out.iterdir()), "bytes")


if __name__ == "__main__":
    main()
