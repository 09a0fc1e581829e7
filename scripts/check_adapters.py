#!/usr/bin/env python3
"""Every kind of adapter there and back: what snug trains loads in peft, and what peft writes loads in snug, with the loss
that the other finds.

    check_adapters.py [--snug build/cpu-release/snug] [--out build/nightly/adapters] [--only NAME]

Tiny models of tests/fixtures/models, in fp32; needs torch, transformers and peft. A line per kind: both losses and how
far they are apart, at most 1e-5 of them. Fails if one is further apart, or if a tensor is missing or unexpected.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from check_exports import check_adapter_names, evaluate

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "tests/fixtures"
BOUND = 1e-5
NEW_TOKENS = ["--add-tokens", "<think>,</think>", "--add-special-tokens", "<|turn|>"]

# What snug trains: kind -> (model, options).
TRAINED = {
    "lora": ("llama", []),
    "lora of fused linears": ("phi3", []),
    "rank and alpha by pattern": ("llama", ["--lora-rank-pattern", "down_proj=4,layers.0.mlp.up_proj=12",
                                            "--lora-alpha-pattern", "o_proj=7"]),
    "layers chosen": ("llama", ["--lora-layers", "1"]),
    "targets chosen": ("qwen3", ["--lora-targets", "q_proj,v_proj"]),
    "rslora": ("llama", ["--lora-rslora", "true"]),
    "lora+": ("llama", ["--lora-plus-ratio", "8"]),
    "dora": ("llama", ["--lora-dora", "true"]),
    "pissa": ("llama", ["--lora-init", "pissa"]),
    "olora": ("qwen2", ["--lora-init", "olora", "--lora-rslora", "true"]),
    "modules trained whole": ("llama", ["--modules-to-save", "embed_tokens,lm_head,norm"]),
    "a tied embedding parted": ("qwen2_tied", ["--modules-to-save", "embed_tokens"]),
    "a tied embedding kept": ("qwen2_tied", ["--modules-to-save", "embed_tokens", "--ensure-weight-tying", "true"]),
    "lora of a text model among images": ("gemma3_vision", []),
    "its tied embedding parted": ("gemma3_vision", ["--modules-to-save", "embed_tokens"]),
    "its tied embedding kept": ("gemma3_vision", ["--modules-to-save", "lm_head", "--ensure-weight-tying", "true"]),
    "added tokens": ("words", NEW_TOKENS),
    "added tokens of a tied head": ("words_tied", NEW_TOKENS),
}

# What peft writes: kind -> (model, LoraConfig's arguments).
WRITTEN = {
    "lora": ("llama", {}),
    "lora of fused linears": ("phi3", {"target_modules": "all-linear"}),
    "rank and alpha by pattern": ("llama", {"rank_pattern": {"down_proj": 4}, "alpha_pattern": {"layers.1.*o_proj": 3}}),
    "layers chosen": ("llama", {"layers_to_transform": [1]}),
    "rslora": ("qwen3", {"use_rslora": True}),
    "dora": ("llama", {"use_dora": True}),
    "pissa as it is saved": ("llama", {"init_lora_weights": "pissa", "rank_pattern": {"down_proj": 4}}),
    "pissa of a wide model as it is saved": ("wide", {"init_lora_weights": "pissa"}),
    "olora as it is saved": ("phi3", {"init_lora_weights": "olora", "use_rslora": True,
                                      "target_modules": "all-linear"}),
    "pissa made plain": ("qwen3", {"init_lora_weights": "pissa"}),
    "olora made plain": ("llama", {"init_lora_weights": "olora", "use_rslora": True}),
    "pissa beside a tied embedding": ("qwen2_tied", {"init_lora_weights": "pissa", "ensure_weight_tying": True,
                                                     "modules_to_save": ["embed_tokens"]}),
    "modules trained whole": ("llama", {"modules_to_save": ["embed_tokens", "lm_head"]}),
    "a tied embedding kept": ("qwen2_tied", {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}),
    "rows of tokens": ("llama", {"trainable_token_indices": {"embed_tokens": [3, 5, 996], "lm_head": [3, 996]}}),
    "an embedding with more rows": ("llama", {"modules_to_save": ["embed_tokens", "lm_head"], "rows": 1003}),
}


def make_words(folder, tied):
    """A model of the llama fixture's shape whose tokenizer leaves two rows of its embedding unused."""
    config = transformers.AutoConfig.from_pretrained(FIXTURES / "models/llama")
    config.vocab_size, config.tie_word_embeddings = 2612, tied
    transformers.set_seed(3)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    for file in (FIXTURES / "tokenizer/smollm").iterdir():
        shutil.copy(file, folder)


