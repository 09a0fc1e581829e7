#!/usr/bin/env python3
"""Trains a Llama shape with random weights on one GPU by what others use: snug's rivals. gpu_train.py runs it.

    gpu_rival.py NAME MODEL_DIR --data blocks.jsonl [--steps 8 --warmup 3 --micro-batch N --checkpointing true|false]

MODEL_DIR holds config.json alone; each line of the data holds `input_ids` of one block, all with loss; a step takes the
whole file. Micro-batch and checkpointing are, unless given, what was found fastest for the rival (for unsloth-nf4,
smallest). LoRA is r16 on all linears.
Prints one JSON object: median tokens per second after the warm-up steps, the card's memory, what ran, the loss of
the last pass.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import time
import types

LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclasses.dataclass
class Rival:
    title: str
    micro_batch: int
    checkpointing: bool = False
    job: str = "--method lora"  # snug's options for the same job


RIVALS = {
    "peft": Rival("transformers + peft", micro_batch=8),
    "nf4": Rival("bitsandbytes nf4 (double quantisation) + peft", micro_batch=8, job="--base-format nf4"),
    "int8": Rival("bitsandbytes LLM.int8 + peft", micro_batch=4, job="--base-format int8"),
    "unsloth": Rival("Unsloth", micro_batch=8),
    "unsloth-nf4": Rival("Unsloth nf4", micro_batch=4, checkpointing=True, job="--base-format nf4"),
    "deepspeed": Rival("DeepSpeed ZeRO-3, offload, bf16", micro_batch=8, checkpointing=True, job="--method full"),
}


def card_bytes():
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines()[0]) << 20


def random_model(folder, device, dtype="bfloat16"):
    """A model of the folder's config on `device`; None leaves its place to the context that it is built in."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(folder)
    default = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with torch.device(device) if device else contextlib.nullcontext():
            model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    finally:
        torch.set_default_dtype(default)
    model.config.use_cache = False
    return model.train()


def quantise(model, form):
    """Puts bitsandbytes' linears in place of those of the blocks, as loading a checkpoint with its options does."""
    import bitsandbytes.nn as bnb
    import torch

    def quantised(linear):
        shape = linear.in_features, linear.out_features
        # Weights are quantised on their way from the host to the card.
        weight = linear.weight.data.cpu()
        if form == "nf4":
            result = bnb.Linear4bit(*shape, bias=False, compute_dtype=torch.bfloat16, device="meta")
            result.weight = bnb.Params4bit(weight, requires_grad=False, quant_type="nf4", compress_statistics=True)
        else:
            result = bnb.Linear8bitLt(*shape, bias=False, has_fp16_weights=False, threshold=6.0, device="meta")
            result.weight = bnb.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
        return result.to(linear.weight.device)

    for block in model.model.layers:
        for parent in (block.self_attn, block.mlp):
            for name, child in parent.named_children():
                if isinstance(child, torch.nn.Linear):
                    setattr(parent, name, quantised(child))
    model.is_loaded_in_4bit, model.is_loaded_in_8bit = form == "nf4", form == "int8"
    torch.cuda.empty_cache()
    return model


def use_liger():
    """Liger's kernels, where they are installed; says whether they are."""
    try:
        from liger_kernel.transformers import apply_liger_kernel_to_llama
    except ImportError:
        return False
    apply_liger_kernel_to_llama(rope=True, swiglu=True, cross_entropy=False, fused_linear_cross_entropy=True)
    return True


def peft_model(options):
    import torch
    from peft import LoraConfig, get_peft_model

    model = random_model(options.model, "cuda")
    if options.rival != "peft":
        model = quantise(model, options.rival)
    if options.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    lora = LoraConfig(r=16, lora_alpha=32, target_modules=LINEARS, task_type="CAUSAL_LM")
    # Adapters in bf16: faster than fp32, with autocast or without.
    model = get_peft_model(model, lora, autocast_adapter_dtype=False)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.bfloat16)
    return model.train()


