#!/usr/bin/env python3
"""Makes tests/fixtures/tokenizer_kinds: the kinds of tokenizer.json that models have, each as what it differs by from one
of three small vocabularies, and what the `tokenizers` library makes of texts that are hard to cut.

    python scripts/make_tokenizer_kinds.py [--out tests/fixtures/tokenizer_kinds] [--cases 230]

bases.json       {BASE: tokenizer.json}: bytes, trained without regard to words, so that any wrong cut shows; characters,
                 the same with byte fallback; pieces, cut at spaces as SentencePiece does
kinds.json       {KIND: {"base": BASE, "patch": what RFC 7386 merges into it}}
cases.jsonl      {"text": ..., KIND: ids, KIND + "_plain": ids where special tokens are not parsed, if they differ}
decoded.jsonl    {"kind": KIND, "ids": ids, "all": text, "skipped": text without special tokens}
Ids are written as two base-64 digits each (A-Z, a-z, 0-9, +, /), the high one first.
"""

import argparse
import json
import pathlib
import random

from make_tokenizer_fixtures import CL100K, FLAGGED, Texts, added, adversarial, corpus, packed, write_cases
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPECIAL = ["<|im_start|>", "<|im_end|>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def base(name):
    rng = random.Random(7)
    tokenizer = Tokenizer(models.BPE(unk_token=None if name == "bytes" else "<unk>"))
    trainer = {"vocab_size": 1500, "show_progress": False}
    if name == "bytes":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer |= {"initial_alphabet": sorted(pre_tokenizers.ByteLevel.alphabet()), "special_tokens": ["<s>", "</s>"]}
    else:
        prefix = normalizers.Prepend("▁")
        tokenizer.normalizer = normalizers.Sequence([prefix, normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                               decoders.Strip(" ", 1, 0)])
        trainer |= {"special_tokens": ["<unk>", "<s>", "</s>", *BYTES], "limit_alphabet": 300}
        if name == "pieces":
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.train_from_iterator(corpus(rng), trainers.BpeTrainer(**trainer))
    tokenizer.add_special_tokens([added(token, special=True) for token in SPECIAL])
    # The library panics where a token normalises to nothing.
    tokenizer.add_tokens([token for token in FLAGGED if name == "bytes" or token.content.strip()])
    value = json.loads(tokenizer.to_str())
    # The byte tokens of a vocabulary are no added tokens; those of the flags are.
    value["added_tokens"] = [token for token in value["added_tokens"] if token["content"] not in BYTES]
    value["model"] |= {} if name == "bytes" else {"fuse_unk": True, "byte_fallback": True}
    value["pre_tokenizer"] = value["pre_tokenizer"] if name == "bytes" else None
    return value


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern if isinstance(pattern, dict) else {"Regex": pattern},
            "behavior": behavior, "invert": invert}


def byte_level(**flags):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False} | flags


def cut(*parts):
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [*parts, byte_level()]}}


def metaspace(scheme, split=True):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


def template(*tokens):
    return {"type": "TemplateProcessing",
            "single": [*({"SpecialToken": {"id": token, "type_id": 0}} for token, _ in tokens),
                       {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {token: {"id": token, "ids": [i], "tokens": [token]} for token, i in tokens}}


UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
BEFORE, ENDS = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = rf"{BEFORE}{UPPER}*{LOWER}+{ENDS}|{BEFORE}{UPPER}+{LOWER}*{ENDS}|\p{{N}}{{1,3}}" + TAIL
TEKKEN = rf"{BEFORE}{UPPER}*{LOWER}+|{BEFORE}{UPPER}+{LOWER}*|\p{{N}}" + TAIL
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
TIKTOKEN = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$"
            r"|\s*[\r\n]|\s+(?!\S)|\s")
DEEPSEEK_V3 = [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
               '[!"#$%&' r"'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
               r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]
DEEPSEEK_V2 = ["[\r\n]",
               "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅ"
               "ὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗ"
               "Ａ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
               r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", "[一-龥ࠀ-一가-퟿]+"]
NO_FALLBACK = {"vocab": {"<0xE2>": None, "<0xe2>": 3 + 0xE2, "<0xF0>": None, "<0xf0>": 3 + 0xF0}}
DIGITS = {"type": "Digits", "individual_digits": True}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
NO_STRIP = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                             {"type": "ByteFallback"}, {"type": "Fuse"}]}
META_DECODER = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, metaspace("always")]}

