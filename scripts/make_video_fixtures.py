#!/usr/bin/env python3
"""Makes tests/fixtures/video: lists of frames, and what transformers makes of them.

Needs transformers (5.17.0 wrote the files), torch, torchvision (0.29, for the class of video processors), tokenizers and
Pillow 12. Reads the models of tests/fixtures/vision and the tokenizer of tests/fixtures/image_text. Writes

    frame0.png ...          five pictures of one size, and small.png of another
    rows.json               by numbers of frames and bounds: the grid, the first numbers and a checksum of the rows. Numbers
                            are those of the image processor with Pillow, which no video processor has; where they stand is
                            compared here with Qwen2VLVideoProcessor's, and their values are within a rounding of its
    records.jsonl           conversations with videos, each in the forms that snug reads; expected.json has their ids
    MODEL/samples.json      ids, labels, steps of videos, and positions by transformers 4's rule, restated here
    MODEL/reference.*       loss, logits and gradients

    python scripts/make_video_fixtures.py [--out tests/fixtures]
"""

import argparse
import json
import os
import pathlib

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import PIL
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import AutoModelForImageTextToText, PreTrainedTokenizerFast
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

from make_image_fixtures import checksum, rgb, write_json

FRAMES, SIZE = 5, (90, 62)
BOUNDS = [(3136, 15680), (784, 2000), (20000, 40000)]
MERGE, IMAGE, VIDEO = 2, 490, 491


