#!/usr/bin/env python3
"""Makes tests/fixtures/tokenizer: small tokenizers like those of three model families, and what the `tokenizers`
library makes of texts that are hard to cut.

    python scripts/make_tokenizer_fixtures.py [--out tests/fixtures/tokenizer]

FAMILY/tokenizer.json, FAMILY/tokenizer_config.json   families: smollm, llama3, qwen2
cases.jsonl      {"text": ..., FAMILY: ids, FAMILY + "_plain": ids where special tokens are not parsed, if they differ}
decoded.jsonl    {FAMILY: ids, "all": text, "skipped": text without special tokens}
repeated.jsonl   {"text": ..., "times": how often it is repeated to make one text, FAMILY: [[ids, times], ...]}
Ids are written as two base-64 digits each (A-Z, a-z, 0-9, +, /), the high one first.
"""

import argparse
import itertools
import json
import pathlib
import random
import string
import unicodedata

import regex
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

DIGITS = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
VOCABULARY = 2600

# ---- Texts to train on: words of made-up syllables in many scripts, common English, numbers, code ------------------

ENGLISH = """the of and to in is that it was for on are as with his they at be this from have or by one had not but what
all were when we there can an your which their said if do will each about how up out them then she many some so these
would other into has more her two like him see time could no make than first been its who now people my made over did
down only way find use may water long little very after words called just where most know hacker token model trained
don't I'll we're you've it's he'd I'm isn't Once upon There print return import def class self lambda""".split()
SYLLABLES = {
    "latin": ["a e i o u é è ö ü ß ñ ç ł š", "b c d f g h k l m n p r s t v z tr st sch"],
    "greek": ["α ε η ι ο υ ω ά έ", "β γ δ θ κ λ μ ν π ρ σ τ φ χ"],
    "cyrillic": ["а е и о у ы э ю я й", "б в г д ж з к л м н п р с т ф х ц ч ш"],
    "arabic": ["ا و ي ة", "ب ت ج ح خ د ر س ش ع ف ق ك ل م ن ه"],
    "hebrew": ["א ה ו י", "ב ג ד ז ח ט כ ל מ נ ס ע פ צ ק ר ש ת"],
    "devanagari": ["ा ि ी ु े ो ्", "क ख ग च ज ट त द न प ब म य र ल व स ह"],
    "thai": ["า ิ ี ุ เ แ โ ไ ่ ้", "ก ข ค ง จ ช ด ต น บ ป พ ม ย ร ล ว ส ห"],
    "hangul": ["가 나 다 라 마 바 사 아 자 하", "국 는 들 말 법 서 인 정 한 을"],
    "han": ["的 一 是 不 了 人 我 在 有 他", "这 中 大 来 上 国 个 到 说 们"],
    "kana": ["あ い う え お か き く の は", "ン ー ト ル ス リ ア ク ム を"],
}


def corpus(rng):
    words = [list(ENGLISH)]
    for vowels, consonants in SYLLABLES.values():
        vowels, consonants = vowels.split(), consonants.split()
        words.append(["".join(rng.choice(consonants) + rng.choice(vowels) for _ in range(rng.randint(1, 3)))
                      for _ in range(150)])
    for _ in range(6000):
        vocabulary = words[0] if rng.random() < 0.4 else rng.choice(words)
        count = rng.randint(3, 12)
        picks = [vocabulary[min(int(rng.paretovariate(0.7)) - 1, len(vocabulary) - 1)] for _ in range(count)]
        line = " ".join(picks)
        extra = rng.random()
        if extra < 0.1:
            line += " " + str(rng.randint(0, 10 ** rng.randint(1, 6)))
        elif extra < 0.2:
            line = " " * rng.choice([2, 4, 8, 12, 16]) + line + " = (x);" + "\n" * rng.randint(1, 3)
        elif extra < 0.25:
            line = "\t" * rng.randint(1, 4) + line + "...\r\n"
        elif extra < 0.3:
            line += " 😀👍🏽 — “" + rng.choice(picks) + "”!"
        yield line + rng.choice([".", ",", "", "\n", "?"])


def added(content, special=False, **flags):
    return AddedToken(content, special=special, **({"normalized": False} | flags))


FLAGGED = [added("[left]", lstrip=True), added("[right]", rstrip=True), added("[both]", lstrip=True, rstrip=True),
           added("word", single_word=True), added("[both]s", normalized=True), added("caf\u00e9!", normalized=True),
           added("<tool_call>"), added("<tool_call>x"), added("   \t", normalized=True)]


