#!/usr/bin/env python3
"""How fast snug loads a checkpoint, sharded among ranks, beside what the disk gives.

    load.py MODEL_DIR --snug build/cuda-release/snug --at FOLDER [--layers N] [--ranks 1 2 4] [-- --base-format int8]

Writes a checkpoint of MODEL_DIR's config.json (a Llama) into FOLDER, in bf16, in shards of 5 GB; --layers makes it one
of so many. Then, for each number of ranks: the rate of the disk, past the page cache, over a sample of the same files
(the best of several numbers of readers), and one step of LoRA by `snug train --zero 3`. Printed of the load: seconds
and rate, and the rate by the disk's (0.8 asked); what the process had read when all weights were in place, and that by
the checkpoint's size (1.05 asked); what host memory the process had held at most by then, and the host's arenas of all
ranks (as much asked for any number of ranks). On the CPU the process holds the weights too. The checkpoint is removed
at the end unless --keep is given; one that is there is used. What follows `--` goes to snug. On four cards:

    load.py tests/fixtures/configs/llama-3-70b --snug build/cuda-release/snug --at /tmp/load --ranks 1 2 4
"""

import argparse
import concurrent.futures
import json
import mmap
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from gpu_train import parse_until_dashes

SHARD = 5 * 10**9
RANGE = 16 << 20
READERS = [1, 2, 4, 8, 16]
WRITERS = 4
LOADED = "all weights are in place"


# ---- The checkpoint ----


