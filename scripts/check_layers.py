#!/usr/bin/env python3
"""Fails where a room of src/ includes a room that layers.txt does not allow it, where CUDA's headers are included
outside src/backend/cuda and what joins ranks on GPUs, where the configuration's header is included above src/model,
and where memory is allocated past the arenas."""

import fnmatch
import re
import sys

import sources

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.MULTILINE)
DEVICE_HEADER = re.compile(r"^(cuda|cublas|cudnn|nccl|nvml|cub/|thrust/|cooperative_groups)")
DEVICE_PLACES = ["src/backend/cuda/*", "src/comm/*_link.*", "src/comm/rank_backend.cpp"]

# Headers that only some rooms may include, though layers.txt lets others include their room.
NARROW_HEADERS = {"format/hf_config.h": ["src/format/*", "src/model/*"], "model/families.h": ["src/model/*"]}

# Each kind of allocation, and the files that may use it.
ALLOCATIONS = [
    (r"(?:\.|->)reserve\(\s*(?:space\b|Space::)", "Backend::reserve", ["src/backend/arena.cpp"]),
    (r"\bmmap\s*\(", "mmap", ["src/backend/*/backend.cpp", "src/base/file.cpp"]),
    (r"\bcuda(?:Malloc|HostAlloc|HostRegister)\w*\s*\(", "CUDA allocation", ["src/backend/cuda/backend.cpp"]),
    (r"\b(?:aligned_alloc|posix_memalign)\s*\(", "aligned allocation", ["src/base/file.cpp"]),
    (r"\b(?:malloc|calloc|realloc)\s*\(", "C allocation", []),
    (r"\bnew\s*(?:\([^)]*\)\s*)?[\w:<>, ]+\[", "new of an array", []),
    (r"\bmake_(?:unique|shared)(?:_for_overwrite)?\s*<[^;()]*\[\]\s*>", "array on the heap", []),
]


def read_layers():
    allowed = {}
    for line in (sources.ROOT / "layers.txt").read_text(encoding="utf-8").splitlines():
        line = line.split("#")[0].strip()
        if line:
            room, _, others = line.partition(":")
            allowed[room.strip()] = set(others.split()) | {room.strip()}
    return allowed


def matches(path, patterns):
    return any(fnmatch.fnmatch(path.as_posix(), pattern) for pattern in patterns)


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def room_of(path, allowed):
    """The room of a path below src/: its first folder, or its first two where layers.txt parts that room."""
    parts = path.split("/")[:-1]
    inner = "/".join(parts[:2])
    parted = len(parts) > 0 and any(name.startswith(parts[0] + "/") for name in allowed)
    return inner if parted and len(parts) > 1 else "".join(parts[:1])


def may_include(room, target, allowed):
    """Whether a room's list names the target, or the whole room that the target is a part of."""
    return target in allowed[room] or target.partition("/")[0] in allowed[room]


def check_includes(path, text, allowed):
    room = room_of("/".join(path.parts[1:]), allowed)
    if room and room not in allowed:
        yield f"{path}:1: room '{room}' is not in layers.txt"
        return
    for match in INCLUDE.finditer(text):
        place = f"{path}:{line_of(text, match.start(2))}"
        header = match.group(2)
        target = room_of(header, allowed)
        if match.group(1) == '"' and "/" not in header:
            yield f"{place}: '{header}' is included without its room, expected \"{room}/{header}\""
        elif match.group(1) == '"' and target in allowed and not may_include(room, target, allowed):
            yield f"{place}: room '{room}' includes '{header}', but layers.txt allows it {sorted(allowed[room])}"
        if not matches(path, NARROW_HEADERS.get(header, ["*"])):
            yield f"{place}: '{header}' is allowed in {', '.join(NARROW_HEADERS[header])}"
        if DEVICE_HEADER.match(header) and not matches(path, DEVICE_PLACES):
            yield f"{place}: '{header}' is a device header, allowed in {', '.join(DEVICE_PLACES)}"


def check_allocations(path, text):
    code = sources.code_only(text)
    for pattern, kind, places in ALLOCATIONS:
        if not matches(path, places):
            for match in re.finditer(pattern, code):
                where = f"allowed in {', '.join(places)}" if places else "allowed nowhere"
                yield f"{path}:{line_of(code, match.start())}: {kind} ({match.group().strip()}), {where}"


def main():
    allowed = read_layers()
    failures = []
    for path in sources.cpp_files("src"):
        text = (sources.ROOT / path).read_text(encoding="utf-8")
        failures += check_includes(path, text, allowed)
        failures += check_allocations(path, text)
    return sources.report("check_layers", failures)


if __name__ == "__main__":
    sys.exit(main())
