#!/usr/bin/env python3
"""Makes the reference values that snug's parity tests compare with, by transformers and peft.

    make_fixtures.py --models tests/fixtures/models [--family NAME ...]
    make_fixtures.py --smollm2 DIR --heldout heldout.jsonl --out tests/fixtures/smollm2

The first writes tiny models of every supported family with logits, gradients and training steps; the second the
held-out loss and greedy continuations of the real SmolLM2-135M-Instruct in DIR. tests/fixtures/README.md says what the
files hold. Needs torch, transformers 5, peft and safetensors; one thread, so that a second run writes the same bytes.
"""

import argparse
import json
import math
import os
import pathlib
import shutil
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.nn.functional as F
import transformers
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer, LlamaConfig

from tiny_models import FAMILIES, LINEARS, LLAMA, ROPES, VOCABULARY

STEPS = 10
WARMUP_STEPS = 2
SAMPLES_PER_STEP = 4
LOGIT_SAMPLES = 4
PROMPT_TOKENS, REPLY_TOKENS = 150, 12


def make_samples():
    """12 samples in Hugging Face's sense: labels stand under their own token, -100 where there is no loss."""
    generator = torch.Generator().manual_seed(7)
    lengths = [6, 1, 10, 16, 40, 23, 2, 31, 9, 37, 14, 28]
    samples = []
    for index, length in enumerate(lengths):
        ids = torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()
        labels = list(ids)  # so the first label of a sample is set, though no token predicts it
        if index in (3, 5, 9):
            labels[: length // 2] = [-100] * (length // 2)  # a prompt without loss
        if index == 4:
            labels[10:20] = [-100] * 10  # two replies in one sample
        if index == 7:
            labels = [-100] * length  # nothing to learn here
        if index == 8:
            labels = [(i + 5) % VOCABULARY for i in ids]  # labels are taken as they are, even if they are not the ids
        samples.append({"input_ids": ids, "labels": labels})
    return samples


def loss_sum(model, sample):
    """Summed cross-entropy of one sample, in fp32 from the model's logits, and its number of loss tokens."""
    logits = model(input_ids=torch.tensor([sample["input_ids"]])).logits[0, :-1].float()
    targets = torch.tensor(sample["labels"][1:], dtype=torch.long)
    return F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum"), int((targets != -100).sum())


def loss_tokens(samples):
    return sum(label != -100 for sample in samples for label in sample["labels"][1:])


def accumulate_gradients(model, samples):
    """Adds the gradient of (summed loss / loss tokens of all samples), sample by sample; returns that loss."""
    total, tokens = 0.0, loss_tokens(samples)
    for sample in samples:
        loss, count = loss_sum(model, sample)
        total += loss.item()
        if count:
            (loss / tokens).backward()
    return total / tokens


def mean_loss(model, samples):
    with torch.no_grad():
        return sum(loss_sum(model, sample)[0].item() for sample in samples) / loss_tokens(samples)


def samples_of_step(samples, step):
    first = step * SAMPLES_PER_STEP
    return [samples[(first + i) % len(samples)] for i in range(SAMPLES_PER_STEP)]


def train_and_evaluate(model, samples, optimizers, steps):
    """Takes steps by several optimizers together, and evaluates all samples after each; returns the numbers. An optimizer
    that evaluates other weights than it trains is told which comes."""

    def turn(mode):
        for optimizer in optimizers:
            getattr(optimizer, mode, lambda: None)()

    result = {"loss": [], "grad_norm": [], "heldout_loss": []}
    for step in range(steps):
        turn("train")
        result["loss"].append(accumulate_gradients(model, samples_of_step(samples, step)))
        result["grad_norm"].append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        turn("step")
        turn("zero_grad")
        turn("eval")
        result["heldout_loss"].append(mean_loss(model, samples))
    return result


def make_optimizer(parameters, learning_rate, weight_decay):
    """As transformers' trainer has it: norms and biases do not decay. `parameters` are pairs of name and parameter."""
    groups = [
        {"params": [p for name, p in parameters if p.dim() > 1 and "norm" not in name], "weight_decay": weight_decay},
        {"params": [p for name, p in parameters if p.dim() <= 1 or "norm" in name], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=learning_rate, betas=(0.9, 0.999), eps=1e-8)
    return optimizer, transformers.get_cosine_schedule_with_warmup(optimizer, WARMUP_STEPS, STEPS)


def train(model, samples, learning_rate, weight_decay, low_precision_model=None):
    """STEPS steps on the trainable parameters of `model`; returns loss, gradient norm and learning rate of each.

    With `low_precision_model`, `model` only holds the fp32 master weights: every step copies them there, goes forward
    and backward there, and updates the masters with its gradients widened to fp32.
    """
    worker = low_precision_model or model
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    parameters = [p for _, p in named]
    optimizer, schedule = make_optimizer(named, learning_rate, weight_decay)
    result = {"loss": [], "grad_norm": [], "learning_rate": []}
    for step in range(STEPS):
        if low_precision_model:
            copy_values(model, worker)
        result["learning_rate"].append(schedule.get_last_lr()[0])
        result["loss"].append(accumulate_gradients(worker, samples_of_step(samples, step)))
        if low_precision_model:
            for master, copy in zip(model.parameters(), worker.parameters()):
                if copy.grad is not None:
                    master.grad, copy.grad = copy.grad.float(), None
        result["grad_norm"].append(torch.nn.utils.clip_grad_norm_(parameters, 1.0).item())
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return result


def copy_values(source, target):
    with torch.no_grad():
        for s, t in zip(source.parameters(), target.parameters()):
            t.copy_(s)


def draw_weights(model, seed):
    """Logits small enough for a loss near log(vocabulary), everything before them of order one."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("bias"):
            parameter.data = 0.2 * noise
        elif "norm" in name or parameter.dim() == 1:
            parameter.data = (0 if model.config.model_type.startswith(("gemma", "nemotron")) else 1) + 0.2 * noise
        elif "embed_tokens" in name or "lm_head" in name:
            parameter.data = 0.06 * noise
        else:
            parameter.data = noise / math.sqrt(parameter[0].numel())


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def spell_as_transformers_4(path):
    config = json.loads(path.read_text())
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    config["rope_scaling"] = parameters
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.45.2"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def class_of(config):
    return AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM


def write_model(folder, family, seed):
    model = class_of(family["config"]).from_config(family["config"])
    draw_weights(model, seed)
    model.to(family["dtype"])
    model.config.dtype = family["dtype"]
    model.save_pretrained(folder, max_shard_size=family.get("shard_size", 10**9))
    (folder / "generation_config.json").unlink(missing_ok=True)
    if family.get("spelling") == 4:
        spell_as_transformers_4(folder / "config.json")


def load_model(folder, dtype):
    config = AutoConfig.from_pretrained(folder)
    return class_of(config).from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


def write_large_adapter(model_folder, folder, rank):
    """Adapters of all linears, B as large as A, so that every gradient is of a size."""
    torch.manual_seed(5)
    lora = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=sorted(LINEARS), task_type="CAUSAL_LM")
    model = get_peft_model(load_model(model_folder, torch.float32), lora)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.1)
    model.peft_config["default"].base_model_name_or_path = model_folder.name
    model.peft_config["default"].target_modules = sorted(LINEARS)
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)


def gradients(model, samples):
    """Gradients of all samples by name, and their loss."""
    loss = accumulate_gradients(model, samples)
    # A vision tower has none.
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}, loss


def gradient_error(folder, samples, found):
    """How far fp32 gradients are from those in fp64: the largest distance of a parameter's, by its length there."""
    exact, _ = gradients(load_model(folder, torch.float64), samples)
    return max(((found[name].double() - g).norm() / g.norm()).item() for name, g in exact.items() if g.norm() > 0)


def logits_and_gradients(folder, samples):
    """(a) logits of the first samples, each alone; (b) loss and every gradient over all samples."""
    model = load_model(folder, torch.float32)
    tensors = {}
    for index, sample in enumerate(samples[:LOGIT_SAMPLES]):
        with torch.no_grad():
            tensors[f"logits.{index}"] = model(input_ids=torch.tensor([sample["input_ids"]])).logits[0].clone()
    found, loss = gradients(model, samples)
    tensors |= {f"grad.{name}": gradient for name, gradient in found.items()}
    return tensors, loss, gradient_error(folder, samples, found)


def write_generation(folder, seed):
    """Greedy tokens after a long prompt, each the likeliest by far more than fp32 errs, and the prompt's last logits."""
    model = load_model(folder, torch.float32)
    torch.manual_seed(100 + seed)
    prompt = torch.randint(VOCABULARY, (PROMPT_TOKENS,)).tolist()
    reply = greedy(model, prompt, REPLY_TOKENS)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + reply])).logits[0, PROMPT_TOKENS - 1 :]
    top = logits[:-1].topk(2).values
    margin = float((top[:, 0] - top[:, 1]).min())
    assert margin > 1e-3, f"{folder.name}: the reply is decided by {margin}"
    write_json(folder / "generation.json", {"prompt": prompt, "reply": reply, "logits": logits[0].tolist()})


