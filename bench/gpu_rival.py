#!/usr/bin/env python3
"""Trains a decoder with random weights on one GPU by what others use: snug's rivals. gpu_train.py runs it.

    gpu_rival.py NAME MODEL_DIR --data blocks.jsonl [--steps 8 --warmup 3 --micro-batch N --checkpointing true|false]

MODEL_DIR holds config.json alone; each line of the data holds `input_ids` of one block, all with loss; a step takes the
whole file. For trl-dpo and unsloth-dpo a line holds `prompt_ids`, `chosen_ids` and `rejected_ids`, a micro-batch is one
of pairs, and --references says whether each step computes the reference's log-probabilities, with the adapters off, or
finds them in the data, as TRL's precompute_ref_log_probs has it. Micro-batch and checkpointing are, unless given, what
was found fastest for the rival (for unsloth-nf4, smallest). LoRA is r16 on all linears.
Prints one JSON object: median tokens per second after the warm-up steps, the card's memory, what ran, the loss of
the last pass (of pairs: the mean of the steps').
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time
import types

# Of all families here; a model has some of them.
LINEARS = ["q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "gate_proj", "up_proj", "gate_up_proj", "down_proj"]


@dataclasses.dataclass
class Rival:
    title: str
    micro_batch: int
    checkpointing: bool = False
    job: str = "--method lora"  # snug's options for the same job

    @property
    def pairs(self):
        return "dpo" in self.job


RIVALS = {
    "peft": Rival("transformers + peft", micro_batch=8),
    "nf4": Rival("bitsandbytes nf4 (double quantisation) + peft", micro_batch=8, job="--base-format nf4"),
    "int8": Rival("bitsandbytes LLM.int8 + peft", micro_batch=4, job="--base-format int8"),
    "unsloth": Rival("Unsloth", micro_batch=8),
    "unsloth-nf4": Rival("Unsloth nf4", micro_batch=4, checkpointing=True, job="--base-format nf4"),
    "trl-dpo": Rival("transformers + peft + TRL", micro_batch=4, job="--method lora --objective dpo"),
    "unsloth-dpo": Rival("Unsloth + TRL", micro_batch=8, job="--method lora --objective dpo"),
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


def use_liger(model_type="llama"):
    """Liger's kernels, where they are installed; says whether they are."""
    try:
        from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN
    except ImportError:
        return False
    MODEL_TYPE_TO_APPLY_LIGER_FN[model_type](cross_entropy=False, fused_linear_cross_entropy=True)
    return True


def lora_config():
    from peft import LoraConfig

    return LoraConfig(r=16, lora_alpha=32, target_modules=LINEARS, task_type="CAUSAL_LM")


def in_bf16(model):
    """The model with its adapters in bf16: faster than fp32, with autocast or without."""
    import torch

    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.bfloat16)
    return model


def peft_model(options):
    from peft import get_peft_model

    model = random_model(options.model, "cuda")
    if options.rival != "peft":
        model = quantise(model, options.rival)
    if options.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    return in_bf16(get_peft_model(model, lora_config(), autocast_adapter_dtype=False)).train()


def small_tokenizer():
    """A tokenizer that trainers ask for and only look at."""
    import tokenizers
    import transformers

    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    words = tokenizers.models.WordLevel({word: number for number, word in enumerate(special.values())})
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(words), **special)


def longest(options):
    """Tokens of the longest sequence of a forward pass, which Unsloth asks for."""

    def tokens(sample):
        if "input_ids" in sample:
            return len(sample["input_ids"])
        return len(sample["prompt_ids"]) + max(len(sample["chosen_ids"]), len(sample["rejected_ids"]))

    return max(map(tokens, options.samples))


def unsloth_general_model(options):
    """Unsloth's loader for families that it has no module of: it reads a checkpoint, and compiles transformers' model."""
    import unsloth

    with tempfile.TemporaryDirectory() as folder:
        random_model(options.model, "cuda").save_pretrained(folder)
        small_tokenizer().save_pretrained(folder)
        length = longest(options)
        model, _ = unsloth.FastModel.from_pretrained(folder, max_seq_length=length, dtype=None, load_in_4bit=False)
    checkpointing = "unsloth" if options.checkpointing else False
    model = unsloth.FastModel.get_peft_model(
        model, r=16, lora_alpha=32, target_modules=LINEARS, use_gradient_checkpointing=checkpointing
    )
    return unsloth.FastModel.for_training(model, use_gradient_checkpointing=bool(checkpointing))


