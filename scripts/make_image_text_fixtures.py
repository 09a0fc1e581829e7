#!/usr/bin/env python3
"""Makes tests/fixtures/image_text: conversations with images, and the token ids that transformers makes of them.

Needs transformers (5.17.0 wrote the files), tokenizers and Pillow 12. Writes, for qwen2_vl,

    config.json, preprocessor_config.json, tokenizer.json, tokenizer_config.json   a model's files without its weights
    records.jsonl    conversations, each in several of the forms that snug reads; images are those of ../image
    expected.json    of each record the token ids, and of each image width and height after resizing and its tokens

    python scripts/make_image_text_fixtures.py [--out tests/fixtures]
"""

import argparse
import json
import pathlib

import PIL.Image
from PIL import ImageOps
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
           "<|video_pad|>"]  # fmt: skip
BOUNDS = {"min_pixels": 3136, "max_pixels": 15680}

# What Qwen2-VL's own template makes of texts, and of lists of texts and images.
TEMPLATE = """\
{%- for message in messages -%}
{%- if loop.first and message.role != 'system' -%}
{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif -%}
{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{{ '<|vision_start|><|image_pad|><|vision_end|>' if part.type == 'image' else part.text }}
{%- endfor -%}
{%- endif -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""


def byte_tokenizer():
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return tokenizer


def image(name):
    return {"type": "image", "image": name}


# Conversations as lists of (role, parts); texts stand for themselves.
TALKS = [
    [("user", [image("rgb8.png"), "What is it?"]), ("assistant", ["A square."])],
    [("user", ["Left ", image("420.jpg"), " and right ", image("exif6.jpg"), "?"]), ("assistant", ["Alike."])],
    [("system", ["Be brief."]), ("user", ["Look:\n", image("lossy.webp")]), ("assistant", ["Seen."]),
     ("user", ["And ", image("noise.png"), "?"]), ("assistant", ["Noise."])],
    [("user", ["Nothing to see."]), ("assistant", ["No."])],
]  # fmt: skip


def forms(talk):
    """The record that a conversation is, in every form: paths for markers, and parts."""
    paths = [part["image"] for _, parts in talk for part in parts if isinstance(part, dict)]
    marked = [(role, "".join("<image>" if isinstance(p, dict) else p for p in parts)) for role, parts in talk]
    records = [
        {"messages": [{"role": r, "content": c} for r, c in marked], "images": paths},
        {"conversations": [{"from": r, "value": c} for r, c in marked], "image": paths},
        {"messages": [{"role": r, "content": [p if isinstance(p, dict) else {"type": "text", "text": p} for p in parts]}
                      for r, parts in talk]},
        {"messages": [{"role": r, "content": [
            {"type": "image_url", "image_url": {"url": p["image"]}} if isinstance(p, dict) else {"type": "text", "text": p}
            for p in parts]} for r, parts in talk]},
    ]  # fmt: skip
    if len(paths) == 1:
        records.append({"messages": [{"role": r, "content": c.replace("<image>", "")} for r, c in marked],
                        "image": paths[0]})  # fmt: skip
        records.append({"instruction": marked[0][1], "output": marked[1][1], "images": paths})
    if paths:
        named = [(r, c) for r, c in marked]
        for i in range(len(paths)):
            at = next(k for k, (_, c) in enumerate(named) if "<image>" in c)
            named[at] = (named[at][0], named[at][1].replace("<image>", f"<image_{i:02}>", 1))
        records.append({"conversations": [{"role": r, "content": c} for r, c in named],
                        "image": {f"<image_{i:02}>": path for i, path in enumerate(paths)}})  # fmt: skip
    return records


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/fixtures"))
    out = parser.parse_args().out
    folder = out / "image_text" / "qwen2_vl"
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    write = lambda name, value: (folder / name).write_text(json.dumps(value, indent=1) + "\n")
    write("tokenizer_config.json", {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": TEMPLATE})
    write("preprocessor_config.json", {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14,
                                       "temporal_patch_size": 2, "merge_size": 2, **BOUNDS})  # fmt: skip
    ids = {text: tokenizer.token_to_id(text) for text in SPECIAL}
    write("config.json", {"model_type": "qwen2_vl", "vocab_size": 263, "image_token_id": ids["<|image_pad|>"],
                          "vision_start_token_id": ids["<|vision_start|>"],
                          "vision_end_token_id": ids["<|vision_end|>"],
                          "vision_config": {"patch_size": 14, "spatial_merge_size": 2}})  # fmt: skip
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    processor = Qwen2VLProcessor.__new__(Qwen2VLProcessor)  # without a video processor, which asks for torchvision
    processor.image_processor, processor.tokenizer, processor.chat_template = (
        Qwen2VLImageProcessorPil(**BOUNDS), fast, TEMPLATE)  # fmt: skip
    processor.image_token = "<|image_pad|>"

    records, expected = [], []
    for talk in TALKS:
        messages = [
            {"role": r, "content": [p if isinstance(p, dict) else {"type": "text", "text": p} for p in parts]}
            for r, parts in talk
        ]
        text = fast.apply_chat_template(messages, chat_template=TEMPLATE, tokenize=False)
        shown = []
        for _, parts in talk:
            for part in parts:
                if not isinstance(part, dict):
                    continue
                picture = ImageOps.exif_transpose(PIL.Image.open(out / "image" / part["image"])).convert("RGB")
                inputs = processor.image_processor(images=[picture], return_tensors="np")
                pads = processor.replace_image_token(inputs, 0)
                text = text.replace("<|image_pad|>", pads.replace("<|image_pad|>", "\0"), 1)
                _, h, w = (int(x) for x in inputs["image_grid_thw"][0])
                shown.append({"width": 14 * w, "height": 14 * h, "tokens": h * w // 4})
        tokens = fast(text.replace("\0", "<|image_pad|>"), add_special_tokens=False)["input_ids"]
        for record in forms(talk):
            records.append(record)
            expected.append({"ids": tokens, "images": shown})
    (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "expected.json").write_text(
        "[\n" + ",\n".join(json.dumps(one, separators=(",", ":")) for one in expected) + "\n]\n"
    )


if __name__ == "__main__":
    main()