def train(family, rng):
    tokenizer = Tokenizer(models.BPE())
    split = {"llama3": CL100K % "{1,3}", "qwen2": CL100K % ""}.get(family)
    if split:
        first = pre_tokenizers.Split(Regex(split), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [first, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        first = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if family == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    start = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] if family == "smollm" else []
    # SmolLM2 has no token for 21 of the bytes; a few that the texts do use are missing here.
    missing = {chr(0x100 + 5), "ö", "Á"} if family == "smollm" else set()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=start, show_progress=False,
                                  initial_alphabet=[c for c in alphabet if c not in missing])
    tokenizer.train_from_iterator(corpus(rng), trainer)

    value = json.loads(tokenizer.to_str())
    vocabulary, model = value["model"]["vocab"], value["model"]
    if family == "smollm":
        for letter in missing & vocabulary.keys():
            model["merges"] = [pair for pair in model["merges"] if letter not in "".join(pair)]
        kept = [token for token in vocabulary if not missing & set(token)]
        model["vocab"] = {token: i for i, token in enumerate(kept)}
        model["unk_token"] = "<|endoftext|>"
        model["merges"] = [" ".join(pair) for pair in model["merges"]]  # as older files write them
    if family == "llama3":
        model["ignore_merges"] = True
        for word in ["Ġunmergeable", "strawberry", "ĊĊĊĊĊ", "Ġðıĺ"]:  # whole words that no merge makes
            vocabulary.setdefault(word, len(vocabulary))
    tokenizer = Tokenizer.from_str(json.dumps(value))
    named = {"smollm": ["<repo_name>"], "qwen2": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
             "llama3": ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                        "<|eot_id|>"]}
    tokenizer.add_special_tokens([added(name, special=True) for name in named[family]])
    tokenizer.add_tokens(FLAGGED)
    if family == "llama3":
        bos = "<|begin_of_text|>"
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1",
                                          special_tokens=[(bos, tokenizer.token_to_id(bos))])])
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer, model["merges"] if family == "smollm" else None


def configuration(family):
    if family == "llama3":
        return {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>",
                "tokenizer_class": "PreTrainedTokenizerFast"}
    if family == "qwen2":
        return {"add_bos_token": False, "bos_token": None, "eos_token": {"content": "<|im_end|>", "special": True},
                "chat_template": "{{ messages }}", "tokenizer_class": "Qwen2Tokenizer"}
    return {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>",
            "chat_template": [{"name": "tool", "template": "no"}, {"name": "default", "template": "{{ messages[0] }}"}]}


# ---- Texts that are hard to cut ------------------------------------------------------------------------------------

SPACES = [" ", " ", " ", "\t", "\n", "\r\n", "\r", "\n\n", "\v", "\f", "\x85", "\xa0", "\u1680", "\u2000", "\u2003",
          "\u2009", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\x1c", "\x1f", "\u200b", "\ufeff",
          "\u180e"]
EMOJI = ["👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇫🇷", "1️⃣", "#️⃣", "🧑🏿‍🚀", "❤️‍🔥", "🏴\U000e0067\U000e0062\U000e007f", "☺️",
         "\U0001fae9", "\U0001f6d8"]
CONTRACTIONS = ["'s", "'S", "'t", "'T", "'re", "'Re", "'RE", "'rE", "'ve", "'VE", "'m", "'M", "'ll", "'LL", "'lL", "'d",
                "'D", "'\u017f", "'r", "'v", "'l", "'", "''", "\u2019s", "'\u212a", "'ſt", "'\ufb06", "'se", "'tt",
                "'lle"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>",
           "<|start_header_id|>", "<|end_header_id|>", "<repo_name>", "[left]", "[right]", "[both]", "[both]s", "word",
           "caf\u00e9!", "cafe\u0301!", "<tool_call>", "<tool_call>x", "   \t", "<|im_", "_start|>", "<", "[",
           "<|im_end|"]
MARKS = ["\u0301", "\u0300", "\u0323", "\u0307", "\u0327", "\u0328", "\u0334", "\u0345", "\u031b", "\u0315", "\u035c",
         "\u05b0", "\u064b", "\u0651", "\u093c", "\u094d", "\u0e38", "\u3099", "\u309a", "\u20d0", "\U0001d165",
         "\U0001d16d", "\u1ac1", "\u08d3", "\u0c3c", "\U00010efd", "\U0001133b", "\U00011938", "\u1dfa", "\u0897",
         "\U00010d69"]
