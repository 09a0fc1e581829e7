#!/usr/bin/env python3
"""Makes tests/fixtures/parquet: small Parquet files of several writers, and beside each what its rows are as JSON lines.

Needs pyarrow, polars and duckdb (26.0.1, 2.1.0 and 2.0.1 wrote the files).

    python scripts/make_data_fixtures.py [--out tests/fixtures/parquet]
"""

import argparse
import base64
import datetime
import decimal
import json
import pathlib

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq

CHATS = [
    {"id": 0, "messages": [{"role": "user", "content": "Hé, \"what\"\n?", "weight": None}, {"role": "assistant", "content": "", "weight": 1.0}], "tags": ["a", None, "ccc"]},
    {"id": 1, "messages": None, "tags": []},
    {"id": None, "messages": [], "tags": None},
    {"id": 3, "messages": [None, {"role": None, "content": "x" * 70, "weight": 0.5}], "tags": [""]},
    {"id": -4, "messages": [{"role": "user", "content": "again", "weight": None}] * 3, "tags": ["a"] * 5},
]
MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string()), ("weight", pa.float64())])
CHAT_SCHEMA = pa.schema([("id", pa.int64()), ("messages", pa.list_(MESSAGE)), ("tags", pa.list_(pa.string()))])


def scalars():
    """A column of each type that is not nested."""
    return pa.table({
        "flag": pa.array([True, None, False, True]),
        "i32": pa.array([-1, 2**31 - 1, None, 0], pa.int32()),
        "i64": pa.array([-(2**63), 2**63 - 1, 0, None], pa.int64()),
        "u64": pa.array([2**64 - 1, 0, None, 1], pa.uint64()),
        "u8": pa.array([255, 0, None, 1], pa.uint8()),
        "f32": pa.array([0.1, float("nan"), float("inf"), None], pa.float32()),
        "f64": pa.array([0.1, -1e300, float("-inf"), None], pa.float64()),
        "date": pa.array([datetime.date(1970, 1, 2), None, None, None]),
        "time": pa.array([1, None, 2, 3], pa.timestamp("us")),
        "nothing": pa.array([None] * 4, pa.null()),
        "text": pa.array(["a", None, "", "\u2028ü"]),
        "required": pa.array(["w", "x", "y", "z"]),
    }, schema=pa.schema([
        ("flag", pa.bool_()), ("i32", pa.int32()), ("i64", pa.int64()), ("u64", pa.uint64()), ("u8", pa.uint8()),
        ("f32", pa.float32()), ("f64", pa.float64()), ("date", pa.date32()), ("time", pa.timestamp("us")),
        ("nothing", pa.null()), ("text", pa.large_string()), pa.field("required", pa.string(), nullable=False)]))


def nested():
    """Lists and structs within one another."""
    deep = pa.list_(pa.list_(pa.struct([("k", pa.list_(pa.int32())), ("s", pa.struct([("t", pa.string())]))])))
    rows = [
        [[{"k": [1, None, 3], "s": {"t": "a"}}, {"k": [], "s": None}], [], None],
        None,
        [],
        [[None, {"k": None, "s": {"t": None}}]],
        [[{"k": [7], "s": {"t": "z"}}]],
    ]
    return pa.table({"deep": pa.array(rows, deep), "pair": pa.array([{"a": 1, "b": None}, None, {"a": None, "b": "y"}, {"a": 2, "b": ""}, None], pa.struct([("a", pa.int32()), ("b", pa.string())]))})