def unsloth_model(options):
    """Unsloth's own loader and patches of a family, around random weights."""
    import importlib.util

    import unsloth.models.llama as llama

    nf4 = options.rival == "unsloth-nf4"
    family = json.loads((options.model / "config.json").read_text())["model_type"]
    if not importlib.util.find_spec(f"unsloth.models.{family}"):
        return unsloth_general_model(options)

    def build(*_, **__):
        model = random_model(options.model, "cuda")
        return quantise(model, "nf4") if nf4 else model

    tokenizer = small_tokenizer()
    llama.AutoModelForCausalLM = types.SimpleNamespace(from_pretrained=build)
    llama.load_correct_tokenizer = llama.check_tokenizer = lambda **_: tokenizer
    loader = getattr(importlib.import_module(f"unsloth.models.{family}"), f"Fast{family.capitalize()}Model")
    model, _ = loader.from_pretrained(str(options.model), max_seq_length=longest(options), load_in_4bit=nf4)
    checkpointing = "unsloth" if options.checkpointing else False
    linears = [name for name in LINEARS if name not in ("qkv_proj", "gate_up_proj")]
    model = llama.FastLlamaModel.get_peft_model(
        model, r=16, lora_alpha=32, target_modules=linears, use_gradient_checkpointing=checkpointing
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


def deepspeed_step(options, blocks, states="bf16", build=random_model):
    """DeepSpeed's step; weights are bf16, master weights, gradients and optimizer states bf16 or fp32, all of them on
    the host between uses. `blocks` are this rank's of a step; `build` makes the model."""
    import deepspeed
    import transformers.models.auto.modeling_auto  # noqa: F401, as it cannot be under zero.Init, which patches torch

    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555"}
    for name, value in alone.items():
        os.environ.setdefault(name, value)
    on_host = {"device": "cpu", "pin_memory": True}
    half = states == "bf16"
    config = {
        "train_micro_batch_size_per_gpu": options.micro_batch,
        "gradient_accumulation_steps": blocks // options.micro_batch,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True, "bf16_master_weights_and_grads": half, "bf16_optimizer_states": half},
        "zero_optimization": {"stage": 3, "offload_optimizer": on_host, "offload_param": on_host},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "weight_decay": 0.0}},
    }
    deepspeed.init_distributed(auto_mpi_discovery=False)
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = build(options.model, None)
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


def dpo_model(options):
    """The model, and the adapters that TRL is to give it: none to Unsloth's, which has its own."""
    if options.rival == "unsloth-dpo":
        return unsloth_model(options), None
    return random_model(options.model, options.device), lora_config()