COMPOSING = ["a", "e", "o", "A", "s", "\u00fc", "\u1e63", "\u212b", "\u2126", "\u0958", "\u0915", "\ufb1d", "\u05d9",
             "\U0001d15e", "\U0001d157", "\u0344", "\u1100", "\u1161", "\u11a8", "\uac00", "\uac01", "\u1112",
             "\u1175", "\u11c2", "\ud7a3", "\u11a7", "\u0b47", "\u0b3e", "\u0b56", "\u09c7", "\u09be", "\u304b",
             "\uf900", "\U0002f800", "\u2adc", "\U00011099", "\U000110ba", "\U00011935", "\U00011930", "\U000105d2",
             "\U00016121", "\u1b05", "\u1b35", "\u0f43"]
CONTROLS = [chr(c) for c in [*range(0x20), *range(0x7F, 0xA0), 0xAD, 0x200C, 0x200D, 0x200E, 0x202E, 0x2060, 0xFFFD,
                             0xFFFE, 0xFFFF, 0xE000, 0xF8FF, 0xF0000, 0x10FFFF, 0x1FFFE, 0x378, 0xE0100, 0x3FFFF]]
TEXT = ["Hello", "world", "the", "token", "strawberry", " unmergeable", "straße", "naïve", "слово", "文字", "カタカナ", "한국어",
        "ไทย", "हिन्दी", "שלום", "مرحبا", "x", "I", "foo_bar", "http://a.b/c?d=e", "(", ")", "{", "};", "...", "!!",
        "-", "—", "@",
        "$", "%", "=>", "\\n", "\"", "«", "€", "“", "¿"]


class Texts:
    """Random texts out of pieces that tokenizers treat differently."""

    def __init__(self, rng):
        self.rng = rng
        assigned = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000 and regex.match(r"\P{Cn}", chr(c))]
        self.letters = [c for c in assigned if regex.match(r"\p{L}", c)]
        self.numbers = [c for c in assigned if regex.match(r"\p{N}", c)]
        self.marks = MARKS + [c for c in assigned if unicodedata.combining(c)]
        self.pages = {}
        for c in assigned:
            self.pages.setdefault(ord(c) >> 7, []).append(c)

    def spaces(self):
        if self.rng.random() < 0.5:
            return self.rng.choice(SPACES[:11]) * self.rng.choice([1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33])
        return "".join(self.rng.choice(SPACES) for _ in range(self.rng.randint(1, 6)))

    def number(self):
        if self.rng.random() < 0.5:
            return str(self.rng.randint(0, 10 ** self.rng.randint(1, 12)))
        return "".join(self.rng.choice(self.numbers) for _ in range(self.rng.randint(1, 5)))

    def composed(self):
        return "".join(self.rng.choice(COMPOSING if self.rng.random() < 0.5 else self.marks)
                       for _ in range(self.rng.randint(1, 6)))

    def piece(self):
        rng = self.rng
        kinds = [self.spaces, self.number, self.composed, lambda: rng.choice(EMOJI), lambda: rng.choice(CONTRACTIONS),
                 lambda: rng.choice(SPECIAL), lambda: rng.choice(CONTROLS), lambda: rng.choice(TEXT),
                 lambda: rng.choice(ENGLISH), lambda: " ", lambda: rng.choice(self.letters),
                 lambda: chr(rng.choice([rng.randrange(0x20, 0x250), rng.randrange(0xE000, 0x110000)]))]
        return rng.choices(kinds, [5, 3, 3, 1, 3, 3, 2, 5, 3, 4, 2, 1])[0]()

    def random(self, pieces):
        return "".join(self.piece() for _ in range(self.rng.randint(1, pieces)))

    def of_page(self, page):
        """Characters of one block of 128 code points, with a space and a digit somewhere."""
        characters = [self.rng.choice(self.pages[page]) for _ in range(10)] + [" ", "7"]
        self.rng.shuffle(characters)
        return "".join(characters)


