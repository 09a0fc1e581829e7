#!/usr/bin/env python3
"""Makes tests/fixtures/bitsandbytes/dynamic_maps.json: the dynamic maps of 8-bit optimizer state, and a block's codes.

Needs torch and bitsandbytes (0.50.2 wrote the file).

    python scripts/make_state_fixtures.py [--out tests/fixtures/bitsandbytes]
"""

import argparse
import json
import pathlib

import torch
from bitsandbytes import functional


def fixture(signed):
    code = functional.create_dynamic_map(signed)
    x = torch.randn(256, generator=torch.Generator().manual_seed(1)) ** 5  # many orders of magnitude
    x = x if signed else x.abs()
    # The kernel for fp32 looks codes up in a table of equal steps, which near 0 is not the nearest code; that for other
    # types, which computes in fp32 too, tries all.
    codes, absmax = torch.ops.bitsandbytes.quantize_blockwise(x.double(), code, 256)
    return {"map": code.tolist(), "x": x.tolist(), "absmax": absmax.item(), "codes": codes.tolist()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/fixtures/bitsandbytes"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    maps = {"signed": fixture(True), "unsigned": fixture(False)}
    (out / "dynamic_maps.json").write_text(json.dumps(maps, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
