#!/usr/bin/env python3
"""Trains LoRA r16 on all linears with transformers + peft on the CPU and prints tokens per second: snug's rival.

    peft_train.py MODEL_DIR --data tokens.jsonl [--steps 8 --warmup 2 --threads 2 --checkpointing false]

Every line of the data holds `input_ids` and `labels` of one block; a step trains on one block, from the start again
when the file ends. Weights are bf16. The defaults are the fastest that was found for it on two cores with AMX: bf16
adapters, `sdpa` attention, no checkpointing, a fused optimizer, logits for loss tokens only, and an allocator that
keeps what was freed.
Prints one JSON object: median and all step times after the warm-up steps, losses, peak memory.
"""

import argparse
import ctypes
import json
import os
import resource
import statistics
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import torch.nn.functional as F
import transformers
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def keep_freed_memory():
    """Stops glibc from giving big blocks back and faulting them in again: 5 to 10 % of a step."""
    trim_threshold, mmap_max = -1, -4  # M_TRIM_THRESHOLD, M_MMAP_MAX of malloc.h
    libc = ctypes.CDLL(None)
    libc.mallopt(mmap_max, 0)
    libc.mallopt(trim_threshold, 2**31 - 1)


def load(options):
    model = AutoModelForCausalLM.from_pretrained(
        options.model, dtype=torch.bfloat16, attn_implementation=options.attention
    )
    model.config.use_cache = False
    if options.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    lora = LoraConfig(r=16, lora_alpha=32, target_modules=LINEARS, task_type="CAUSAL_LM")
    return get_peft_model(model, lora, autocast_adapter_dtype=options.adapter == "fp32").train()


def block_loss(model, block):
    """Mean cross-entropy of one block; the head sees only positions whose next token counts."""
    targets = torch.tensor(block["labels"][1:])
    rows = torch.nonzero(targets != -100).squeeze(1)
    logits = model(input_ids=torch.tensor([block["input_ids"]]), logits_to_keep=rows).logits[0]
    return F.cross_entropy(logits.float(), targets[rows])


def train(model, blocks, steps):
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=2e-4, weight_decay=0.0, fused=True)
    seconds, losses = [], []
    for step in range(steps):
        start = time.perf_counter()
        loss = block_loss(model, blocks[step % len(blocks)])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    return seconds, losses


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL_DIR", help="Hugging Face model directory")
    parser.add_argument("--data", metavar="FILE", required=True, type=argparse.FileType(), help="blocks of token ids")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=2, help="first steps that do not count")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--checkpointing", type=lambda text: text == "true", default=False, metavar="true|false")
    parser.add_argument("--adapter", choices=["bf16", "fp32"], default="bf16", help="dtype of the adapter's weights")
    parser.add_argument("--attention", choices=["sdpa", "eager"], default="sdpa")
    return parser.parse_args()


def main():
    options = parse_options()
    keep_freed_memory()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    blocks = [json.loads(line) for line in options.data]
    seconds, losses = train(load(options), blocks, options.steps)
    rates = [len(blocks[step % len(blocks)]["input_ids"]) / taken for step, taken in enumerate(seconds)]
    result = {
        "tokens_per_second": statistics.median(rates[options.warmup :]),
        "seconds": seconds,
        "loss": losses,
        "threads": options.threads,
        "checkpointing": options.checkpointing,
        "adapter": options.adapter,
        "attention": options.attention,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
