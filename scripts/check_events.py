#!/usr/bin/env python3
"""Compares the event files of a run (--metrics-format tensorboard) as the tensorboard package reads them with its
metrics.jsonl: the same tags, steps and numbers, in 32 bits. Needs tensorboard; run by hand.

    scripts/check_events.py RUN
"""

import json
import pathlib
import struct
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def narrowed(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    run = pathlib.Path(sys.argv[1])
    expected = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        values = json.loads(line)
        step = values.pop("step")
        for key, value in values.items():
            if value is not None:
                expected.setdefault(key, []).append((step, narrowed(value)))
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    found = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    failures = [f"{tag}: found {len(found.get(tag, []))} numbers, expected {len(expected.get(tag, []))}, which differ"
                for tag in sorted({*found, *expected}) if found.get(tag) != expected.get(tag)]
    print("\n".join(failures) or f"check_events: ok, {len(found)} tags, {len(expected['loss'])} steps")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
