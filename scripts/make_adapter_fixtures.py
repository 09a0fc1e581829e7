#!/usr/bin/env python3
"""Makes adapters of all kinds that PEFT saves, on two tiny models, with the losses that PEFT gets when it loads them.

    make_adapter_fixtures.py tests/fixtures/adapters

tests/fixtures/README.md says what the files hold. Needs torch, transformers 5, peft and safetensors; one thread, so
that a second run writes the same bytes.
"""

import json
import os
import pathlib
import re
import shutil
import sys
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")

import torch
import torch.nn.functional as F
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from peft.optimizers import create_loraplus_optimizer
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

transformers.logging.set_verbosity_error()
VOCABULARY = 61
COMMON = {"vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
          "num_attention_heads": 3, "num_key_value_heads": 1, "max_position_embeddings": 64, "initializer_range": 0.3,
          "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
MODELS = {
    "own_head": LlamaConfig(tie_word_embeddings=False, **COMMON),
    "tied": Qwen2Config(tie_word_embeddings=True, use_sliding_window=False, **COMMON),
}
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
UNEVEN = {
    "rank_pattern": {"model.layers.0.self_attn.q_proj": 2, "k_proj": 5, r"layers\.1\.mlp\.up_proj": 1},
    "alpha_pattern": {r"layers\.[0-9]+\.self_attn\.(q|v)_proj": 3, "gate_proj": 11},
}

# By adapter: its base, what get_peft_model() is told, and how many tokens the base is resized to.
ADAPTERS = {
    "plain": ("own_head", {}, None),
    "expression": ("own_head", {"target_modules": r".*layers\.1\.(?:self_attn\.(q|v)|mlp\.up)_proj$"}, None),
    "exclude": ("own_head", {"exclude_modules": ["layers.0.mlp.up_proj", "k_proj"]}, None),
    "layers": ("own_head", {"layers_to_transform": [1], "layers_pattern": "layers"}, None),
    "uneven": ("own_head", UNEVEN, None),
    "uneven_rslora": ("tied", UNEVEN | {"use_rslora": True, "target_modules": ["q_proj", "v_proj", "up_proj"]}, None),
    "saved": ("own_head", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens", "norm"]}, None),
    "saved_linear": ("own_head", {"modules_to_save": ["down_proj"]}, None),
    "grown": ("own_head", {"target_modules": ["v_proj"]}, 67),
    "shrunk": ("tied", {"target_modules": ["v_proj"]}, 59),
    "tokens": ("own_head", {"target_modules": ["v_proj"], "trainable_token_indices": [7, 60, 3, 8]}, None),
    "tied_tokens": ("tied", {"target_modules": ["v_proj"], "trainable_token_indices": [0, 1, 40]}, None),
    "tied_head_tokens": ("tied", {"target_modules": ["v_proj"], "trainable_token_indices": {"lm_head": [5, 4]}}, None),
    "tied_saved_embedding": ("tied", {"target_modules": ["v_proj"], "modules_to_save": ["embed_tokens"]}, None),
    "tied_saved_head": ("tied", {"target_modules": ["v_proj"], "modules_to_save": ["lm_head"]}, None),
    "tied_together": ("tied", {"target_modules": ["v_proj"], "modules_to_save": ["embed_tokens"],
                               "ensure_weight_tying": True}, None),
    "biases": ("tied", {"target_modules": ["q_proj", "o_proj"], "bias": "all"}, None),
    "rank_12": ("own_head", {"r": 12, "lora_alpha": 12}, None),
    "rank_20": ("tied", {"r": 20, "lora_alpha": 20}, None),
    "ranks": ("own_head", {"r": 8, "rank_pattern": {"q_proj": 12, "k_proj": 4, "up_proj": 20}}, None),
    "dora": ("own_head", {"use_dora": True}, None),
    "dora_uneven": ("tied", UNEVEN | {"use_dora": True, "use_rslora": True,
                                      "target_modules": ["q_proj", "v_proj", "up_proj", "down_proj"]}, None),
    # Saved without the halves that are taken off the base.
    "pissa": ("own_head", {"init_lora_weights": "pissa"}, None),
    "olora": ("tied", UNEVEN | {"init_lora_weights": "olora", "use_rslora": True, "ensure_weight_tying": True,
                                "modules_to_save": ["embed_tokens"]}, None),
}  # fmt: skip

# Adapters that begin with parts of the base, by the base and what init_lora_weights is.
BEGUN = {
    "pissa": ("own_head", {"init_lora_weights": "pissa"}),
    "olora": ("tied", {"init_lora_weights": "olora"}),
    "pissa_uneven": ("own_head", UNEVEN | {"init_lora_weights": "pissa", "use_rslora": True}),
}

# By run: what is trained and from where, as an adapter's name or as parts of a base whose names hold one of some texts,
# and how much faster LoRA+ trains halves B.
RUNS = {
    **{name: (name, None, 1) for name in ("plain", "layers", "uneven", "uneven_rslora", "saved", "saved_linear",
                                          "tied_saved_embedding", "tied_saved_head", "tied_together", "rank_12",
                                          "rank_20", "ranks", "dora", "dora_uneven")},
    "plain_plus": ("plain", None, 16),
    "uneven_plus": ("uneven", None, 4),
    "dora_plus": ("dora", None, 16),
    "full_last": ("own_head", ["layers.1.", "model.norm", "lm_head"], 1),
    "full_embedding": ("own_head", ["embed_tokens"], 1),
    "full_tied_embedding": ("tied", ["embed_tokens"], 1),
    "full_head": ("own_head", ["lm_head"], 1),
    "full_norm": ("tied", ["model.norm"], 1),
    "full_some": ("tied", ["k_proj", "layers.0.mlp.gate_proj"], 1),
}  # fmt: skip
STEPS, RATE, DECAY = 10, 1e-3, 0.1

# The same adapter under the names that trainers and wrappers leave in its file.
RENAMED = {
    "named": lambda name: name.replace(".lora_A.", ".lora_A.default.").replace(".lora_B.", ".lora_B.default."),
    "wrapped": lambda name: "module._orig_mod." + re.sub(r"(layers\.\d)", r"\1._checkpoint_wrapped_module", name),
    "bare": lambda name: name.removeprefix("base_model.model."),
}


def fresh(path):
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def make_samples():
    generator = torch.Generator().manual_seed(3)
    samples = [torch.randint(3, 59, (length,), generator=generator).tolist() for length in (17, 5, 30, 11)]
    samples[0][4:7] = [8, 7, 3]  # tokens whose rows some adapters replace
    return samples


@torch.no_grad()
def loss(model, samples):
    total, count = 0.0, 0
    for ids in samples:
        logits = model.float().eval()(input_ids=torch.tensor([ids])).logits[0, :-1].double()
        total += F.cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum").item()
        count += len(ids) - 1
    return total / count


def base_of(path, rows):
    torch.manual_seed(11)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    if rows:
        model.resize_token_embeddings(rows, mean_resizing=False)
    return model


def make_adapter(root, name, samples):
    base, options, rows = ADAPTERS[name]
    config = LoraConfig(**{"task_type": "CAUSAL_LM", "r": 3, "lora_alpha": 6, "target_modules": ALL} | options)
    model = get_peft_model(base_of(root / base, rows), config)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    where = fresh(root / name)
    model.save_pretrained(where)
    (where / "README.md").unlink(missing_ok=True)
    value = loss(PeftModel.from_pretrained(base_of(root / base, rows), where), samples)
    path = where / "adapter_config.json"
    saved = json.loads(path.read_text()) | {"base_model_name_or_path": base}
    for key in ("target_modules", "modules_to_save", "exclude_modules"):
        if isinstance(saved.get(key), list):
            saved[key].sort()
    path.write_text(json.dumps(saved, indent=2) + "\n")
    return value


def train(root, run, samples):
    """STEPS steps of AdamW over all samples, with weight decay on matrices; the losses and gradient norms."""
    where, parts, ratio = RUNS.get(run, (None, None, 1))
    if run in BEGUN:
        base, options = BEGUN[run]
        torch.manual_seed(1)
        lora = {"task_type": "CAUSAL_LM", "r": 3, "lora_alpha": 6, "target_modules": ALL} | options
        model = get_peft_model(base_of(root / base, None), LoraConfig(**lora))
    elif parts is None:
        model = PeftModel.from_pretrained(base_of(root / ADAPTERS[where][0], None), root / where, is_trainable=True)
    else:
        model = base_of(root / where, None)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(any(part in name for part in parts))
    model.eval()
    groups = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            faster = "lora_B" in name or "lora_magnitude_vector" in name
            groups.setdefault((ratio if faster else 1, DECAY if parameter.dim() > 1 else 0), []).append(parameter)
    optimizer = torch.optim.AdamW([{"params": parameters, "lr": RATE * factor, "weight_decay": decay}
                                   for (factor, decay), parameters in groups.items()])  # fmt: skip
    if ratio > 1:  # peft's own choice of what has another rate
        theirs = create_loraplus_optimizer(model, torch.optim.AdamW, lr=RATE, loraplus_lr_ratio=ratio)
        faster = {id(p) for group in theirs.param_groups if group["lr"] > RATE for p in group["params"]}
        assert faster == {id(p) for (factor, _), group in groups.items() if factor > 1 for p in group}
    result = {"loss": [], "grad_norm": []}
    tokens = sum(len(ids) - 1 for ids in samples)
    for _ in range(STEPS):
        total = 0.0
        for ids in samples:
            logits = model(input_ids=torch.tensor([ids])).logits[0, :-1]
            value = F.cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum") / tokens
            value.backward()
            total += value.item()
        parameters = [p for group in groups.values() for p in group]
        result["loss"].append(total)
        result["grad_norm"].append(torch.nn.utils.clip_grad_norm_(parameters, 1.0).item())
        optimizer.step()
        optimizer.zero_grad()
    return result


def differentiate(root, name, samples):
    """Logits of the first sample, and the gradient of the mean loss over all of them by every trained parameter."""
    model = PeftModel.from_pretrained(base_of(root / ADAPTERS[name][0], None), root / name, is_trainable=True).eval()
    tokens = sum(len(ids) - 1 for ids in samples)
    result = {}
    for i, ids in enumerate(samples):
        logits = model(input_ids=torch.tensor([ids])).logits[0]
        if i == 0:
            result["logits"] = logits.detach().clone()
        (F.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="sum") / tokens).backward()
    for parameter, value in model.named_parameters():
        if value.requires_grad:
            result["grad." + parameter.replace(".default", "").replace("vector.weight", "vector")] = value.grad
    return result


def main():
    root = fresh(pathlib.Path(sys.argv[1]))
    samples = make_samples()
    (root / "samples.json").write_text(json.dumps(samples) + "\n")
    for name, config in MODELS.items():
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        model.save_pretrained(root / name)
        (root / name / "generation_config.json").unlink(missing_ok=True)
    expected = {name: {"base": ADAPTERS[name][0], "loss": make_adapter(root, name, samples)} for name in ADAPTERS}
    for name, rename in RENAMED.items():
        shutil.copytree(root / "plain", root / name)
        path = root / name / "adapter_model.safetensors"
        tensors = load_file(path)
        save_file({rename(key): value for key, value in tensors.items()}, path, metadata={"format": "pt"})
        expected[name] = expected["plain"]
    for name in ("dora", "dora_uneven"):
        save_file(differentiate(root, name, samples), root / f"{name}_reference.safetensors", metadata={"format": "pt"})
    (root / "trained.json").write_text(json.dumps({run: train(root, run, samples) for run in RUNS | BEGUN}, indent=2) + "\n")
    (root / "expected.json").write_text(json.dumps(expected, indent=2) + "\n")


if __name__ == "__main__":
    main()