KINDS = {
    "gpt2": ("bytes", {"pre_tokenizer": byte_level(use_regex=True)}),
    "whole_bytes": ("bytes", {}),
    "prefix_space": ("bytes", {"pre_tokenizer": byte_level(use_regex=True, add_prefix_space=True)}),
    "command_r": ("bytes", {"normalizer": {"type": "NFC"},
                            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [DIGITS, byte_level(use_regex=True)]}}),
    "o200k": ("bytes", cut(split(O200K))),
    "tekken": ("bytes", cut(split(TEKKEN)) | {"model": {"ignore_merges": True}}),
    "qwen3_5": ("bytes", cut(split(QWEN35)) | {"normalizer": {"type": "NFC"}}),
    "tiktoken": ("bytes", cut(split(TIKTOKEN, "Removed", invert=True))),
    "deepseek_v3": ("bytes", cut(*(split(pattern) for pattern in DEEPSEEK_V3))
                    | {"post_processor": template(("<s>", 0))}),
    "deepseek_v2": ("bytes", cut(*(split(pattern) for pattern in DEEPSEEK_V2), DIGITS)),
    "glm": ("bytes", cut(split(CL100K % "{1,3}"))
            | {"post_processor": {"type": "Sequence", "processors": [byte_level(), template(("</s>", 1), ("<s>", 0))]}}),
    "removed": ("bytes", cut(split({"String": " "}, "Removed"), split(r"\p{N}+", "MergedWithPrevious"),
                             split("[a-m]", "MergedWithNext"), split(r"[\s\S]\p{M}{2,}|\.|(?:ab|a)+b", "Contiguous"))),
    "digit_runs": ("bytes", cut({"type": "Digits", "individual_digits": False},
                                split(r"\P{L}+(?=\d)|\u0041|\x{42}[^\S\n]", "MergedWithNext", invert=True))),
    "llama2": ("characters", {"post_processor": template(("<s>", 1))}),
    "llama2_pieces": ("pieces", {"post_processor": template(("<s>", 1))}),
    "missing_bytes": ("characters", {"model": NO_FALLBACK}),
    "missing_unfused": ("pieces", {"model": NO_FALLBACK | {"fuse_unk": False}}),
    "unknown": ("pieces", {"model": {"byte_fallback": False}}),
    "left_out": ("characters", {"model": {"byte_fallback": False, "unk_token": None}}),
    "mistral": ("pieces", {"normalizer": None, "pre_tokenizer": metaspace("first", False)}),
    "mistral_whole": ("characters", {"normalizer": None, "pre_tokenizer": metaspace("first", False)}),
    "metaspace": ("characters", {"normalizer": None, "pre_tokenizer": metaspace("always"), "decoder": META_DECODER}),
    "metaspace_never": ("pieces", {"normalizer": None, "pre_tokenizer": metaspace("never"), "decoder": metaspace("never")}),
    "gemma": ("pieces", {"normalizer": REPLACE, "decoder": NO_STRIP,
                         "pre_tokenizer": split({"String": " "}, "MergedWithPrevious")}),
    "gemma4": ("characters", {"normalizer": REPLACE, "decoder": NO_STRIP, "pre_tokenizer": split(r"[^\n]+|[\n]+"),
                              "model": {"ignore_merges": True}}),
    "stripped": ("characters", {"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Strip", "strip_left": True, "strip_right": False}, {"type": "NFC"}, {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": "aa"}, "content": "b"}, REPLACE]}}),
    "hunyuan": ("bytes", cut(split(CL100K % "")) | {"post_processor": template(("<s>", 0))}),
    "hunyuan_dense": ("bytes", cut(*(split(pattern) for pattern in DEEPSEEK_V3))
                      | {"normalizer": {"type": "Sequence", "normalizers": []}, "post_processor": byte_level()}),
}


def patched(value, patch):
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(value) if isinstance(value, dict) else {}
    for key, part in patch.items():
        if part is None:
            result.pop(key, None)
        else:
            result[key] = patched(result.get(key), part)
    return result


def hard_texts(texts, count):
    """Of the texts that are made for byte-level tokenizers, and of texts with what the others look at."""
    rng = texts.rng
    known = ["▁", "▁▁", " ▁", "</s>", "<s>", "<unk>", "<0x0A>", "<0xE2>", "[INST]", "aab", "ab.b", "B ", "A", "don't ", "HTTPServer",
             "a/b//\n", "日本語", "ひらがな", "カタカナ", "\U0001f468\u200d\U0001f4bb", "x\u0301\u0302\u0303", "12345", "１２３", "、。", "\r\n \r\n"]
    plain = list(dict.fromkeys(adversarial(texts)))
    rng.shuffle(plain)
    mixed = ["".join(rng.choice(known) if rng.random() < 0.4 else texts.piece() for _ in range(rng.randint(1, 9)))
             for _ in range(count)]
    long = ["".join(texts.piece() for _ in range(400)), "the " * 300, "▁ " * 200, "日" * 500, "\u0301" * 300]
    shown = [text for pair in zip(plain, mixed) for text in pair]
    return list(dict.fromkeys(["", " ", "a", "\n", "\u0000", "  a", "\t"] + shown))[: count - len(long)] + long


def write_decoded(out, tokenizers, texts, count):
    with open(out / "decoded.jsonl", "w", encoding="ascii") as file:
        for kind, tokenizer in tokenizers.items():
            written = 0
            while written < count:
                ids = tokenizer.encode(texts.random(6)).ids
                ids.insert(texts.rng.choice([0, texts.rng.randint(0, len(ids))]), texts.rng.randrange(1600))
                line = {"kind": kind, "ids": packed(ids), "all": tokenizer.decode(ids, skip_special_tokens=False),
                        "skipped": tokenizer.decode(ids, skip_special_tokens=True)}
                if "\ufffd" in line["all"]:  # the library's mark for bytes that are no character
                    continue
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
                written += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/fixtures/tokenizer_kinds"))
    parser.add_argument("--cases", type=int, default=230)
    arguments = parser.parse_args()
    out = arguments.out
    out.mkdir(parents=True, exist_ok=True)

    bases = {name: base(name) for name in ["bytes", "characters", "pieces"]}
    kinds = {kind: {"base": name, "patch": patch} for kind, (name, patch) in KINDS.items()}
    tokenizers = {kind: Tokenizer.from_str(json.dumps(patched(bases[name], patch))) for kind, (name, patch) in KINDS.items()}
    (out / "bases.json").write_text(json.dumps(bases, separators=(",", ":")) + "\n", encoding="utf-8")
    (out / "kinds.json").write_text(json.dumps(kinds, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    texts = Texts(random.Random(5))
    cases = hard_texts(texts, arguments.cases)
    write_cases(out, tokenizers, cases)
    write_decoded(out, tokenizers, texts, max(12, arguments.cases // 20))
    print(len(cases), "cases,", len(kinds), "kinds,", sum(path.stat().st_size for path in out.iterdir()), "bytes")


if __name__ == "__main__":
    main()
