#!/usr/bin/env python3
"""Makes tests/fixtures/jinja: what jinja2 makes of templates, in the environment that transformers compiles chat templates in.

cases.json holds small templates with their results, language.jinja all of them. published.json holds hashes (XXH3, 64 bits) of what published chat
templates make of the conversations in conversations.json, a hyphen where they fail, and published_ids.json of its token ids by the tokenizer in
tests/fixtures/tokenizer/qwen2 with the templates' markers as tokens: the templates themselves are those in models/templates of
llama.cpp's sources, which the source distribution of the package llama-cpp-python carries, and are not kept here.
Needs transformers 5.17, jinja2 3.1 and xxhash.

    python scripts/make_jinja_fixtures.py [--templates FOLDER] [--out tests/fixtures/jinja]
"""

import argparse
import copy
import json
import pathlib
import re

import jinja2
import tokenizers
import xxhash
from transformers.utils.chat_template_utils import _compile_jinja_template as compile_template

import jinja_cases
import jinja_conversations

DATE = "2024-07-26"


def strftime_now(form):
    import datetime
    return datetime.datetime.fromisoformat(DATE).strftime(form)


def render(text, variables):
    """The text, or None where jinja2 fails."""
    try:
        template = compile_template(text)
        template.globals["strftime_now"] = strftime_now
        return template.render(**copy.deepcopy(variables))
    except (jinja2.TemplateError, TypeError, ValueError, KeyError, OverflowError, ZeroDivisionError, IndexError,
            AttributeError, AssertionError, SyntaxError, UnboundLocalError, RecursionError):
        return None


def small_cases():
    cases = [{"template": text, "text": render(text, jinja_cases.VARIABLES)} for text in jinja_cases.CASES]
    return {"variables": jinja_cases.VARIABLES, "cases": cases}


def all_in_one(cases):
    """A template of all small ones that render, each in a scope of its own: a first input of the fuzzer."""
    parts = [case["template"] for case in cases if case["text"] is not None and "{#" not in case["template"]]
    return "".join(f"{{% with %}}{part}{{% endwith %}}\n" for part in parts if "raw" not in part)


def published(folder, conversations):
    results = {}
    for path in sorted(pathlib.Path(folder).glob("*.jinja")):
        text = path.read_text(encoding="utf-8")
        hashes = []
        for conversation in conversations:
            rendering = render(text, conversation)
            hashes.append("-" if rendering is None else xxhash.xxh3_64_hexdigest(rendering.encode()))
        results[path.name] = {"template": xxhash.xxh3_64_hexdigest(path.read_bytes()), "texts": " ".join(hashes)}
    return results


def marker_tokens(texts):
    """What marks turns, calls and thinking in the templates."""
    pattern = re.compile(r"<\|[A-Za-z0-9_]+\|>|<｜[^<>｜\s]+｜>|\[/?[A-Z_]{3,}\]|</?[a-z_]{1,24}>")
    return sorted({found for text in texts for found in pattern.findall(text)})


def published_ids(folder, conversations, base):
    """Hashes of the token ids of what published templates make of conversations, by a tokenizer with their markers."""
    paths = sorted(pathlib.Path(folder).glob("*.jinja"))
    tokenizer = tokenizers.Tokenizer.from_file(str(base))
    markers = marker_tokens(path.read_text(encoding="utf-8") for path in paths)
    tokenizer.add_special_tokens(markers)
    ids = {}
    for path in paths:
        hashes = []
        for conversation in conversations:
            rendering = render(path.read_text(encoding="utf-8"), conversation)
            if rendering is None:
                hashes.append("-")
                continue
            found = tokenizer.encode(rendering, add_special_tokens=False).ids
            hashes.append(xxhash.xxh3_64_hexdigest(",".join(map(str, found)).encode()))
        ids[path.name] = " ".join(hashes)
    return {"markers": markers, "ids": ids}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--templates", help="folder with published templates, *.jinja")
    parser.add_argument("--out", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "jinja")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    def write(name, value):
        (options.out / name).write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    small = small_cases()
    language = all_in_one(small["cases"])
    small["language.jinja"] = xxhash.xxh3_64_hexdigest(render(language, jinja_cases.VARIABLES).encode())
    write("cases.json", small)
    (options.out / "language.jinja").write_text(language, encoding="utf-8")
    if options.templates:
        conversations = jinja_conversations.conversations()
        write("conversations.json", conversations)
        write("published.json", published(options.templates, conversations))
        base = options.out.parent / "tokenizer" / "qwen2" / "tokenizer.json"
        write("published_ids.json", published_ids(options.templates, conversations, base))


if __name__ == "__main__":
    main()
