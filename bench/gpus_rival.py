#!/usr/bin/env python3
"""Trains all weights of a Llama shape, random at first, on the GPUs of one machine by what others use: snug's rivals on
several cards. torchrun runs it, a process a card.

    torchrun --nproc-per-node N bench/gpus_rival.py NAME MODEL_DIR [--blocks N --micro-batch N --cap GiB ...]

NAME is fsdp2 (FSDP2 around each block and the rest: fp32 parameters, gathered in bf16, gradients summed in fp32, fused
AdamW), fsdp2-offload (the same with parameters, gradients and states on the host), fsdp2-lora (peft's adapters of r16
on all linears, everything in bf16 and sharded) or deepspeed (ZeRO-3, optimizer and parameters on the host, fp32
states). MODEL_DIR holds config.json alone. Blocks are of random tokens that all carry loss, shared equally by the
cards. --cap limits what torch takes of a card once the model is in place. Liger's kernels are in FSDP2 where they are
installed, unless --liger says otherwise; `auto` leaves DeepSpeed without them, as it was fastest. Prints tokens per
second in all (the median step's, after warming up), the driver's GiB of each card, the GiB of host memory that are in
use more than before, and the loss of the last pass; or that memory ran out.

Where no package can be fetched, wheels travel in .whl; each call begins with the first two lines:

    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl
    export PYTHONPATH=/tmp/site
    mkdir -p /tmp/8b; (cd bench; python3 -c 'import gpu_shapes, json
    print(json.dumps(gpu_shapes.SHAPES["llama-3-8b"]))') > /tmp/8b/config.json

8B full on four cards, and on two:

    torchrun --nproc-per-node 4 bench/gpus_rival.py fsdp2 /tmp/8b --blocks 64 --micro-batch 16 --checkpointing true
    torchrun --nproc-per-node 4 bench/gpus_rival.py fsdp2 /tmp/8b --blocks 64 --micro-batch 8 --checkpointing false
    torchrun --nproc-per-node 2 bench/gpus_rival.py fsdp2 /tmp/8b --blocks 32 --micro-batch 16 --checkpointing true

8B full on two cards of 39.4 GiB, 33k tokens a step:

    torchrun --nproc-per-node 2 bench/gpus_rival.py fsdp2-offload /tmp/8b --blocks 16 --cap 39.4 --micro-batch 8
    torchrun --nproc-per-node 2 bench/gpus_rival.py deepspeed /tmp/8b --blocks 16 --cap 39.4 --micro-batch 4

The same with the parts of MiniCPM-Llama3-V 2.5 that images go through, beside `image_jobs.py 3`:

    torchrun --nproc-per-node 2 bench/gpus_rival.py deepspeed /tmp/8b --blocks 16 --cap 39.4 --micro-batch 4 --slices 10

70B LoRA on two cards of 80 GB, 4,096 tokens a pass:

    torchrun --nproc-per-node 2 bench/gpus_rival.py fsdp2-lora /tmp/70b --blocks 16 --cap 79.3 --micro-batch 2
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import time

from gpu_rival import LINEARS, deepspeed_step, random_model, torch_step, use_liger

TITLES = {
    "fsdp2": "FSDP2",
    "fsdp2-offload": "FSDP2, CPU offload",
    "fsdp2-lora": "FSDP2, LoRA",
    "deepspeed": "DeepSpeed ZeRO-3, both offloads, fp32",
}


def used_bytes(cards):
    """Of each card, what the driver counts."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    lines = subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines()
    return [int(line) << 20 for line in lines[:cards]]


def used_host_bytes():
    """Of the whole machine. What it has may grow as it is used; that shows in both numbers."""
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    kib = {name: int(value.split()[0]) for name, value in (line.split(":") for line in lines)}
    return (kib["MemTotal"] - kib["MemAvailable"]) << 10


