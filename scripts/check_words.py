#!/usr/bin/env python3
"""Fails where a file of the repository names what holds on one machine only: a folder outside the repository, or the
host of a package registry (packages are named, and the machine's own clients know where they come from)."""

import re
import sys

import sources

# Written in pieces, so that this file does not match itself.
FOLDERS = ["work", "opt", "root"]
HOSTS = ["pypi" + ".org", "pythonhosted" + ".org", "debian" + ".org", "ubuntu" + ".com", "npmjs" + ".com", "crates" + ".io"]
WORDS = re.compile(r"(?<![\w.}])/(?:" + "|".join(FOLDERS) + r")/|" + "|".join(map(re.escape, HOSTS)))


def main():
    failures = []
    for path in sources.tracked_files():
        data = (sources.ROOT / path).read_bytes()
        if b"\0" in data[:8192]:
            continue
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            for match in WORDS.finditer(line):
                failures.append(f"{path}:{number}: '{match.group()}' holds on one machine only")
    return sources.report("check_words", failures)


if __name__ == "__main__":
    sys.exit(main())