def full_training(folder, samples):
    """(c) ten steps on all weights; a few of the final ones stand for the rest."""
    model = load_model(folder, torch.float32)
    result = train(model, samples, learning_rate=1e-3, weight_decay=0.1)
    kept = ["model.norm.weight", "model.language_model.norm.weight", "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.q_proj.bias",
            "model.layers.1.mlp.down_proj.weight", "model.layers.1.mlp.up_proj.bias",
            "model.layers.0.self_attn.qkv_proj.weight", "model.layers.1.mlp.gate_up_proj.weight",
            "model.layers.1.self_attn.k_norm.weight", "model.layers.1.self_attn.q_layernorm.norms.2.weight",
            "model.layers.1.mlp.c_proj.weight", "model.layers.1.mlp.c_fc.bias"]  # fmt: skip
    return {f"final.{n}": p.detach() for n, p in model.named_parameters() if n in kept}, result


def write_initial_adapter(folder, adapter, targets, rslora):
    torch.manual_seed(11)
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=targets, use_rslora=rslora, task_type="CAUSAL_LM")
    model = get_peft_model(load_model(folder, torch.float32), lora)
    model.peft_config["default"].base_model_name_or_path = folder.name
    model.peft_config["default"].target_modules = sorted(targets)  # a set has another order in every process
    model.save_pretrained(folder / adapter)
    (folder / adapter / "README.md").unlink(missing_ok=True)


