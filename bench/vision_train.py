#!/usr/bin/env python3
"""snug beside transformers + peft on one GPU, in turn: LoRA r16 on the text's linears of a Qwen2-VL shape with random
weights, tower and projector frozen; every block of 2,048 tokens has an image of 768 x 768 pixels (729 of them).

    vision_train.py --snug build/cuda-release/snug [--shape qwen2-vl-2b qwen2-vl-7b] [--micro 4] [-- --device-memory 16GiB]

The rival's pixels lie on the card before its steps begin; snug decodes JPEG files in every step. Liger's kernels serve the
rival where they are installed. Prints tokens per second and the card's memory of each, snug's forecast, and the ratio.
What follows `--` goes to snug.

    vision_train.py --snug build/cuda-release/snug --shape qwen2-vl-7b --load FOLDER [-- --device-memory 16GiB]

has transformers write the shape's checkpoint into FOLDER instead, and prints how many bytes snug has read of the disk when
all weights are in place, beside the checkpoint's.

    vision_train.py --snug build/cuda-release/snug --shape qwen2-vl-7b --kept-rows FOLDER [-- --device-memory 16GiB]

has transformers write it there, and runs snug from it twice: with rows of images made in every pass, and made once before
the first step, as snug does by itself where images are seen again. Says whether both have the same losses.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from gpu_rival import card_bytes, in_bf16, use_liger
from gpu_train import parse_until_dashes, run_watched
from load import LOADED, checkpoint_files, drop_pages, process_number

FIXTURE = pathlib.Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "image_text" / "qwen2_vl"
BEGIN, END, PAD = 259, 260, 261  # of an image, in the fixture's tokenizer of bytes
SIDE, PATCHES, TOKENS, SEQUENCE, WARMUP = 768, 54 * 54, 27 * 27, 2048, 3
LINEARS = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"

TEXT = {"hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "use_sliding_window": False, "torch_dtype": "bfloat16", "bos_token_id": 256, "eos_token_id": 257,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "image_token_id": PAD,
        "video_token_id": 262, "vision_start_token_id": BEGIN, "vision_end_token_id": END}  # fmt: skip
SHAPES = {
    "qwen2-vl-2b": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
                    "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True},
    "qwen2-vl-7b": {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
                    "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False},
}  # fmt: skip


def write_picture(path, side, noise):
    """Writes a square of noise as coarse as photographs are."""
    import numpy
    from PIL import Image

    small = noise.integers(0, 255, (side // 8, side // 8, 3), dtype=numpy.uint8)
    Image.fromarray(small).resize((side, side), Image.BICUBIC).save(path, quality=90)


def write_inputs(shape, count, folder):
    import numpy

    config = TEXT | SHAPES[shape] | {"model_type": "qwen2_vl", "architectures": ["Qwen2VLForConditionalGeneration"]}
    config["vision_config"] = {"depth": 32, "embed_dim": 1280, "hidden_size": config["hidden_size"], "num_heads": 16,
                               "mlp_ratio": 4, "in_chans": 3, "patch_size": 14, "spatial_merge_size": 2,
                               "temporal_patch_size": 2, "hidden_act": "quick_gelu"}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(FIXTURE / name, folder / name)
    processor = json.loads((FIXTURE / "preprocessor_config.json").read_text()) | {"max_pixels": 12845056}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    draw, noise = random.Random(1), numpy.random.default_rng(1)
    lines = []
    for number in range(count):
        write_picture(folder / f"{number}.jpg", SIDE, noise)
        reply = "".join(draw.choice("abcdefgh ") for _ in range(SEQUENCE - TOKENS - 120))
        messages = [{"role": "user", "content": "<image>?"}, {"role": "assistant", "content": reply}]
        lines.append(json.dumps({"messages": messages, "images": [f"{number}.jpg"]}) + "\n")
    (folder / "data.jsonl").write_text("".join(lines))


def snug_command(options, folder, init, steps, *more):
    words = f"--init {init} --method lora --lora-rank 16 --device cuda --sequence-length {SEQUENCE} --ranks 1 --save-every 0"
    words += f" --batch-size {options.batch} --packing false --shuffle false --max-steps {steps}"
    command = [options.snug, "train", "--model", folder, "--data", folder / "data.jsonl", "--image-dir", folder]
    return [*command, "--out", folder / "run", "--overwrite", *words.split(), *more, *options.more]


def write_checkpoint(folder):
    """Runs in a process of its own, as it takes the card."""
    import torch
    import transformers

    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        config = transformers.AutoConfig.from_pretrained(folder)
        model = transformers.Qwen2VLForConditionalGeneration._from_config(config, attn_implementation="sdpa")
    text = pathlib.Path(folder, "config.json").read_text()
    model.save_pretrained(folder, max_shard_size="5GB")
    pathlib.Path(folder, "config.json").write_text(text)


def write_inputs_and_checkpoint(options, shape, folder):
    folder.mkdir(parents=True)
    write_inputs(shape, options.batch, folder)
    subprocess.run([sys.executable, __file__, "--folder", folder, "--write"], check=True)


def load(options, shape):
    """Prints what of the disk was read until all weights were in place."""
    folder = options.load / shape
    write_inputs_and_checkpoint(options, shape, folder)
    files = checkpoint_files(folder)
    size = sum(path.stat().st_size for path in files)
    os.sync()
    drop_pages(files)
    process = subprocess.Popen(snug_command(options, folder, "pretrained", 1), stderr=subprocess.PIPE, text=True)
    start, read, said = time.perf_counter(), None, []
    for line in process.stderr:
        if line.startswith(LOADED):
            read, seconds = process_number(process.pid, "io", "read_bytes"), time.perf_counter() - start
        said.append(line)
    if process.wait() != 0 or read is None:
        sys.exit("".join(said))
    print(f"{shape}: {size} bytes of checkpoint, {read} read when all weights were in place after {seconds:.1f} s: "
          f"{read / size:.3f} x", flush=True)  # fmt: skip
    shutil.rmtree(folder)


def run_snug(options, shape, folder, init, *more):
    """Returns the rate, the most bytes of the card, and the losses."""
    errors, used = run_watched(snug_command(options, folder, init, options.steps + WARMUP, *more))
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    seconds = statistics.median(line["step_seconds"] for line in lines[WARMUP:])
    plan = json.loads((folder / "run" / "plan.json").read_text())
    rate = options.batch * SEQUENCE / seconds
    forecast = f", {plan['step_seconds'] / seconds - 1:+.1%} forecast" if plan["step_seconds"] else ""
    print(f"{shape}: snug{''.join(f' {word}' for word in more)} {rate:.0f} tokens/s, {used / 2**30:.2f} GiB{forecast}",
          flush=True)  # fmt: skip
    print("".join(f"  {line}\n" for line in errors.splitlines() if line.startswith(("arrange", "memory", "image"))))
    return rate, used, [line["loss"] for line in lines]


def run_from_checkpoint(options, shape):
    """Returns the rate with rows made once, and the most bytes of the card of that run, the one that makes them included."""
    folder = options.kept_rows / shape
    write_inputs_and_checkpoint(options, shape, folder)
    in_passes = run_snug(options, shape, folder, "pretrained", "--image-cache", "off")
    once = run_snug(options, shape, folder, "pretrained", "--image-cache", "on", "--cache-dir", folder / "rows")
    same = "the same losses" if in_passes[2] == once[2] else f"losses {in_passes[2]} and {once[2]}"
    print(f"{shape}: rows made once are {once[0] / in_passes[0]:.3f} x rows made in passes; {same}", flush=True)
    shutil.rmtree(folder)
    return once[:2]


def rival(options):
    """Runs in a process of its own; prints a line of JSON."""
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model

    try:
        liger = use_liger("qwen2_vl")
    except Exception as error:  # of a version that does not know this transformers
        print(f"without Liger: {error}", file=sys.stderr)
        liger = False
    config = transformers.AutoConfig.from_pretrained(options.folder)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = transformers.Qwen2VLForConditionalGeneration._from_config(config, attn_implementation="sdpa")
    torch.set_default_dtype(torch.float32)
    model.config.use_cache = False
    if options.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    lora = LoraConfig(r=16, lora_alpha=32, target_modules=LINEARS)
    model = in_bf16(get_peft_model(model, lora, autocast_adapter_dtype=False)).train()
    m = options.micro
    ids = torch.randint(0, 255, (m, SEQUENCE), device="cuda")
    ids[:, 10], ids[:, 11 : 11 + TOKENS], ids[:, 11 + TOKENS] = BEGIN, PAD, END
    labels = ids.clone()
    labels[:, : 12 + TOKENS] = -100
    batch = {
        "input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.randn(m * PATCHES, 1176, device="cuda", dtype=torch.bfloat16),
        "image_grid_thw": torch.tensor([[1, 54, 54]] * m, device="cuda"), "mm_token_type_ids": (ids == PAD).int(),
    }  # fmt: skip
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=2e-4, weight_decay=0.0, fused=True)
    seconds = []
    for _ in range(options.steps + WARMUP):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(options.batch // m):
            (model(**batch).loss * (m / options.batch)).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    rate = options.batch * SEQUENCE / statistics.median(seconds[WARMUP:])
    print(json.dumps({"rate": rate, "bytes": card_bytes(), "liger": liger}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snug", help="the program")
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--micro", type=int, default=4, help="blocks a pass of the rival")
    parser.add_argument("--checkpointing", action="store_true", help="of the rival")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--load", metavar="FOLDER", type=pathlib.Path, help="on the disk to be read; 17 GB for 7B")
    parser.add_argument("--kept-rows", metavar="FOLDER", type=pathlib.Path, help="for 17 GB of 7B, and what rows take")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help=argparse.SUPPRESS)
    options = parse_until_dashes(parser)
    if options.folder:
        return write_checkpoint(options.folder) if options.write else rival(options)
    for shape in options.shape:
        if options.load:
            load(options, shape)
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            write_inputs(shape, options.batch, folder)
            if options.kept_rows:
                rate, used = run_from_checkpoint(options, shape)
            else:
                rate, used, _ = run_snug(options, shape, folder, "random")
            command = [sys.executable, __file__, "--folder", folder, "--batch", str(options.batch), "--micro"]
            command += [str(options.micro), "--steps", str(options.steps)]
            command += ["--checkpointing"] if options.checkpointing else []
            output = subprocess.run(command, capture_output=True, text=True)
            if output.returncode != 0:
                print(f"{shape}: the rival failed: {output.stderr[-1500:]}", flush=True)
                continue
            theirs = json.loads(output.stdout.splitlines()[-1])
            title = f"transformers + peft{' + Liger' if theirs['liger'] else ''}"
            print(f"{shape}: {title}, {options.micro} blocks a pass, {theirs['rate']:.0f} tokens/s, "
                  f"{theirs['bytes'] / 2**30:.2f} GiB: snug makes {rate / theirs['rate']:.2f} x in "
                  f"{used / theirs['bytes']:.2f} of its memory", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