def unsloth_model(options):
    """Unsloth's own loader and patches, around random weights and a tokenizer that it only looks at."""
    import unsloth.models.llama as llama
    import tokenizers
    import transformers

    nf4 = options.rival == "unsloth-nf4"

    def build(*_, **__):
        model = random_model(options.model, "cuda")
        return quantise(model, "nf4") if nf4 else model

    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    words = tokenizers.models.WordLevel({word: number for number, word in enumerate(special.values())})
    words = tokenizers.Tokenizer(words)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)
    llama.AutoModelForCausalLM = types.SimpleNamespace(from_pretrained=build)
    llama.load_correct_tokenizer = llama.check_tokenizer = lambda **_: tokenizer
    length = len(options.blocks[0])
    model, _ = llama.FastLlamaModel.from_pretrained(str(options.model), max_seq_length=length, load_in_4bit=nf4)
    checkpointing = "unsloth" if options.checkpointing else False
    model = llama.FastLlamaModel.get_peft_model(
        model, r=16, lora_alpha=32, target_modules=LINEARS, use_gradient_checkpointing=checkpointing
    )
    return llama.FastLlamaModel.for_training(model, use_gradient_checkpointing=checkpointing)


def torch_step(model, context):
    """The training step with torch's AdamW; `context` makes what a forward pass runs under."""
    import torch

    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=2e-4, weight_decay=0.0, fused=True)

    def step(parts, total):
        for part in parts:
            with context():
                loss = model(input_ids=part, labels=part).loss
            (loss * (len(part) / total)).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def deepspeed_step(options, states="bf16"):
    """DeepSpeed's step; weights are bf16, master weights, gradients and optimizer states bf16 or fp32, all of them on
    the host between uses. `options.blocks` are those of this rank."""
    import deepspeed
    import transformers.models.auto.modeling_auto  # noqa: F401, as it cannot be under zero.Init, which patches torch

    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555"}
    for name, value in alone.items():
        os.environ.setdefault(name, value)
    on_host = {"device": "cpu", "pin_memory": True}
    half = states == "bf16"
    config = {
        "train_micro_batch_size_per_gpu": options.micro_batch,
        "gradient_accumulation_steps": len(options.blocks) // options.micro_batch,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True, "bf16_master_weights_and_grads": half, "bf16_optimizer_states": half},
        "zero_optimization": {"stage": 3, "offload_optimizer": on_host, "offload_param": on_host},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "weight_decay": 0.0}},
    }
    deepspeed.init_distributed(auto_mpi_discovery=False)
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = random_model(options.model, None)
    if options.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]

    def step(parts, _):
        for part in parts:
            loss = engine(input_ids=part, labels=part).loss
            engine.backward(loss)
            engine.step()
        return loss

    return step


def make_step(options):
    """The rival's step, and whether Liger's kernels are in it."""
    if options.rival == "deepspeed":
        return deepspeed_step(options), False
    if options.rival.startswith("unsloth"):
        model = unsloth_model(options)
        import torch

        # Its adapters are fp32 and run under autocast, as its trainer has them.
        return torch_step(model, lambda: torch.autocast("cuda", torch.bfloat16)), False
    liger = use_liger()
    return torch_step(peft_model(options), contextlib.nullcontext), liger


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rival", metavar="NAME", choices=RIVALS, help=", ".join(RIVALS))
    parser.add_argument("model", metavar="MODEL_DIR", type=pathlib.Path)
    parser.add_argument("--data", metavar="FILE", required=True, type=argparse.FileType(), help="blocks of token ids")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=3, help="first steps that do not count")
    parser.add_argument("--micro-batch", type=int)
    parser.add_argument("--checkpointing", type=lambda text: text == "true", metavar="true|false")
    options = parser.parse_args()
    rival = RIVALS[options.rival]
    if options.micro_batch is None:
        options.micro_batch = rival.micro_batch
    if options.checkpointing is None:
        options.checkpointing = rival.checkpointing
    options.blocks = [json.loads(line)["input_ids"] for line in options.data]
    options.micro_batch = min(options.micro_batch, len(options.blocks))
    if len(options.blocks) % options.micro_batch:
        parser.error(f"--micro-batch {options.micro_batch} does not divide the {len(options.blocks)} blocks of a step")
    return options


def main():
    options = parse_options()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    step, liger = make_step(options)
    import torch

    ids = torch.tensor(options.blocks, device="cuda")
    rates = []
    for _ in range(options.warmup + options.steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        loss = step(ids.split(options.micro_batch), len(ids))
        torch.cuda.synchronize()
        rates.append(ids.numel() / (time.perf_counter() - start))
    title = RIVALS[options.rival].title + (" + Liger" if liger else "")
    title += f", {options.micro_batch} x {len(ids) // options.micro_batch}"
    title += ", checkpointed" if options.checkpointing else ""
    rate = statistics.median(rates[options.warmup :])
    print(json.dumps({"title": title, "rate": rate, "bytes": card_bytes(), "loss": loss.item()}))


if __name__ == "__main__":
    main()