def lora_training(folder, adapter, samples, dtype=torch.float32):
    """(d) ten steps of LoRA from the stored adapter; adapters are fp32 whatever the base is."""
    model = PeftModel.from_pretrained(load_model(folder, dtype), folder / adapter, is_trainable=True)
    result = train(model, samples, learning_rate=5e-3, weight_decay=0.0)
    return get_peft_model_state_dict(model), result


def bfloat16_runs(folder, samples):
    """(e) the same with bf16 products: loss, LoRA steps, and full steps with fp32 master weights."""
    masters, worker = load_model(folder, torch.float32), load_model(folder, torch.bfloat16)
    return {
        "loss": mean_loss(worker, samples),
        "lora": lora_training(folder, "adapter_init", samples, torch.bfloat16)[1],
        "full": train(masters, samples, learning_rate=1e-3, weight_decay=0.1, low_precision_model=worker),
    }


def write_family(folder, family, samples, seed):
    shutil.rmtree(folder, ignore_errors=True)
    write_model(folder, family, seed)
    tensors, loss, error = logits_and_gradients(folder, samples)
    final, full = full_training(folder, samples)
    tensors |= final
    reference = {"loss": loss, "loss_tokens": loss_tokens(samples), "gradient_error": error, "full": full}
    adapters = [("adapter_init", "lora", family.get("linears", LINEARS), False)]
    if folder.name == "llama":
        adapters.append(("adapter_qv", "lora_qv", ["q_proj", "v_proj"], True))
    for adapter, key, targets, rslora in adapters:
        write_initial_adapter(folder, adapter, targets, rslora)
        final, reference[key] = lora_training(folder, adapter, samples)
        tensors |= {f"{key}_final.{name}": tensor for name, tensor in final.items()}
    reference["bf16"] = bfloat16_runs(folder, samples)
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "reference.safetensors")
    write_json(folder / "reference.json", reference)
    write_generation(folder, seed)
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)  # safetensors makes them private
    print(f"{folder.name}: loss {loss:.4f}, full {full['loss'][-1]:.4f}, lora {reference['lora']['loss'][-1]:.4f}")


