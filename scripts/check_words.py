#!/usr/bin/env python3
"""Fails where a file of the repository names what holds on one machine only: a folder outside the repository, or the
host of a package registry (packages are named, and the machine's own clients know where they come from). Fails too where
code of a room that has its words (docs/GLOSSARY.md) uses a retired one as an identifier, and where a text outside the
command line's rooms names an option by its flag."""

import re
import sys

import sources

# Written in pieces, so that this file does not match itself.
FOLDERS = ["work", "opt", "root"]
HOSTS = ["pypi" + ".org", "pythonhosted" + ".org", "debian" + ".org", "ubuntu" + ".com", "npmjs" + ".com", "crates" + ".io"]
WORDS = re.compile(r"(?<![\w.}])/(?:" + "|".join(FOLDERS) + r")/|" + "|".join(map(re.escape, HOSTS)))

# Identifiers that have given way to the field's words, and the rooms of src/ where they are refused.
RETIRED = re.compile(
    r"\b(?:Dial|open_dials|undialled|Relief|Settler|Prober|Probe|Elsewhere|Fates?|fate_of|Keep::\w+|Holder|granule|stash"
    r"|bring_\w+|brought_?|room_for\w*|share_\w+|redo|Again|PassFacts|is_joint|Trade|[Mm]eetings?_?"
    r"|reduce_at_once|of_one|CodedPlace|made_before_|in_both_places|tell_where|Sight|told_by_all|Ground|Aim|[Aa]live|DenseBlock|BlockParams"
    r"|Way|[Mm]ended|magnitude|Turn|turn_|turn_off|\w*[Uu]sual\w*|[Mm]ade|Beside|beside|at_once|who)\b")
ROOMS = ("model", "plan", "program", "exec", "train", "api", "cli", "backend")
# Rooms with a set of their own instead.
RETIRED_IN_ROOM = {"backend": re.compile(
    r"\b(?:Sight|sight|hide_\w+|\w*seen_by|end_of_seers|[Rr]each|extremes|turn|turned|turn_\w+|turned_\w+|\w+_turned|kTurned"
    r"|give_turn|await_turn|kOwn\w*|own_\w+|fetch_own\w*|kStep|kRowsAStep|settle|k?Thin|thin|\w+_thin(?:_\w+)?|thin_\w+"
    r"|k?Panels?|panels?|panels_of|\w*Boxes|k?Slabs?|slabs?|k?Pieces|\w*[Uu]sual\w*|at_once|kAtOnce|k?Held\w+|held_\w+"
    r"|[Cc]oded\w*|of_one|of_block|of_warp|of_device|launch_of_\w+|absmax|tells|[Uu]ntil|until_|Finish|magnitude)\b")}


def retired(path):
    """Retired identifiers of a file in one of the rooms, as failures."""
    if path.suffix not in sources.CPP_SUFFIXES or path.parts[:1] != ("src",) or path.parts[1] not in ROOMS:
        return []
    code = sources.code_only((sources.ROOT / path).read_text())
    words = RETIRED_IN_ROOM.get(path.parts[1], RETIRED)
    return [f"{path}:{number}: '{match.group()}' is retired: docs/GLOSSARY.md has the words"
            for number, line in enumerate(code.splitlines(), 1) for match in words.finditer(line)]


# Rooms of src/ that know flags: the command line's own, and that of other programs' command lines. Others name an option
# by option_name() (base/option_name.h).
FLAG_ROOMS = ("cli", "translate")
OPTION = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)


def flags():
    """Matches the flag of any option of the table, of which docs/options.md has the keys."""
    keys = OPTION.findall((sources.ROOT / "docs" / "options.md").read_text())
    return re.compile(r"(?<![\w-])--(?:" + "|".join(key.replace("_", "[-_]") for key in keys) + r"|\{\})(?![\w-])")


def flags_named(path, flag):
    """Texts of a file outside the command line's rooms that name an option by its flag, as failures."""
    if path.suffix not in sources.CPP_SUFFIXES or path.parts[:1] != ("src",) or path.parts[1] in FLAG_ROOMS:
        return []
    code = (sources.ROOT / path).read_text()
    return [f"{path}:{code.count(chr(10), 0, literal.start()) + 1}: '{match.group()}' is a flag: option_name() names options"
            for literal in sources.NOT_CODE.finditer(code) if literal.group().startswith('"')
            for match in flag.finditer(literal.group())]


def main():
    failures, flag = [], flags()
    for path in sources.tracked_files():
        data = (sources.ROOT / path).read_bytes()
        if b"\0" in data[:8192]:
            continue
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            for match in WORDS.finditer(line):
                failures.append(f"{path}:{number}: '{match.group()}' holds on one machine only")
        failures += retired(path) + flags_named(path, flag)
    return sources.report("check_words", failures)


if __name__ == "__main__":
    sys.exit(main())