def fsdp2_model(options):
    """Random shards in place, each rank's own; whole tensors are never anywhere. fp32, or with LoRA bf16."""
    import torch
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    lora = options.rival == "fsdp2-lora"
    model = random_model(options.model, "meta", "bfloat16" if lora else "float32")
    how = {} if lora else {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    on_host = options.rival == "fsdp2-offload"
    if on_host:
        how["offload_policy"] = CPUOffloadPolicy(pin_memory=options.device == "cuda")
    decoder = model.model
    if lora:
        from peft import LoraConfig, get_peft_model

        adapters = LoraConfig(r=16, lora_alpha=32, target_modules=LINEARS, task_type="CAUSAL_LM")
        model = get_peft_model(model, adapters, autocast_adapter_dtype=False, low_cpu_mem_usage=True)
    layers = decoder.layers
    for number, layer in enumerate(layers):
        if options.checkpointing:
            layers[number] = checkpoint_wrapper(layer)
        fully_shard(layers[number], **how)
    fully_shard(model, **how)
    model.to_empty(device="cpu" if on_host else options.device)
    with torch.no_grad():
        for parameter in model.parameters():
            part = parameter.to_local()
            # Vectors are norms' gains. Numbers are drawn on the card also for the host, where that takes minutes.
            part.fill_(1.0) if part.dim() == 1 else part.copy_(torch.randn(part.shape, device=options.device) * 0.02)
    rotary = decoder.rotary_emb  # its tables are buffers, which nobody shards or moves
    decoder.rotary_emb = type(rotary)(rotary.config).to(options.device)
    return model


def image_model(slices, micro_batch, device):
    """Returns what builds MiniCPM-Llama3-V 2.5's parts around a language model: SigLIP's tower over `slices` slices of 448
    x 448 pixels a block, and a resampler that makes 96 rows of each, which take the place of as many tokens."""
    import torch
    import transformers
    from torch import nn
    from torch.nn import functional

    class WithImages(nn.Module):
        def __init__(self, text):
            super().__init__()
            tower = transformers.SiglipVisionConfig(
                hidden_size=1152, intermediate_size=4304, num_hidden_layers=27, num_attention_heads=16, image_size=448,
                patch_size=14, vision_use_head=False, attn_implementation="sdpa",
            )  # fmt: skip
            width, self.text, self.tower = text.config.hidden_size, text, transformers.SiglipVisionModel(tower)
            self.queries = nn.Embedding(96, width)
            self.wide = nn.Linear(1152, width, bias=False)
            self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
            self.norm_q, self.norm_kv, self.norm = (nn.LayerNorm(width, eps=1e-6) for _ in range(3))
            self.proj = nn.Linear(width, width, bias=False)

        def gradient_checkpointing_enable(self, **how):
            self.text.gradient_checkpointing_enable(**how)
            self.tower.gradient_checkpointing_enable(**how)

        def resampled(self, patches):
            images, width = len(patches), self.text.config.hidden_size

            def heads(x):
                return x.view(images, -1, width // 128, 128).transpose(1, 2)

            seen = self.norm_kv(self.wide(patches))
            asked = self.norm_q(self.queries(torch.arange(96, device=patches.device))).expand(images, -1, -1)
            rows = functional.scaled_dot_product_attention(heads(self.q(asked)), heads(self.k(seen)), heads(self.v(seen)))
            return self.proj(self.norm(self.o(rows.transpose(1, 2).reshape(images, 96, width))))

        def forward(self, input_ids, labels):
            rows = self.resampled(self.tower(pixels).last_hidden_state)
            rows = rows.reshape(len(input_ids), slices * 96, self.text.config.hidden_size)
            words = self.text.get_input_embeddings()(input_ids)
            return self.text(inputs_embeds=torch.cat([words[:, :4], rows, words[:, 4 + rows.shape[1] :]], 1), labels=labels)

    # Numbers that torch draws for each module stay: transformers' would be drawn for weights that are sharded by then.
    transformers.SiglipVisionModel.init_weights = lambda _: None
    pixels = torch.randn(micro_batch * slices, 3, 448, 448, device=device, dtype=torch.bfloat16)

    def build(folder, place):
        text = random_model(folder, place)
        torch.set_default_dtype(torch.bfloat16)
        try:
            return WithImages(text)
        finally:
            torch.set_default_dtype(torch.float32)

    return build


def make_step(options):
    """The rival's step, and whether Liger's kernels are in it."""
    if options.liger == "auto":
        options.liger = "false" if options.rival == "deepspeed" else "true"
    liger = options.liger == "true" and use_liger()
    if options.rival == "deepspeed":
        build = image_model(options.slices, options.micro_batch, options.device) if options.slices else random_model
        return deepspeed_step(options, len(options.blocks), states="fp32", build=build), liger
    return torch_step(fsdp2_model(options), contextlib.nullcontext), liger


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rival", metavar="NAME", choices=TITLES, help=", ".join(TITLES))
    parser.add_argument("model", metavar="MODEL_DIR", type=pathlib.Path)
    parser.add_argument("--blocks", type=int, default=16, help="of a step, on all cards")
    parser.add_argument("--sequence", type=int, default=2048, help="tokens of a block")
    parser.add_argument("--micro-batch", type=int, default=4, help="blocks of a pass on a card")
    parser.add_argument("--checkpointing", choices=["true", "false"], default="true")
    parser.add_argument("--liger", choices=["auto", "true", "false"], default="auto")
    parser.add_argument("--slices", type=int, default=0, help="of images a block, beside deepspeed: 10 in the third job")
    parser.add_argument("--cap", type=float, metavar="GiB", help="what torch may take of a card")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=2, help="first steps that do not count")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: to see that it runs")
    options = parser.parse_args()
    options.checkpointing = options.checkpointing == "true"
    ranks = int(os.environ.get("WORLD_SIZE", 0)) or parser.error("is to be run by torchrun")
    if options.blocks % (ranks * options.micro_batch):
        parser.error(f"{options.blocks} blocks are not whole passes of {options.micro_batch} on {ranks} cards")
    return options


def main():
    options = parse_options()
    rank, ranks, place = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    # torchrun says 1, with which an optimizer on the host would take minutes. Read when torch is imported.
    os.environ["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // ranks))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    before = used_host_bytes()
    import torch
    import torch.distributed

    on_cards = options.device == "cuda"
    if on_cards:
        torch.cuda.set_device(place)
    # Norms of gradients that are on the host are summed over ranks there.
    through = "cpu:gloo,cuda:nccl" if options.rival == "fsdp2-offload" else "nccl"
    torch.distributed.init_process_group(through if on_cards else "gloo")
    wait = torch.cuda.synchronize if on_cards else lambda: None
    options.blocks = range(options.blocks // ranks)
    step, liger = make_step(options)
    if on_cards and options.cap:
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(min(1.0, options.cap * 2**30 / torch.cuda.mem_get_info()[1]))
    words = json.loads((options.model / "config.json").read_text())["vocab_size"]
    torch.manual_seed(rank)
    ids = torch.randint(words, (len(options.blocks), options.sequence), device=options.device)
    title = TITLES[options.rival] + (" + Liger" if liger else "")
    title += f", {ranks} x {options.micro_batch} x {len(ids) // options.micro_batch}"
    title += f", {options.slices} slices of images a block" if options.slices else ""
    title += ", checkpointed" if options.checkpointing else ""
    rates, host = [], 0
    for _ in range(options.warmup + options.steps):
        torch.distributed.barrier()
        wait()
        start = time.perf_counter()
        try:
            loss = step(ids.split(options.micro_batch), len(ids))
        except torch.OutOfMemoryError as error:
            print(f"{title}: out of memory on card {place}: {error}", flush=True)
            os._exit(1)  # the others would be waited for
        wait()
        torch.distributed.barrier()
        rates.append(ids.numel() * ranks / (time.perf_counter() - start))
        host = max(host, used_host_bytes() - before)
    if rank == 0:
        cards = " ".join(f"{used / 2**30:.2f}" for used in used_bytes(ranks)) if on_cards else "no"
        counted = rates[options.warmup :]
        rate = f"{statistics.median(counted):.0f} tokens/s ({min(counted):.0f} .. {max(counted):.0f})"
        memory = f"{cards} GiB a card, host {host / 2**30:.1f} GiB"
        print(f"{title}: {rate}, {memory}, loss {loss.item():.3f}", flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