def write_schedules(path):
    """(f) factors of the learning rate at every step, the first used by step 1."""
    t = transformers
    makers = [
        ("constant", {}, lambda o, warmup, total: t.get_constant_schedule_with_warmup(o, warmup)),
        ("linear", {}, t.get_linear_schedule_with_warmup),
        ("cosine", {}, t.get_cosine_schedule_with_warmup),
        ("cosine", {"min_ratio": 0.2}, lambda o, w, n: t.get_cosine_with_min_lr_schedule_with_warmup(o, w, n, min_lr_rate=0.2)),
        ("cosine_with_restarts", {"cycles": 3}, lambda o, w, n: t.get_cosine_with_hard_restarts_schedule_with_warmup(o, w, n, 3)),
        ("polynomial", {"power": 2.0, "min_ratio": 0.1}, lambda o, w, n: t.get_polynomial_decay_schedule_with_warmup(o, w, n, 0.1, 2.0)),
        ("inverse_sqrt", {}, lambda o, w, n: t.get_inverse_sqrt_schedule(o, w)),
        ("warmup_stable_decay", {"decay_steps": 4, "min_ratio": 0.1},
         lambda o, w, n: t.get_wsd_schedule(o, w, 4, num_training_steps=n, min_lr_ratio=0.1)),
    ]  # fmt: skip
    cases = []
    for name, given, make in makers:
        for warmup, total in [(0, 1), (0, 7), (1, 10), (2, 10), (5, 40), (10, 10), (12, 10)]:
            if given and (warmup >= total or warmup + given.get("decay_steps", 0) > total):
                continue  # a run ends within its warm-up
            optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
            schedule = make(optimizer, warmup, total)
            factors = []
            for _ in range(total):
                factors.append(schedule.get_last_lr()[0])
                optimizer.step()
                schedule.step()
            cases.append({"schedule": name, **given, "warmup_steps": warmup, "steps": total, "factors": factors})
    write_json(path, cases)


def write_ropes(path):
    """What a position turns by in heads of 16, and the factor of cos and sin, for short texts and for long ones."""
    cases = []
    for name, parameters in ROPES.items():
        for positions in (40, 1000):
            config = LlamaConfig(hidden_size=32, num_attention_heads=2, rope_parameters=dict(parameters), **LLAMA)
            kind = parameters["rope_type"]
            if kind == "default":
                make = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding.compute_default_rope_parameters
            else:
                make = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[kind]
            frequencies, factor = make(config, "cpu", seq_len=positions)
            cases.append({"name": name, "rope_parameters": parameters, "positions": positions,
                          "frequencies": frequencies.tolist(), "factor": factor})  # fmt: skip
    write_json(path, cases)