def dpo_trainer(options, model, adapters, clock, liger):
    """TRL's trainer on pairs of token ids; `clock` is a callback."""
    import datasets
    import trl

    class Trainer(trl.DPOTrainer):
        def _prepare_dataset(self, dataset, *_):
            return dataset

    found = options.references == "found"
    pairs = [pair | ({"ref_chosen_logps": 0.0, "ref_rejected_logps": 0.0} if found else {}) for pair in options.samples]
    config = trl.DPOConfig(
        output_dir="trl",
        per_device_train_batch_size=options.micro_batch,
        gradient_accumulation_steps=len(pairs) // options.micro_batch,
        max_steps=options.warmup + options.steps,
        learning_rate=2e-4,
        warmup_steps=0,
        weight_decay=0.0,
        optim="adamw_torch_fused",
        bf16=adapters is None,  # Unsloth's adapters are fp32 and run under autocast
        gradient_checkpointing=options.checkpointing,
        use_liger_kernel=liger,
        max_length=None,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    data = datasets.Dataset.from_list(pairs)
    trainer = Trainer(
        model, args=config, train_dataset=data, processing_class=small_tokenizer(), peft_config=adapters, callbacks=[clock]
    )
    if adapters:
        in_bf16(trainer.model)
    else:
        # TRL copies adapters that it did not make; without the copy the reference has them off.
        trainer.model.delete_adapter("ref")
    trainer.precompute_ref_logps = found
    return trainer


def dpo_steps(options):
    """Seconds of each step, the mean loss, and whether Liger's kernels were there."""
    import importlib.util

    model, adapters = dpo_model(options)  # first, as Unsloth patches what is imported after it
    import transformers

    class Clock(transformers.TrainerCallback):
        seconds, loss = [], None

        def on_step_begin(self, *_, **__):
            self.start = now(options.device)

        def on_step_end(self, *_, **__):
            self.seconds.append(now(options.device) - self.start)

        def on_log(self, *_, logs, **__):
            self.loss = logs.get("train_loss", self.loss)

    clock, liger = Clock(), adapters is not None and importlib.util.find_spec("liger_kernel") is not None
    dpo_trainer(options, model, adapters, clock, liger).train()
    return clock.seconds, clock.loss, liger


def make_step(options):
    """The rival's step, and whether Liger's kernels are in it."""
    if options.rival == "deepspeed":
        return deepspeed_step(options, len(options.samples)), False
    if options.rival.startswith("unsloth"):
        model = unsloth_model(options)
        import torch

        # Its adapters are fp32 and run under autocast, as its trainer has them.
        return torch_step(model, lambda: torch.autocast("cuda", torch.bfloat16)), False
    liger = use_liger(json.loads((options.model / "config.json").read_text())["model_type"])
    return torch_step(peft_model(options), contextlib.nullcontext), liger


def now(device):
    """The time when the device has done what it was given."""
    import torch

    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def block_steps(options):
    """Seconds of each step on blocks, the loss of the last pass, and whether Liger's kernels were there."""
    step, liger = make_step(options)
    import torch

    ids, seconds = torch.tensor([sample["input_ids"] for sample in options.samples], device="cuda"), []
    for _ in range(options.warmup + options.steps):
        start = now("cuda")
        loss = step(ids.split(options.micro_batch), len(ids))
        seconds.append(now("cuda") - start)
    return seconds, loss.item(), liger


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rival", metavar="NAME", choices=RIVALS, help=", ".join(RIVALS))
    parser.add_argument("model", metavar="MODEL_DIR", type=pathlib.Path)
    parser.add_argument("--data", metavar="FILE", required=True, type=argparse.FileType(), help="samples of token ids")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=3, help="first steps that do not count")
    parser.add_argument("--micro-batch", type=int)
    parser.add_argument("--checkpointing", type=lambda text: text == "true", metavar="true|false")
    parser.add_argument("--references", choices=["computed", "found"], default="computed", help="of pairs")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: to try trl-dpo without a GPU")
    options = parser.parse_args()
    rival = RIVALS[options.rival]
    if options.micro_batch is None:
        options.micro_batch = rival.micro_batch
    if options.checkpointing is None:
        options.checkpointing = rival.checkpointing
    options.samples = [json.loads(line) for line in options.data]
    options.micro_batch = min(options.micro_batch, len(options.samples))
    if len(options.samples) % options.micro_batch:
        parser.error(f"--micro-batch {options.micro_batch} does not divide the {len(options.samples)} samples of a step")
    return options


def tokens_of(sample):
    """Tokens that a step computes of a block, or of both replies of a pair behind their prompt."""
    if "input_ids" in sample:
        return len(sample["input_ids"])
    return 2 * len(sample["prompt_ids"]) + len(sample["chosen_ids"]) + len(sample["rejected_ids"])


def main():
    options = parse_options()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    rival = RIVALS[options.rival]
    seconds, loss, liger = (dpo_steps if rival.pairs else block_steps)(options)
    title = rival.title + (" + Liger" if liger else "")
    title += f", {options.micro_batch} x {len(options.samples) // options.micro_batch}"
    title += ", checkpointed" if options.checkpointing else ""
    title += f", references {options.references}" if rival.pairs else ""
    rate = sum(map(tokens_of, options.samples)) / statistics.median(seconds[options.warmup :])
    used = card_bytes() if options.device == "cuda" else 0
    print(json.dumps({"title": title, "rate": rate, "bytes": used, "loss": loss}))


if __name__ == "__main__":
    main()