def expected_rows(frames, bounds):
    """Rows of a video: each frame's by the image processor, which repeats a picture, brought together by twos."""
    limits = {"min_pixels": bounds[0], "max_pixels": bounds[1]}
    padded = frames + frames[-1:] * (len(frames) % 2)
    outputs = [Qwen2VLImageProcessorPil(**limits)(images=[frame], return_tensors="np") for frame in padded]
    grid = [int(x) for x in outputs[0]["image_grid_thw"][0]]
    rows = np.stack([o["pixel_values"].reshape(-1, 3, 2, 14, 14)[:, :, 0] for o in outputs])  # [frames, patches, ...]
    rows = rows.reshape(len(padded) // 2, 2, *rows.shape[1:]).transpose(0, 2, 3, 1, 4, 5)
    rows = np.ascontiguousarray(rows.reshape(-1, 3 * 2 * 14 * 14), dtype=np.float32)
    grid[0] = len(padded) // 2
    # Where numbers stand is as the video processor has it: it gets frames of the size that they are to have.
    size = (grid[2] * 14, grid[1] * 14)
    resized = [np.asarray(frame.resize(size, Image.Resampling.BICUBIC)).transpose(2, 0, 1) for frame in frames]
    video = Qwen2VLVideoProcessor(do_resize=False)([np.stack(resized)], return_tensors="np", cap_pixels_per_frame=False)
    assert [int(x) for x in video["video_grid_thw"][0]] == grid
    assert np.abs(video["pixel_values_videos"] - rows).max() < 1e-5
    whole = Qwen2VLVideoProcessor(size={"shortest_edge": bounds[0], "longest_edge": bounds[1]})(
        [np.stack([np.asarray(frame).transpose(2, 0, 1) for frame in frames])], return_tensors="np",
        cap_pixels_per_frame=False)  # fmt: skip
    assert [int(x) for x in whole["video_grid_thw"][0]] == grid
    return rows, grid


def make_rows(folder, frames):
    cases = []
    for bounds in BOUNDS:
        for count in range(1, FRAMES + 1):
            rows, grid = expected_rows(frames[:count], bounds)
            cases.append({"bounds": bounds, "frames": count, "grid": grid, "begin": rows[0, :4].tolist(),
                          "rows": checksum(rows)})  # fmt: skip
    write_json(folder / "rows.json", cases)


def make_records(folder, fixtures, frames):
    tokenizer = Tokenizer.from_file(str(fixtures / "image_text" / "qwen2_vl" / "tokenizer.json"))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    clip = lambda count: [f"frame{i}.png" for i in range(count)]
    talks = [
        [("user", [clip(4), "What happens?"]), ("assistant", ["Nothing."])],
        [("user", ["Look: ", clip(3), " and ", "frame1.png", "?"]), ("assistant", ["Seen."]),
         ("user", ["And ", clip(1), "?"]), ("assistant", ["Too."])],
    ]  # fmt: skip
    records, expected = [], []
    for talk in talks:
        text = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        for role, parts in talk:
            text += f"<|im_start|>{role}\n"
            for part in parts:
                if isinstance(part, list) or part.endswith(".png"):
                    count = len(part) if isinstance(part, list) else 1
                    _, grid = expected_rows(frames[:count], BOUNDS[0])
                    pad = "<|video_pad|>" if isinstance(part, list) else "<|image_pad|>"
                    text += f"<|vision_start|>{pad * (grid[0] * grid[1] * grid[2] // 4)}<|vision_end|>"
                else:
                    text += part
            text += "<|im_end|>\n"
        ids = fast(text, add_special_tokens=False)["input_ids"]
        flat = [part for _, parts in talk for part in parts]
        marker = lambda p: "<video>" if isinstance(p, list) else "<image>" if p.endswith(".png") else p
        part_of = lambda p: ({"type": "video", "video": p} if isinstance(p, list) else
                             {"type": "image", "image": p} if p.endswith(".png") else {"type": "text", "text": p})  # fmt: skip
        lists = {"videos": [p for p in flat if isinstance(p, list)]}
        if images := [p for p in flat if isinstance(p, str) and p.endswith(".png")]:
            lists["images"] = images
        records += [
            {"messages": [{"role": r, "content": "".join(map(marker, parts))} for r, parts in talk], **lists},
            {"conversations": [{"from": r, "value": "".join(map(marker, parts))} for r, parts in talk], **lists},
            {"messages": [{"role": r, "content": [part_of(p) for p in parts]} for r, parts in talk]},
        ]
        expected += [{"ids": ids}] * 3
    (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    write_json(folder / "expected.json", expected)


def make_samples(seconds_a_position):
    """Samples with a video between texts, and with an image, two videos and none."""
    generator = torch.Generator().manual_seed(21)
    samples = []
    for media, lengths in [
        ([(3, 4, 6)], [4, 6]),
        ([(1, 6, 2), (2, 4, 4), (4, 2, 2)], [1, 3, 0, 5]),
        ([], [9]),
        ([(2, 10, 6)], [2, 11]),
    ]:  # fmt: skip
        ids, labels, images, grids, positions, start = [], [], [], [], [], 0
        for index, length in enumerate(lengths):
            text = torch.randint(3, IMAGE, (length,), generator=generator).tolist()
            ids += text
            labels += text
            positions += [[start + i] * 3 for i in range(length)]
            start += length
            if index == len(media):
                continue
            t, h, w = media[index]
            token = IMAGE if t == 1 else VIDEO
            grids.append([t, h, w])
            # get_rope_index() of transformers 4: times in fp32, rounded down; what follows is behind all that was.
            steps = torch.arange(t)
            if seconds_a_position and t > 1:
                steps = (steps * seconds_a_position[0] * seconds_a_position[1]).long()
            block = [[start + int(s), start + y, start + x] for s in steps for y in range(h // 2) for x in range(w // 2)]
            for k in range(t):
                images.append({"begin": len(ids) + k * h * w // 4, "rows": h, "columns": w,
                               "step": k + 1 if t > 1 else 0, "time": int(steps[k])})  # fmt: skip
            ids += [token] * len(block)
            labels += [-100] * len(block)
            positions += block
            start = max(max(p) for p in positions) + 1
        samples.append({"input_ids": ids, "labels": labels, "images": images, "grids": grids,
                        "positions": [list(axis) for axis in zip(*positions)]})  # fmt: skip
    return samples


def logits_of(model, sample, pixels):
    ids = torch.tensor([sample["input_ids"]])
    given, at = {}, 0
    for name, values, wanted in (("image_grid_thw", "pixel_values", False),
                                 ("video_grid_thw", "pixel_values_videos", True)):  # fmt: skip
        rows, grids, at = [], [], 0
        for t, h, w in sample["grids"]:
            if (t > 1) == wanted:
                grids.append([t, h, w])
                rows.append(pixels[at : at + t * h * w])
            at += t * h * w
        if grids:
            given |= {name: torch.tensor(grids), values: torch.cat(rows).to(next(model.parameters()).dtype)}
    if given:
        given["mm_token_type_ids"] = (ids == IMAGE).long() + 2 * (ids == VIDEO).long()
    return model(input_ids=ids, position_ids=torch.tensor(sample["positions"])[:, None], **given).logits[0]


def gradients(folder, samples, pixels, dtype):
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    logits = [logits_of(model, s, p) for s, p in zip(samples, pixels)]
    targets = [torch.tensor(s["labels"][1:]) for s in samples]
    count = sum(int((t != -100).sum()) for t in targets)
    loss = sum(F.cross_entropy(l[:-1], t, ignore_index=-100, reduction="sum") for l, t in zip(logits, targets)) / count
    loss.backward()
    return logits, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}, loss.item()


def make_model(folder, source, seconds_a_position):
    folder.mkdir(exist_ok=True)
    samples = make_samples(seconds_a_position)
    generator = torch.Generator().manual_seed(22)
    pixels = [torch.randn(sum(t * h * w for t, h, w in s["grids"]), 3 * 2 * 4 * 4, generator=generator) for s in samples]
    write_json(folder / "samples.json", samples)
    logits, found, loss = gradients(source, samples, pixels, torch.float32)
    _, exact, _ = gradients(source, samples, pixels, torch.float64)
    noise = {n: (g != 0) & (g.abs() < 1e-8) & n.endswith("bias") for n, g in exact.items()}
    error = max(((found[n] * ~noise[n] - g * ~noise[n]).norm() / (g * ~noise[n]).norm()).item()
                for n, g in exact.items() if (g * ~noise[n]).norm() > 0)  # fmt: skip
    tensors = {f"grad.{n}": g.masked_fill(noise[n], torch.nan) for n, g in found.items()}
    tensors |= {f"pixels.{i}": p for i, p in enumerate(pixels) if len(p)}
    tensors |= {f"logits.{i}": l.detach().clone() for i, l in enumerate(logits)}
    save_file({n: t.float().contiguous() for n, t in tensors.items()}, folder / "reference.safetensors")
    (folder / "reference.json").write_text(json.dumps({"loss": loss, "gradient_error": error}) + "\n")
    print(folder.name, loss, error)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/fixtures"))
    fixtures = parser.parse_args().out
    assert PIL.__version__.startswith("12."), f"Pillow is {PIL.__version__}, expected 12: 13 resizes in another order"
    torch.set_num_threads(1)
    folder = fixtures / "video"
    folder.mkdir(exist_ok=True)
    frames = [rgb(*SIZE, seed=40 + i) for i in range(FRAMES)]
    for i, frame in enumerate(frames):
        frame.save(folder / f"frame{i}.png")
    rgb(30, 40, seed=50).save(folder / "small.png")
    make_rows(folder, frames)
    make_records(folder, fixtures, frames)
    make_model(folder / "qwen2_vl", fixtures / "vision" / "qwen2_vl", None)
    # 3 frames a second, by twos, and the model's tokens_per_second.
    vision = json.loads((fixtures / "vision" / "qwen2_5_vl" / "config.json").read_text())["vision_config"]
    make_model(folder / "qwen2_5_vl", fixtures / "vision" / "qwen2_5_vl", (2 / 3, vision["tokens_per_second"]))


if __name__ == "__main__":
    main()
