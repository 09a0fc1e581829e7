#!/usr/bin/env python3
"""Makes chat samples from the Jargon File of Debian's package dict-jargon (public domain).

    jargon.py --out DIR [--dict /usr/share/dictd]

writes DIR/train.jsonl and DIR/heldout.jsonl, one sample a line: {"messages": [{"role": "user", "content": "What does
the hacker term kluge mean?"}, {"role": "assistant", "content": "n. ..."}]}. Every 40th entry is held out.
"""

import argparse
import gzip
import json
import pathlib
import re
import string
import sys

BASE64 = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
SOFT_HYPHEN = "\u00ad"
SHORTEST, LONGEST = 40, 1500  # characters of a reply
HELD_OUT_EVERY = 40


def decode_number(digits):
    """dictd's numbers: base 64, most significant digit first."""
    value = 0
    for digit in digits:
        value = value * 64 + BASE64.index(digit)
    return value


def read_entries(folder):
    """Entry texts in the order of the dictionary file; the index may name one under several headwords."""
    text = gzip.decompress((folder / "jargon.dict.dz").read_bytes())
    places = set()
    for line in (folder / "jargon.index").read_text(encoding="utf-8").splitlines():
        headword, offset, length = line.split("\t")
        if not headword.startswith("00-database"):
            places.add((decode_number(offset), decode_number(length)))
    entries = [text[offset : offset + length].decode("utf-8") for offset, length in sorted(places)]
    return [entry.replace(SOFT_HYPHEN, "") for entry in entries]


def fold(lines):
    """Paragraphs of wrapped lines, joined. Breaks inside {a reference} or (an aside) leave no space at its ends."""
    paragraphs = re.split(r"\n\s*\n", "\n".join(lines).strip())
    return "\n\n".join(re.sub(r"(?<=[{(]) | (?=[})])", "", " ".join(paragraph.split())) for paragraph in paragraphs)


def parse_entry(entry):
    """Headword and body.

    The headword stands alone in the first line, then comes a line such as ` /kloodj/, n.`: the pronunciation is
    dropped, the part of speech opens the body.
    """
    headword, grammar, *lines = entry.strip("\n").split("\n") + [""]
    part_of_speech = re.sub(r"^\s*/.*/,?", "", grammar).strip()
    return headword.strip(), (part_of_speech + " " + fold(lines)).strip()


def sample(headword, body):
    question = f"What does the hacker term {headword} mean?"
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": body}]}


def write_samples(path, samples):
    path.write_text("".join(json.dumps(s, ensure_ascii=False) + "\n" for s in samples), encoding="utf-8")
    print(f"{path}: {len(samples)} samples")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dict", type=pathlib.Path, metavar="DIR", default="/usr/share/dictd", help="dictd's files")
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR", required=True, help="folder for the two files")
    options = parser.parse_args()
    if not (options.dict / "jargon.dict.dz").exists():
        sys.exit(f"{options.dict}/jargon.dict.dz: not found; install dict-jargon, or name its folder with --dict")
    entries = [parse_entry(entry) for entry in read_entries(options.dict)]
    samples = [sample(word, body) for word, body in entries if SHORTEST <= len(body) <= LONGEST]
    options.out.mkdir(parents=True, exist_ok=True)
    write_samples(options.out / "heldout.jsonl", samples[::HELD_OUT_EVERY])
    write_samples(options.out / "train.jsonl", [s for i, s in enumerate(samples) if i % HELD_OUT_EVERY])


if __name__ == "__main__":
    main()