def adversarial(texts):
    yield from ["", " ", "  ", "a", "\n", "\r\n", "\u0000", "\U0010ffff", "\ufeff", "a" * 300, "ab" * 200, "7" * 40]
    for n in range(1, 41):
        yield from [" " * n, " " * n + "x", "x" + "\n" * n + " y", "\t" * n + "1", " " * n + "\n" + " " * n + "!"]
    for contraction in CONTRACTIONS:
        yield from ["I" + contraction, contraction + "x", " " + contraction + " ", "1" + contraction + "2"]
    for special in SPECIAL:
        yield from [special, "a" + special + "b", " " + special + " ", "  \n" + special + "\t x", special * 2,
                    "_" + special,
                    special + "\u0301", special.upper()]
    for emoji in EMOJI:
        yield from [emoji, "a" + emoji + "b", emoji + emoji, " " + emoji + "\n\n"]
    for control in CONTROLS:
        yield from [control, "a" + control + " b"]
    for space in SPACES:
        yield from [space + "a", "a" + space + space + "1", space + "!" + space, " " + space, space + " x",
                    space + "\n" + space]
    for number in regex.findall(r"[\p{N}]", "".join(texts.numbers))[::23]:
        yield f"a{number}{number} 1{number}"
    for page in sorted(texts.pages):
        large = 0x3400 <= page << 7 < 0xD780 or 0x17000 <= page << 7 < 0x19000 or 0x20000 <= page << 7
        if not large or page % 40 == 0:
            yield texts.of_page(page)
    for _ in range(300):
        yield texts.composed()
    for _ in range(700):
        yield texts.random(8)


# ---- Files ---------------------------------------------------------------------------------------------------------


def packed(ids):
    assert all(i < 64 * 64 for i in ids)
    return "".join(DIGITS[i // 64] + DIGITS[i % 64] for i in ids)


def write_cases(out, tokenizers, cases):
    with open(out / "cases.jsonl", "w", encoding="ascii") as file:
        for text in cases:
            line = {"text": text}
            for family, tokenizer in tokenizers.items():
                line[family] = packed(tokenizer.encode(text, add_special_tokens=False).ids)
                tokenizer.encode_special_tokens = True
                plain = packed(tokenizer.encode(text, add_special_tokens=False).ids)
                tokenizer.encode_special_tokens = False
                if plain != line[family]:
                    line[family + "_plain"] = plain
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def write_decoded(out, tokenizers, texts):
    with open(out / "decoded.jsonl", "w", encoding="ascii") as file:
        for family, tokenizer in tokenizers.items():
            count = 0
            while count < 60:
                ids = tokenizer.encode(texts.random(6)).ids
                ids.insert(texts.rng.randint(0, len(ids)), texts.rng.randrange(4096))
                line = {family: packed(ids), "all": tokenizer.decode(ids, skip_special_tokens=False),
                        "skipped": tokenizer.decode(ids, skip_special_tokens=True)}
                if "\ufffd" in line["all"]:  # the library's mark for bytes that are no character
                    continue
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
                count += 1


def write_repeated(out, tokenizers):
    with open(out / "repeated.jsonl", "w", encoding="ascii") as file:
        # The two newer families' patterns run into a limit of the library's regular expressions beyond 10 MB of spaces.
        for text, times, families in [(" ", 20_000_000, ["smollm"]), (" ", 3_000_000, tokenizers), ("the", 300_001,
                                                                                                    tokenizers)]:
            line = {"text": text, "times": times}
            for family in families:
                ids = tokenizers[family].encode(text * times, add_special_tokens=False).ids
                line[family] = [[packed([i]), len(list(group))] for i, group in itertools.groupby(ids)]
            assert len(json.dumps(line)) < 10_000, "not a text that repeats its tokens"
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/fixtures/tokenizer"))
    out = parser.parse_args().out

    tokenizers = {}
    for seed, family in enumerate(["smollm", "llama3", "qwen2"]):
        tokenizer, old_merges = train(family, random.Random(seed))
        value = json.loads(tokenizer.to_str())
        if old_merges:
            value["model"]["merges"] = old_merges
        (out / family).mkdir(parents=True, exist_ok=True)
        (out / family / "tokenizer.json").write_text(json.dumps(value, separators=(",", ":")) + "\n")
        (out / family / "tokenizer_config.json").write_text(json.dumps(configuration(family), indent=1) + "\n")
        tokenizers[family] = Tokenizer.from_file(str(out / family / "tokenizer.json"))

    texts = Texts(random.Random(3))
    cases = list(dict.fromkeys(adversarial(texts)))
    write_cases(out, tokenizers, cases)
    write_decoded(out, tokenizers, texts)
    write_repeated(out, tokenizers)
    print(len(cases), "cases,", sum(path.stat().st_size for path in out.rglob("*") if path.is_file()), "bytes")


if __name__ == "__main__":
    main()
