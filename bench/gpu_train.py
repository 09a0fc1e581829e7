#!/usr/bin/env python3
"""snug beside transformers + peft (with Liger's kernels where they are installed) on one GPU: LoRA r16 on all linears of
a Llama-3-8B shape with random weights, blocks of random tokens that all carry loss, in turn.

    gpu_train.py --snug build/cuda-release/snug [--layers 32] [--sequence 2048] [--batch 16] [--rounds 1] [--only snug]

Prints tokens per second and the card's memory of both, and the ratio. What follows `--` goes to snug.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
WARMUP = 3


def write_inputs(options, folder):
    (folder / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": options.layers}))
    draw = random.Random(1)
    blocks = [[draw.randrange(CONFIG["vocab_size"]) for _ in range(options.sequence)] for _ in range(options.batch)]
    (folder / "blocks.jsonl").write_text("".join(json.dumps({"input_ids": b, "labels": b}) + "\n" for b in blocks))


def card_bytes():
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines()[0]) << 20


def run_snug(options, folder):
    """Median tokens per second after the first steps; the card's memory while it runs."""
    arguments = f"--init random --device cuda --data-format tokens --sequence-length {options.sequence}"
    arguments += f" --batch-size {options.batch} --packing false --shuffle false --max-steps {options.steps + WARMUP}"
    command = [options.snug, "train", "--model", folder, "--data", folder / "blocks.jsonl", "--out", folder / "run"]
    command += ["--overwrite", *arguments.split(), "--save-every", "0", *options.more]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    used = 0
    while process.poll() is None:
        used = max(used, card_bytes())
        time.sleep(0.5)
    errors = process.stderr.read()
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{errors}")
    if options.verbose:
        print(errors)
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(line["tokens_per_second"] for line in lines[WARMUP:]), used


def peft_step(options, folder):
    """The rival, in a process of its own: prints one JSON object."""
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model

    liger = False
    try:
        from liger_kernel.transformers import apply_liger_kernel_to_llama

        apply_liger_kernel_to_llama(rope=True, swiglu=True, cross_entropy=False, fused_linear_cross_entropy=True)
        liger = True
    except ImportError:
        pass
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(folder)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    model.config.use_cache = False
    if options.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    lora = LoraConfig(r=16, lora_alpha=32, target_modules=LINEARS, task_type="CAUSAL_LM")
    model = get_peft_model(model, lora, autocast_adapter_dtype=False).train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=2e-4, weight_decay=0.0, fused=True)
    blocks = [json.loads(line)["input_ids"] for line in (folder / "blocks.jsonl").open()]
    ids = torch.tensor(blocks, device="cuda")
    rates = []
    for _ in range(options.steps + WARMUP):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for begin in range(0, options.batch, options.peft_micro):
            part = ids[begin : begin + options.peft_micro]
            loss = model(input_ids=part, labels=part).loss
            (loss * (len(part) / options.batch)).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        rates.append(ids.numel() / (time.perf_counter() - start))
    print(json.dumps({"rate": statistics.median(rates[WARMUP:]), "bytes": card_bytes(), "liger": liger}))


def run_peft(options, folder):
    command = [sys.executable, __file__, "--peft-in", folder, *sys.argv[1:]]
    output = subprocess.run(command, capture_output=True, text=True)
    if output.returncode != 0:
        sys.exit(output.stderr[-2000:])
    return json.loads(output.stdout.splitlines()[-1])


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snug", required=True)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", choices=["snug", "peft"])
    parser.add_argument("--checkpointing", action="store_true", help="of peft")
    parser.add_argument("--peft-micro", type=int, default=8)
    parser.add_argument("--peft-in", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--verbose", action="store_true", help="what snug says")
    own, more = sys.argv[1:], []
    if "--" in own:
        own, more = own[: own.index("--")], own[own.index("--") + 1 :]
    options = parser.parse_args(own)
    options.more = more
    return options


def main():
    options = parse_options()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if options.peft_in:
        return peft_step(options, options.peft_in)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_inputs(options, folder)
        ours, theirs = [], []
        for number in range(1, options.rounds + 1):
            text = []
            if options.only != "peft":
                rate, used = run_snug(options, folder)
                ours.append(rate)
                text.append(f"snug {rate:.0f} tokens/s, {used / 2**30:.2f} GiB")
            if options.only != "snug":
                peft = run_peft(options, folder)
                theirs.append(peft["rate"])
                rival = "transformers + peft" + (" + liger" if peft["liger"] else "")
                text.append(f"{rival} {peft['rate']:.0f} tokens/s, {peft['bytes'] / 2**30:.2f} GiB")
            print(f"round {number}: {'; '.join(text)}", flush=True)
        if ours and theirs:
            print(f"ratio of medians: {statistics.median(ours) / statistics.median(theirs):.2f}")


if __name__ == "__main__":
    main()