def tensors_of(config):
    """Names and shapes, in the order of Hugging Face's files."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or hidden // heads
    queries, keys = heads * width, config["num_key_value_heads"] * width
    of_block = {
        "input_layernorm": [hidden],
        "mlp.down_proj": [hidden, inner],
        "mlp.gate_proj": [inner, hidden],
        "mlp.up_proj": [inner, hidden],
        "post_attention_layernorm": [hidden],
        "self_attn.k_proj": [keys, hidden],
        "self_attn.o_proj": [hidden, queries],
        "self_attn.q_proj": [queries, hidden],
        "self_attn.v_proj": [keys, hidden],
    }
    yield "model.embed_tokens.weight", [config["vocab_size"], hidden]
    for layer in range(config["num_hidden_layers"]):
        for name, shape in of_block.items():
            yield f"model.layers.{layer}.{name}.weight", shape
    yield "model.norm.weight", [hidden]
    if not config.get("tie_word_embeddings"):
        yield "lm_head.weight", [config["vocab_size"], hidden]


def bytes_of(shape):
    count = 2
    for size in shape:
        count *= size
    return count


def cut_into_shards(tensors):
    shards, filled = [[]], 0
    for name, shape in tensors:
        if filled and filled + bytes_of(shape) > SHARD:
            shards.append([])
            filled = 0
        shards[-1].append((name, shape))
        filled += bytes_of(shape)
    return shards


def header_of(shard):
    entries, at = {}, 0
    for name, shape in shard:
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + bytes_of(shape)]}
        at += bytes_of(shape)
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, at


def random_range():
    """Of random bf16 numbers from 2^-7 to 2^-5, of either sign."""
    numbers = bytearray(os.urandom(RANGE))
    numbers[1::2] = numbers[1::2].translate(bytes(byte & 0x80 | 0x3C for byte in range(256)))
    return numbers


def aligned(content):
    memory = mmap.mmap(-1, len(content))
    memory[:] = bytes(content)
    return memory


def open_directly(path, flags):
    try:
        return os.open(path, flags | os.O_DIRECT, 0o644)
    except OSError:  # a file system without
        return os.open(path, flags, 0o644)


def write_checkpoint(config, folder):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    numbers = random_range()
    body = aligned(numbers)
    shards = cut_into_shards(tensors_of(config))
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    files = []

    def put(descriptor, offset, content):
        if os.pwrite(descriptor, content, offset) != len(content):
            sys.exit("the disk is full")

    with concurrent.futures.ThreadPoolExecutor(WRITERS) as pool:
        writes = []
        for shard, name in zip(shards, names):
            header, data = header_of(shard)
            size = len(header) + data
            descriptor = open_directly(folder / name, os.O_WRONLY | os.O_CREAT)
            os.posix_fallocate(descriptor, 0, size)
            files.append((descriptor, size))
            # Whole ranges, the last beyond the end: a checkpoint's numbers need not begin anywhere in particular.
            writes.append(pool.submit(put, descriptor, 0, aligned(header + numbers[len(header) :])))
            writes += [pool.submit(put, descriptor, at, body) for at in range(RANGE, size, RANGE)]
        for write in writes:
            write.result()
    for descriptor, size in files:
        os.ftruncate(descriptor, size)
        os.fsync(descriptor)
        os.close(descriptor)
    places = {name: file for shard, file in zip(shards, names) for name, _ in shard}
    index = {"metadata": {"total_size": sum(bytes_of(shape) for shard in shards for _, shape in shard)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index | {"weight_map": places}))


def checkpoint_files(folder):
    return sorted(folder.glob("*.safetensors"))


def drop_pages(files):
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


# ---- The disk ----


def disk_rate(files, sample):
    """Bytes a second: the best of several numbers of readers, each of which reads on from a place of its own. They
    read about `sample` bytes in all, each number of readers others than the last as far as there are enough."""
    places = [(path, at) for path in files for at in range(0, path.stat().st_size - RANGE, RANGE)]
    descriptors = {path: open_directly(path, os.O_RDONLY) for path in files}
    if not places:
        sys.exit(f"the checkpoint has no file of more than {RANGE} bytes")
    each = max(1, min(int(sample) // RANGE, len(places)) // len(READERS))  # ranges

    def read_some(begin, count):
        memory = mmap.mmap(-1, RANGE)
        read = 0
        for i in range(begin, begin + count):
            path, at = places[i % len(places)]
            read += os.preadv(descriptors[path], [memory], at)
        return read

    best = 0
    for attempt, readers in enumerate(READERS):
        count = -(-each // readers)
        begins = [attempt * each + reader * count for reader in range(readers)]
        with concurrent.futures.ThreadPoolExecutor(readers) as pool:
            start = time.perf_counter()
            read = sum(pool.map(read_some, begins, [count] * readers))
            best = max(best, read / (time.perf_counter() - start))
    for descriptor in descriptors.values():
        os.close(descriptor)
    return best


# ---- snug ----


def process_number(pid, file, name):
    for line in pathlib.Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    sys.exit(f"/proc/{pid}/{file}: found no {name}")


def run_snug(options, checkpoint, folder, ranks):
    """What `snug train --json` said, and what its process had read and held when all weights were in place."""
    arguments = f"--data-format tokens --packing false --sequence-length {options.sequence} --max-steps 1 --zero 3"
    arguments += f" --save-every 0 --batch-size {max(options.ranks)} --ranks {ranks} --overwrite --json"
    command = [options.snug, "train", "--model", checkpoint, "--data", folder / "blocks.jsonl", "--out", folder / "run"]
    command += [*arguments.split(), *options.more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said, read, held = [], None, None
    for line in process.stderr:
        if line.startswith(LOADED):
            read = process_number(process.pid, "io", "read_bytes")
            held = process_number(process.pid, "status", "VmHWM") << 10
        said.append(line)
    output = process.stdout.read()
    if process.wait() != 0 or read is None:
        sys.exit(f"{' '.join(map(str, command))}\n{''.join(said)}")
    if options.verbose:
        print("".join(said))
    return json.loads(output), read, held


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL_DIR", type=pathlib.Path)
    parser.add_argument("--snug", required=True)
    parser.add_argument("--at", metavar="FOLDER", type=pathlib.Path, required=True, help="on the disk to be read")
    parser.add_argument("--layers", type=int, help="instead of the config's")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--sequence", type=int, default=32, help="tokens of a block: few, as the load is meant")
    parser.add_argument("--sample", type=float, default=16, help="GB of which the disk's rate is taken")
    parser.add_argument("--keep", action="store_true", help="the checkpoint")
    parser.add_argument("--verbose", action="store_true", help="what snug says")
    return parse_until_dashes(parser)


def measure(options, checkpoint, folder):
    blocks = [[(7 * i + block) % 1000 for i in range(options.sequence)] for block in range(max(options.ranks))]
    lines = [json.dumps({"input_ids": block, "labels": block}) + "\n" for block in blocks]
    (folder / "blocks.jsonl").write_text("".join(lines))
    files = checkpoint_files(checkpoint)
    size = sum(path.stat().st_size for path in files)
    print(f"checkpoint: {size / 1e9:.2f} GB in {len(files)} files", flush=True)
    for ranks in options.ranks:
        drop_pages(files)
        disk = disk_rate(files, int(options.sample * 1e9))
        drop_pages(files)
        result, read, held = run_snug(options, checkpoint, folder, ranks)
        seconds = result["load_seconds"]
        arenas = sum(rank["host_bytes"] for rank in result["ranks"])
        print(f"{ranks} ranks: {seconds:.2f} s, {size / seconds / 1e9:.2f} GB/s, disk {disk / 1e9:.2f} GB/s", end="")
        print(f" ({size / seconds / disk:.2f}); read {read / 1e9:.2f} GB ({read / size:.3f})", end="")
        print(f"; host {held / 2**30:.2f} GiB, arenas {arenas / 2**30:.3f} GiB", flush=True)
    print(f"disk at the end: {disk_rate(files, int(options.sample * 1e9)) / 1e9:.2f} GB/s")


def main():
    options = parse_options()
    config = json.loads((options.model / "config.json").read_text())
    if options.layers:
        config["num_hidden_layers"] = options.layers
    checkpoint = options.at / "checkpoint"
    there = (checkpoint / "model.safetensors.index.json").exists()
    if checkpoint.exists() and not there:
        sys.exit(f"{checkpoint}: found a directory without a checkpoint, expected none, or one that --keep left")
    try:
        if not there:
            start = time.perf_counter()
            write_checkpoint(config, checkpoint)
            print(f"written in {time.perf_counter() - start:.1f} s", flush=True)
        with tempfile.TemporaryDirectory(dir=options.at) as folder:
            measure(options, checkpoint, pathlib.Path(folder))
    finally:
        if not options.keep and not there:
            shutil.rmtree(checkpoint, ignore_errors=True)


if __name__ == "__main__":
    main()
