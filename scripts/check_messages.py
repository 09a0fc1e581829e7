#!/usr/bin/env python3
"""Fails where docs/troubleshooting.md explains a message, or docs/GLOSSARY.md a word of plans, that no source prints."""

import re
import sys

import sources

# What others print (a shell, the C library), and a value in the place of a field.
FOREIGN = {"Killed", "No space left on device", "model_type"}
PAGES = {"docs/troubleshooting.md": None, "docs/GLOSSARY.md": "## Words of a plan"}


def printed():
    """All texts of src/ in one, those that stand beside each other joined; fields in braces are a break."""
    texts = []
    for path in sources.cpp_files("src"):
        code, end = (sources.ROOT / path).read_text(), 0
        for literal in sources.NOT_CODE.finditer(code):
            if not literal.group().startswith('"'):
                continue
            between = code[end:literal.start()]
            texts.append(("" if not between.strip() else "\n") + literal.group()[1:-1])
            end = literal.end()
    text = "".join(texts).replace('\\"', '"').replace("\\n", "\n")
    return re.sub(r"\{[^{}\n]*\}", "\n", text)


def explained(path, heading):
    """The texts in backticks of each row's first cell."""
    page = (sources.ROOT / path).read_text()
    if heading:
        page = page.split(heading, 1)[1].split("\n## ", 1)[0]
    for line in page.splitlines():
        if line.startswith("| `"):
            yield from re.findall(r"`([^`]+)`", line.split(" | ")[0])


def main():
    text, failures = printed(), []
    for path, heading in PAGES.items():
        for message in explained(path, heading):
            parts = [part.strip() for part in re.split(r"\.\.\.|['\"]", message)]
            missing = [part for part in parts if part and part not in FOREIGN and part not in text]
            failures += [f"{path}: `{message}`: no source prints '{part}'" for part in missing]
    return sources.report("check_messages", failures)


if __name__ == "__main__":
    sys.exit(main())
