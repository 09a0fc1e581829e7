#!/usr/bin/env python3
"""Makes src/format/unicode_ranges.h: the properties of every code point that the `tokenizers` library acts on.

The library mixes several editions of Unicode: its regular expressions follow one, its Rust character methods a newer
one, its normaliser an older one. So the library itself is asked about every code point instead of any Unicode file.

    python scripts/make_unicode_tables.py [--out src/format/unicode_ranges.h]
"""

import argparse

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from tables import filled

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
# The general categories in the order of unicode.h. The last two are its own: white space among the control characters,
# and code points that no regular expression of the library takes for any of these.
CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cf Cc Co").split()
WHITE_CONTROL, UNASSIGNED = len(CATEGORIES), len(CATEGORIES) + 1
NUMERIC, WORD, NORMALIZES = (1 << bit for bit in range(5, 8))
FENCE = "#"  # none of the properties holds for it


def batches(size=1 << 16):
    for start in range(0, len(CODE_POINTS), size):
        yield [chr(c) for c in CODE_POINTS[start : start + size]]


def matching(pattern):
    """Characters that a pattern of the library's regular expressions matches."""
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    found = set()
    for characters in batches():
        kept = "".join(piece for piece, _ in split.pre_tokenize_str("".join(characters)))
        found |= set(characters) - set(kept)
    return found


def numeric():
    """Characters that the Digits pre-tokeniser cuts out."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    found = set()
    for characters in batches():
        pieces = digits.pre_tokenize_str(FENCE.join(["", *characters, ""]))
        found |= {piece for piece, _ in pieces if len(piece) == 1 and piece != FENCE}
    return found


def next_to_added_token(**flags):
    """The ids of each character in front of an added token, and the id of that token."""
    tokenizer = Tokenizer(models.BPE(vocab={"<unk>": 0}, merges=[], unk_token="<unk>"))
    tokenizer.add_tokens([AddedToken("T", normalized=False, **flags)])
    ids = {chr(c): tokenizer.encode(chr(c) + "T").ids for c in CODE_POINTS if c != ord("T")}
    return ids, tokenizer.token_to_id("T")


def word_characters():
    """Characters beside which an added token with single_word is no word of its own."""
    ids, token = next_to_added_token(single_word=True)
    return {character for character, found in ids.items() if token not in found} | {"T"}


def stripped_characters():
    ids, token = next_to_added_token(lstrip=True)
    return {character for character, found in ids.items() if found == [token]}


def normalizing():
    """Characters that canonical decomposition, ordering or composition can touch."""
    decompose = normalizers.NFD().normalize_str
    low, high = "\u0334", "\u0345"  # combining classes 1 and 240
    found = set()
    for character in map(chr, CODE_POINTS):
        parts = decompose(character)
        if parts != character:
            found |= {character, *parts}
        elif decompose(character + low) != character + low or decompose(high + character) != high + character:
            found.add(character)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="src/format/unicode_ranges.h")
    arguments = parser.parse_args()

    spaces = matching(r"\s")
    assert spaces == stripped_characters(), "the library's two kinds of white space differ"
    properties = [UNASSIGNED] * 0x110000
    sets = {name: matching(rf"\p{{{name}}}") for name in CATEGORIES}
    for index, (name, characters) in enumerate(sets.items()):
        for character in characters:
            assert properties[ord(character)] == UNASSIGNED, f"U+{ord(character):04X} is of two categories"
            properties[ord(character)] = index
    for character in spaces & sets["Cc"]:
        properties[ord(character)] = WHITE_CONTROL
    assert spaces - sets["Cc"] == sets["Zs"] | sets["Zl"] | sets["Zp"], "white space is not what separates"
    for name, letters in [("L", "Lu Ll Lt Lm Lo"), ("M", "Mn Mc Me"), ("N", "Nd Nl No"), ("P", "Pc Pd Ps Pe Pi Pf Po"),
                          ("S", "Sm Sc Sk So"), ("d", "Nd")]:
        pattern = rf"\p{{{name}}}" if name.isupper() else rf"\{name}"
        assert matching(pattern) == set().union(*(sets[part] for part in letters.split())), f"{pattern} is more"
    for bit, characters in [(NUMERIC, numeric()), (WORD, word_characters()), (NORMALIZES, normalizing())]:
        for character in characters:
            properties[ord(character)] |= bit

    ranges = [(c, properties[c]) for c in range(0x110000) if c == 0 or properties[c] != properties[c - 1]]
    steps = zip([0] + [start for start, _ in ranges], ranges)
    entries = [f"{(start - before) << 8 | bits}," for before, (start, bits) in steps]
    lines = filled(entries)
    with open(arguments.out, "w", encoding="ascii") as out:
        out.write(f"""\
// Generated by scripts/make_unicode_tables.py from tokenizers {tokenizers.__version__}; do not edit.
// Ranges of code points with equal properties, in ascending order: in the upper 24 bits how far a range begins behind
// the one before, in the lower 8 its properties as unicode.h has them. A range ends where the next begins, the last one
// at 0x110000.
#pragma once

#include <array>
#include <cstdint>

namespace snug {{

// clang-format off
inline constexpr std::array<uint32_t, {len(entries)}> kUnicodeRangeSteps{{
""")
        out.write("".join(f"  {line}\n" for line in lines))
        out.write("};\n// clang-format on\n\n}  // namespace snug\n")
    print({name: len(characters) for name, characters in sets.items()}, len(ranges), "ranges", len(lines), "lines")


if __name__ == "__main__":
    main()