def long_rows():
    """Enough rows for several pages, row groups and runs of every kind."""
    rows = [{"n": i * i % 1000 if i % 7 else None, "same": "s" if i < 900 else None, "text": f"row {i} " + "xyz"[i % 3] * (i % 11), "list": list(range(i % 4)) if i % 5 else None, "flag": i // 40 % 2 == 0} for i in range(1000)]
    return pa.Table.from_pylist(rows, pa.schema([("n", pa.int64()), ("same", pa.string()), ("text", pa.string()), ("list", pa.list_(pa.int32())), ("flag", pa.bool_())]))


def images():
    """Images as the library `datasets` writes them, beside structs that are none."""
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pictures = [[{"bytes": bytes(range(251, 256)) * n, "path": None} for n in (1, 2, 3)],
                [{"bytes": None, "path": "a.png"}], None, [{"bytes": b"\x89PNG", "path": "b.png"}, None]]
    text = pa.struct([("bytes", pa.string()), ("path", pa.string())])
    return pa.table({"images": pa.array(pictures, pa.list_(image)),
                     "texts": pa.array([{"bytes": "a", "path": "b"}, None, None, {"bytes": None, "path": None}], text)})


def plain(value):
    """A value as snug writes it: times as numbers, what is not finite as null or text, bytes of images as a data URL."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return "data:;base64," + base64.b64encode(value).decode()
    if isinstance(value, float) and value != value:
        return None
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, datetime.datetime):
        return round((value - datetime.datetime(1970, 1, 1)).total_seconds() * 1e6)
    if isinstance(value, datetime.date):
        return (value - datetime.date(1970, 1, 1)).days
    return value


def write_rows(path, table):
    lines = [json.dumps(plain(row), ensure_ascii=False) for row in table.to_pylist()]
    path.with_suffix(".jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/fixtures/parquet"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    chats = pa.Table.from_pylist(CHATS, CHAT_SCHEMA)
    for codec in ("none", "snappy", "gzip", "zstd"):
        pq.write_table(chats, out / f"chats_{codec}.parquet", compression=codec)
    pq.write_table(chats, out / "chats_v2.parquet", data_page_version="2.0", row_group_size=2)
    pq.write_table(chats, out / "chats_plain.parquet", use_dictionary=False, use_compliant_nested_type=False)
    write_rows(out / "chats.jsonl", chats)
    polars.from_arrow(chats).write_parquet(out / "chats_polars.parquet")
    duckdb.connect().from_arrow(chats).write_parquet(str(out / "chats_duckdb.parquet"))
    for name, table in (("scalars", scalars()), ("nested", nested()), ("images", images())):
        pq.write_table(table, out / f"{name}.parquet")
        pq.write_table(table, out / f"{name}_v2.parquet", data_page_version="2.0", compression="zstd", use_dictionary=False)
        write_rows(out / f"{name}.jsonl", table)
    rows = long_rows()
    pq.write_table(rows, out / "long.parquet", compression="zstd", row_group_size=400, data_page_size=300, write_batch_size=16)
    pq.write_table(rows, out / "long_v2.parquet", compression="gzip", data_page_version="2.0", data_page_size=300, write_batch_size=16)
    write_rows(out / "long.jsonl", rows)
    # Decimals as numbers, which pyarrow writes so where it is asked to.
    decimals = pa.table({"d": pa.array([decimal.Decimal(t) for t in ("-0.05", "123.40", "0.00")], pa.decimal128(5, 2))})
    pq.write_table(decimals, out / "decimals.parquet", store_decimal_as_integer=True)
    (out / "decimals.jsonl").write_text('{"d": -0.05}\n{"d": 123.4}\n{"d": 0}\n', encoding="utf-8")
    # Two row groups of two pages in each column, of sizes that are plain to see: a length of 4 bytes and a text of 100.
    wide = pa.schema([pa.field(name, pa.string(), nullable=False) for name in "abcd"])
    texts = pa.table({name: [letter * 100 for letter in (name, name.upper(), "x", "y")] for name in "abcd"}, wide)
    pq.write_table(texts, out / "wide.parquet", compression="none", use_dictionary=False, write_statistics=False,
                   row_group_size=2, data_page_size=1, write_batch_size=1)
    write_rows(out / "wide.jsonl", texts)
    # A table without rows.
    pq.write_table(pa.table({"instruction": ["q"], "output": ["a"], "turns": [[1, 2]]}).slice(0, 0), out / "empty.parquet")
    # What is refused.
    pq.write_table(chats, out / "refused_lz4.parquet", compression="lz4")
    pq.write_table(pa.table({"text": ["a", "b"]}), out / "refused_delta.parquet", use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY")
    pq.write_table(pa.table({"t": pa.array([1], pa.timestamp("ns"))}), out / "refused_int96.parquet", use_deprecated_int96_timestamps=True)
    pq.write_table(pa.table({"m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32()))}), out / "refused_map.parquet")
    pq.write_table(pa.table({"image": pa.array([b"\xff\xd8\xff"])}), out / "refused_bytes.parquet")


if __name__ == "__main__":
    main()
