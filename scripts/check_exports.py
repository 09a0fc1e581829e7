#!/usr/bin/env python3
"""Mean loss of a model that snug wrote, by transformers and peft in fp32, to compare with `snug eval --json`.

    check_exports.py MODEL_DIR [--adapter DIR] --data tokens.jsonl

Data lines hold `input_ids` and `labels` (unshifted, -100 where there is no loss), as `data_format: tokens` has them.
Prints {"loss", "perplexity", "tokens", "loss_tokens"}. Fails if a tensor is missing, unexpected or of another shape.
"""

import argparse
import json
import math
import os
import sys
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import torch.nn.functional as F
import transformers
from peft import PeftModel, get_peft_model_state_dict
from safetensors import safe_open
from transformers import AutoModelForCausalLM


def load(model_folder, adapter_folder):
    model, report = AutoModelForCausalLM.from_pretrained(
        model_folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    faults = {name: sorted(map(str, found)) for name, found in report.items() if found}
    if faults:
        sys.exit(f"{model_folder}: does not fit its config.json: {faults}")
    if adapter_folder:
        model = PeftModel.from_pretrained(model, adapter_folder)
        check_adapter_names(model, adapter_folder)
    return model.eval()


def check_adapter_names(model, folder):
    """peft passes over a misspelt tensor and keeps its own initial value."""
    with safe_open(os.path.join(folder, "adapter_model.safetensors"), "pt") as file:
        stored, expected = set(file.keys()), set(get_peft_model_state_dict(model, save_embedding_layers=False))
    if stored != expected:
        sys.exit(f"{folder}: missing {sorted(expected - stored)}, unexpected {sorted(stored - expected)}")


def evaluate(model, data):
    total, tokens, loss_tokens = 0.0, 0, 0
    for line in data:
        sample = json.loads(line)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([sample["input_ids"]])).logits[0, :-1]
        targets = torch.tensor(sample["labels"][1:], dtype=torch.long)
        total += F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum").item()
        tokens += len(sample["input_ids"])
        loss_tokens += int((targets != -100).sum())
    loss = total / loss_tokens
    return {"loss": loss, "perplexity": math.exp(loss), "tokens": tokens, "loss_tokens": loss_tokens}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL_DIR", help="Hugging Face model directory")
    parser.add_argument("--adapter", metavar="DIR", help="PEFT adapter directory")
    parser.add_argument("--data", metavar="FILE", required=True, type=argparse.FileType(), help="samples as token ids")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", "Could not find a config file")  # the base of an adapter may be anywhere
    print(json.dumps(evaluate(load(options.model, options.adapter), options.data)))


if __name__ == "__main__":
    main()
