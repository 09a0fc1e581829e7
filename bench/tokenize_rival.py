#!/usr/bin/env python3
"""How fast the `tokenizers` library makes tokens of the lines of a file, or of the file as one text, on one thread. The
other side of bench/tokenize.cpp.

    python bench/tokenize_rival.py MODEL_DIRECTORY FILE [--whole] [--seconds 3]
"""

import argparse
import os
import pathlib
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # read when the library is loaded
from tokenizers import Tokenizer  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--seconds", type=float, default=3)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    text = arguments.file.read_bytes().decode()
    texts = [text] if arguments.whole else text.split("\n")
    texts = [line + "\n" for line in texts[:-1]] + ([texts[-1]] if texts[-1] else [])
    best, spent = float("inf"), 0.0
    while spent < arguments.seconds:
        start = time.perf_counter()
        # Without offsets, as the fastest call has it.
        tokens = sum(len(found.ids) for found in tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        taken = time.perf_counter() - start
        best, spent = min(best, taken), spent + taken
    print(f"1 thread: {len(texts)} texts, {tokens} tokens, {best:.3f} s, {len(text.encode()) / best / 1e6:.1f} MB/s")


if __name__ == "__main__":
    main()