def make_wide(folder):
    """A model whose matrices are so wide that their singular values lie close together, as those of models do."""
    config = transformers.AutoConfig.from_pretrained(FIXTURES / "models/llama")
    config.hidden_size, config.intermediate_size, config.num_attention_heads, config.head_dim = 512, 1024, 8, 64
    config.num_key_value_heads, config.num_hidden_layers, config.initializer_range = 4, 2, 0.06
    transformers.set_seed(4)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def samples(vocabulary):
    """Token ids up to the last row, so that new ones are among them."""
    generator = torch.Generator().manual_seed(1)
    lines = []
    for length in [5, 17, 31, 8, 23, 40]:
        ids = torch.randint(3, vocabulary, (length,), generator=generator)
        ids[1::4] = torch.randint(vocabulary - 4, vocabulary, ids[1::4].shape, generator=generator)
        lines.append(json.dumps({"input_ids": ids.tolist(), "labels": ids.tolist()}))
    return lines


class Check:
    def __init__(self, options):
        self.options, self.failed = options, []
        shutil.rmtree(options.out, ignore_errors=True)
        options.out.mkdir(parents=True)
        for name in ["words", "words_tied"]:
            make_words(options.out / name, name == "words_tied")
        make_wide(options.out / "wide")

    def model(self, name):
        made = self.options.out / name
        return made if made.is_dir() else FIXTURES / "models" / name

    def snug(self, command, model, *more):
        words = [self.options.snug, command, "--model", model, "--data", self.options.out / "data.jsonl",
                 "--data-format", "tokens", "--compute", "fp32", "--sequence-length", "64", "--threads", "1", "--cache-dir",
                 self.options.out / "cache", *more]
        run = subprocess.run(list(map(str, words)), text=True, capture_output=True)
        if run.returncode:
            sys.exit(f"{' '.join(map(str, words))}\n{run.stderr}")
        return run.stdout

    def load(self, model, rows=None):
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
        if rows and rows > base.config.get_text_config().vocab_size:
            base.resize_token_embeddings(rows, mean_resizing=False)
        return base

    def write_data(self, rows):
        self.lines = samples(rows)
        (self.options.out / "data.jsonl").write_text("\n".join(self.lines) + "\n")

    def compare(self, kind, model, adapter, rows, ours_wrote=True):
        ours = json.loads(self.snug("eval", model, "--adapter", adapter, "--json"))["loss"]
        loaded = PeftModel.from_pretrained(self.load(model, rows), adapter).eval()
        if ours_wrote:
            check_adapter_names(loaded, adapter)
        theirs = evaluate(loaded, self.lines)["loss"]
        apart = abs(ours - theirs) / theirs
        print(f"{kind:44}  snug {ours:.6f}  peft {theirs:.6f}  apart {apart:.1e}")
        if not apart <= BOUND:
            self.failed.append(kind)

    def train(self, kind, name, options):
        config = json.loads((self.model(name) / "config.json").read_text())
        rows = config.get("text_config", config)["vocab_size"] + ("--add-tokens" in options)
        self.write_data(rows)
        out = self.options.out / ("trained " + kind).replace(" ", "-")
        self.snug("train", self.model(name), "--out", out, "--max-steps", "3", "--batch-size", "2", "--lora-rank", "8",
                  "--learning-rate", "1e-2", *options)
        self.compare("snug: " + kind, self.model(name), out / "adapter", rows)

    def write(self, kind, name, arguments):
        arguments = dict(arguments)
        base = self.load(self.model(name), arguments.pop("rows", None))
        rows = base.get_input_embeddings().weight.shape[0]
        self.write_data(rows)
        arguments.setdefault("target_modules", ["q_proj", "v_proj", "o_proj", "down_proj", "up_proj"])
        model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, **arguments))
        out = self.options.out / ("written " + kind).replace(" ", "-")
        plain = {}
        if kind.endswith("made plain"):  # PEFT asks for the adapter as it began, which is to say that it is one
            model.peft_config["default"].init_lora_weights = True
            model.save_pretrained(out / "began")
            model.peft_config["default"].init_lora_weights = arguments["init_lora_weights"]
            plain = {"path_initial_model_for_weight_conversion": out / "began"}
        generator = torch.Generator().manual_seed(2)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data += 0.02 * torch.randn(parameter.shape, generator=generator)
        model.save_pretrained(out, **plain)
        self.compare("peft: " + kind, self.model(name), out, rows, ours_wrote=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snug", type=lambda path: pathlib.Path(path).resolve(), default="build/cpu-release/snug")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/nightly/adapters"))
    parser.add_argument("--only", default="", help="kinds whose names have this in them")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    check = Check(options)
    for kinds, run in [(TRAINED, check.train), (WRITTEN, check.write)]:
        for kind, (name, arguments) in kinds.items():
            if options.only in kind:
                run(kind, name, arguments)
    if check.failed:
        sys.exit("further apart than allowed: " + ", ".join(check.failed))


if __name__ == "__main__":
    main()
