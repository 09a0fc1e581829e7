#!/usr/bin/env python3
"""Makes tests/fixtures/vision: tiny models of texts and images, with what transformers and peft compute with them.

    make_vision_fixtures.py tests/fixtures/vision [MODEL ...]

With names of models it makes these alone. tests/fixtures/README.md says what the files hold. Needs torch, transformers 5, peft and safetensors; one thread, so
that a second run writes the same bytes.
"""

import json
import os
import pathlib
import shutil
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from transformers import (AutoModelForImageTextToText, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration,
                          Qwen2VLConfig, Qwen2VLForConditionalGeneration)

import omnilmm_models
import resampled_models
from make_fixtures import draw_weights, make_optimizer, write_json

VOCABULARY, IMAGE = 499, 490
STEPS = 10
SPECIAL = {"image_token_id": IMAGE, "video_token_id": 491, "vision_start_token_id": 492, "vision_end_token_id": 493}
TEXT = {"hidden_size": 64, "intermediate_size": 100, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 2, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-6, "max_position_embeddings": 256,
        "use_sliding_window": False, "bos_token_id": 1, "eos_token_id": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}  # fmt: skip
PATCHES = {"patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2, "num_heads": 3, "in_channels": 3}
MODELS = {
    "qwen2_vl": (Qwen2VLForConditionalGeneration, Qwen2VLConfig(
        text_config=TEXT | {"tie_word_embeddings": False}, tie_word_embeddings=False, **SPECIAL,
        vision_config={"depth": 2, "embed_dim": 48, "hidden_size": 64, "mlp_ratio": 3, **PATCHES})),
    "qwen2_5_vl": (Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLConfig(
        text_config=TEXT | {"tie_word_embeddings": True}, tie_word_embeddings=True, **SPECIAL,
        vision_config={"depth": 3, "hidden_size": 48, "out_hidden_size": 64, "intermediate_size": 68,
                       "window_size": 16, "fullatt_block_indexes": [1], **PATCHES})),
}  # fmt: skip
RESTATED = {name: module for module in (resampled_models, omnilmm_models) for name in module.MODELS}
TARGETS = r".*(language_model|llm).*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"


def make_samples(tokens_of=lambda rows, columns: rows * columns // 4, side=None):
    """Samples of a text alone, of one image, and of two; sides of images in patches, or one for all."""
    generator = torch.Generator().manual_seed(11)
    samples = []
    for sides, lengths in [([], [9]), ([(4, 6)], [5, 7]), ([(6, 10), (2, 2)], [0, 3, 6]), ([(10, 2)], [2, 11])]:
        ids, labels, images = [], [], []
        for index, length in enumerate(lengths):
            text = torch.randint(3, IMAGE, (length,), generator=generator).tolist()
            ids += text
            labels += text
            if index < len(sides):
                rows, columns = (side, side) if side else sides[index]
                images.append({"begin": len(ids), "rows": rows, "columns": columns})
                ids += [IMAGE] * tokens_of(rows, columns)
                labels += [-100] * tokens_of(rows, columns)
        samples.append({"input_ids": ids, "labels": labels, "images": images})
    return samples


def make_pixels(samples, frames=PATCHES["temporal_patch_size"]):
    generator = torch.Generator().manual_seed(12)
    numbers = 3 * frames * PATCHES["patch_size"] ** 2
    return [torch.randn(sum(i["rows"] * i["columns"] for i in s["images"]), numbers, generator=generator)
            for s in samples]  # fmt: skip


def logits_of(model, sample, pixels):
    ids = torch.tensor([sample["input_ids"]])
    if hasattr(model, "look"):
        return model(ids[0], sample["images"], pixels)
    images = {}
    if sample["images"]:
        images = {
            "pixel_values": pixels.to(next(model.parameters()).dtype),
            "image_grid_thw": torch.tensor([[1, i["rows"], i["columns"]] for i in sample["images"]]),
            "mm_token_type_ids": (ids == IMAGE).long(),
        }
    return model(input_ids=ids, **images).logits[0]


def loss_sum(model, sample, pixels):
    targets = torch.tensor(sample["labels"][1:])
    logits = logits_of(model, sample, pixels)[:-1]
    return F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum"), int((targets != -100).sum())


def accumulate(model, samples, pixels):
    """Adds the gradient of the mean over all samples' loss tokens; returns that loss."""
    sums = [loss_sum(model, s, p) for s, p in zip(samples, pixels)]
    tokens = sum(count for _, count in sums)
    loss = sum(total for total, _ in sums) / tokens
    loss.backward()
    return loss.item()


def load(folder, dtype):
    if folder.name in RESTATED:
        return RESTATED[folder.name].load(folder, dtype)
    return AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


def gradients(model, samples, pixels):
    loss = accumulate(model, samples, pixels)
    # Parts that nothing asked for have none: torch's rows of a bias of keys, say.
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}, loss


def train(model, samples, pixels, learning_rate):
    """Steps over all samples. A part without images in a step has a gradient of zero, not none."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    parameters = [p for _, p in named]
    optimizer, schedule = make_optimizer(named, learning_rate, 0.0)
    result = {"loss": [], "grad_norm": [], "learning_rate": []}
    for step in range(STEPS):
        for p in parameters:
            p.grad = torch.zeros_like(p)
        result["learning_rate"].append(schedule.get_last_lr()[0])
        chosen = [step % 4, (step + 1) % 4]
        result["loss"].append(accumulate(model, [samples[i] for i in chosen], [pixels[i] for i in chosen]))
        result["grad_norm"].append(torch.nn.utils.clip_grad_norm_(parameters, 1.0).item())
        optimizer.step()
        schedule.step()
    return result


def write_adapter(folder):
    torch.manual_seed(5)
    targets = getattr(RESTATED.get(folder.name), "TARGETS", TARGETS)
    model = get_peft_model(load(folder, torch.float32), LoraConfig(r=4, lora_alpha=8, target_modules=targets))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.1)
    model.peft_config["default"].base_model_name_or_path = folder.name
    model.save_pretrained(folder / "adapter_init")
    (folder / "adapter_init" / "README.md").unlink(missing_ok=True)


def write_model(folder, kind, seed):
    if kind in RESTATED:
        return RESTATED[kind].write(folder, kind, seed, VOCABULARY)
    make, config = MODELS[kind]
    model = make(config)
    draw_weights(model, seed)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


def references(folder, samples, pixels):
    model = load(folder, torch.float32)
    tensors = {f"pixels.{i}": p for i, p in enumerate(pixels) if len(p)}
    with torch.no_grad():
        tensors |= {f"logits.{i}": logits_of(model, s, p).clone()
                    for i, (s, p) in enumerate(zip(samples, pixels))}  # fmt: skip
    found, loss = gradients(model, samples, pixels)
    exact, _ = gradients(load(folder, torch.float64), samples, pixels)
    # A bias of keys moves all scores of a query alike: its gradient is 0 but for rounding, of which AdamW makes steps.
    noise = {name: (g != 0) & (g.abs() < 1e-8) & name.endswith("bias") for name, g in exact.items()}
    kept = {name: g * ~noise[name] for name, g in exact.items()}
    error = max(((found[n] * ~noise[n] - g).norm() / g.norm()).item() for n, g in kept.items() if g.norm() > 0)
    tensors |= {f"grad.{name}": g.masked_fill(noise[name], torch.nan) for name, g in found.items()}
    full = load(folder, torch.float32)
    reference = {"loss": loss, "gradient_error": error, "full": train(full, samples, pixels, 1e-3)}
    tensors |= {f"final.{name}": p.detach().masked_fill(noise[name], torch.nan) if name in noise else p.detach()
                for name, p in full.named_parameters()}  # fmt: skip
    parts = load(folder, torch.float32)
    for name, p in parts.named_parameters():
        p.requires_grad_(p.requires_grad and not name.startswith(TOWERS[folder.name]))
    reference["frozen_tower"] = train(parts, samples, pixels, 1e-3)
    tensors |= {f"frozen_tower.{name}": p.detach().masked_fill(noise[name], torch.nan)
                for name, p in parts.named_parameters() if p.requires_grad}  # fmt: skip
    lora = PeftModel.from_pretrained(load(folder, torch.float32), folder / "adapter_init", is_trainable=True)
    with torch.no_grad():
        tensors["adapted_logits"] = logits_of(lora, samples[2], pixels[2]).clone()
    reference["lora"] = train(lora, samples, pixels, 3e-3)
    tensors |= {f"lora_final.{name}": p for name, p in get_peft_model_state_dict(lora).items()}
    save_file({name: t.float().contiguous() for name, t in tensors.items()}, folder / "reference.safetensors")
    write_json(folder / "reference.json", reference)


# What is frozen of a model whose tower is, its projector not among that.
TOWERS = {"qwen2_vl": ("model.visual.patch_embed.", "model.visual.blocks."), "minicpmv": ("vpm.",),
          "qwen2_5_vl": ("model.visual.patch_embed.", "model.visual.blocks."),
          "omnilmm": ("model.vision_tower.",)}  # fmt: skip


def main():
    out = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    samples = make_samples()
    pixels = make_pixels(samples)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "samples.json", samples)
    for seed, kind in enumerate([*MODELS, *RESTATED]):
        if sys.argv[2:] and kind not in sys.argv[2:]:
            continue
        folder = out / kind
        shutil.rmtree(folder, ignore_errors=True)
        write_model(folder, kind, seed)
        if kind in RESTATED:
            module = RESTATED[kind]
            side = module.SIDE if kind in omnilmm_models.MODELS else None
            samples = make_samples(lambda rows, columns: module.QUERIES, side)
            pixels = make_pixels(samples, 1)
            write_json(folder / "samples.json", samples)
        write_adapter(folder)
        references(folder, samples, pixels)
        print(kind, json.loads((folder / "reference.json").read_text())["loss"])


if __name__ == "__main__":
    main()