def write_models(out, names):
    out.mkdir(parents=True, exist_ok=True)
    samples = make_samples()
    (out / "data.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    write_schedules(out / "schedules.json")
    write_ropes(out / "ropes.json")
    for seed, (name, family) in enumerate(FAMILIES.items()):
        if not names or name in names:
            write_family(out / name, family, samples, family.get("seed", seed))


PROMPTS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain recursion to a child in two sentences.",
    "What does the hacker term kluge mean?",
    "List three prime numbers greater than 100.",
    "Translate 'good morning' into Spanish, French and German.",
    "How many legs do 7 spiders have?",
    "def fibonacci(n):",
    "Summarize the plot of Romeo and Juliet.",
    "What's 1234 + 5678?",
    "Who wrote \"Pride and Prejudice\"?",
    "Give me a recipe for pancakes.",
    "Is the Earth flat? Answer yes or no, then say why.",
    "¿Cuál es la capital de España?",
    "Write a JSON object with the keys name and age.",
    "What is the boiling point of water in °C and °F?",
    "Tell me a joke about programmers. 😀",
    "  Fix the grammar:   he go to school yesterday  ",
    "Complete: To be, or not to be,",
    "Why is the sky blue?\n\nAnswer in one line.",
]
SEQUENCE_LENGTH = 1024


def chat_ids(tokenizer, messages, **options):
    text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def reply_sample(tokenizer, messages):
    """Loss on the reply and its end-of-turn token, not on the newline that the template puts after it."""
    prompt = chat_ids(tokenizer, messages[:-1], add_generation_prompt=True)
    ids = chat_ids(tokenizer, messages)
    assert ids[: len(prompt)] == prompt
    end = len(ids) - 1 - ids[::-1].index(tokenizer.convert_tokens_to_ids("<|im_end|>"))
    labels = [-100] * len(prompt) + ids[len(prompt) : end + 1] + [-100] * (len(ids) - end - 1)
    return {"input_ids": ids[:SEQUENCE_LENGTH], "labels": labels[:SEQUENCE_LENGTH]}


def write_smollm2(model_folder, heldout, out):
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = load_model(model_folder, torch.float32)
    lines = heldout.read_text().splitlines()[:50]
    (out / "heldout.jsonl").write_text("".join(line + "\n" for line in lines))
    samples = [reply_sample(tokenizer, json.loads(line)["messages"]) for line in lines]
    generations = []
    for prompt in PROMPTS:
        ids = chat_ids(tokenizer, [{"role": "user", "content": prompt}], add_generation_prompt=True)
        generations.append({"prompt": prompt, "prompt_ids": ids, "continuation_ids": greedy(model, ids, 24)})
    reference = {
        "loss": mean_loss(model, samples),
        "loss_tokens": loss_tokens(samples),
        "tokens": sum(len(sample["input_ids"]) for sample in samples),
        "sequence_length": SEQUENCE_LENGTH,
        "generations": generations,
    }
    write_json(out / "smollm2.json", reference)
    print(f"SmolLM2: loss {reference['loss']:.6f} over {reference['loss_tokens']} tokens")


def greedy(model, ids, count):
    """The likeliest token `count` times, going on after an end-of-text token."""
    ids = list(ids)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[-count:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, metavar="DIR", help="write the tiny models here")
    parser.add_argument("--family", action="append", choices=FAMILIES, help="of these models alone; may be repeated")
    parser.add_argument("--smollm2", type=pathlib.Path, metavar="DIR", help="folder of SmolLM2-135M-Instruct")
    parser.add_argument("--heldout", type=pathlib.Path, metavar="FILE", help="messages, the first 50 lines are used")
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR", help="write SmolLM2's values here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", "Could not find a config file")  # adapters do not say where their base lies
    if options.models:
        write_models(options.models, options.family)
    if options.smollm2:
        write_smollm2(options.smollm2, options.heldout, options.out)


if __name__ == "__main__":
    main()
