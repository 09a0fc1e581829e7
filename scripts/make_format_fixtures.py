#!/usr/bin/env python3
"""Writes tests/fixtures/{safetensors,torch,gguf,hf_config}: small files by the libraries whose formats snug reads.

Needs torch, transformers 5, peft, tokenizers, safetensors and gguf. Tests read the files and never run Python.
  make_format_fixtures.py            writes the fixtures
  make_format_fixtures.py --check D  loads a model directory D that snug imported, and says what it generates
"""
import argparse
import collections
import json
import os
import pathlib
import shutil
import zipfile

import gguf
import numpy as np
import tokenizers
import torch
import transformers
from gguf import GGMLQuantizationType as Quant
from safetensors.torch import load_file, save_file
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "tests" / "fixtures"
LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192}
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n")


def llama_config(**changes):
    values = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
                  num_key_value_heads=1, head_dim=16, vocab_size=40, max_position_embeddings=128, bos_token_id=1,
                  eos_token_id=2, pad_token_id=None, tie_word_embeddings=True, rope_theta=10000.0)
    return transformers.LlamaConfig(**(values | changes))


def make_safetensors(folder):
    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({
        "half": torch.arange(6, dtype=torch.float16).reshape(2, 3), "brain": torch.arange(4, dtype=torch.bfloat16),
        "single": torch.tensor([[1.5, -2.0]]), "scalar": torch.tensor(3.0), "none": torch.zeros(0, 4),
        "long": torch.arange(3), "five": torch.ones(1, 2, 1, 2, 1)}, folder / "mixed.safetensors", {"format": "pt"})
    model = transformers.LlamaForCausalLM(llama_config(rope_parameters={"rope_type": "default", "rope_theta": 1e4}))
    shutil.rmtree(folder / "sharded", ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(folder / "sharded", max_shard_size="12KB")
    make_adapter(model, folder / "adapter")


class Runs:
    """What a pickle may do to who loads it."""
    def __reduce__(self):
        return os.system, ("true",)


def make_torch(folder):
    folder.mkdir(parents=True, exist_ok=True)
    table = torch.arange(24, dtype=torch.float32).reshape(6, 4)
    values = collections.OrderedDict(
        half=torch.arange(6, dtype=torch.float16).reshape(2, 3), brain=torch.arange(4, dtype=torch.bfloat16),
        table=table, rows=table[2:5], column=table[4:5, 1:2], tied=table, scalar=torch.tensor(3.0),
        none=torch.zeros(0, 4), long=torch.arange(3), parameter=torch.nn.Parameter(torch.tensor([[1.5, -2.0]])))
    values._metadata = collections.OrderedDict({"": {"version": 1}})
    torch.save(values, folder / "zip.bin")
    torch.save(values, folder / "old.bin", _use_new_zipfile_serialization=False)
    torch.save(dict(values), folder / "protocol_4.bin", pickle_protocol=4)
    torch.save({"eighth": torch.ones(2, 2, dtype=torch.float8_e4m3fn)}, folder / "eighth.bin")
    save_file({name: value.detach().clone() for name, value in values.items()}, folder / "values.safetensors")
    (folder / "model").mkdir(exist_ok=True)
    shards = sorted((folder.parent / "safetensors" / "sharded").glob("*.safetensors"))
    torch.save({name: value for shard in shards for name, value in load_file(shard).items()},
               folder / "model" / "pytorch_model.bin")
    torch.save({"x": table.T}, folder / "transposed.bin")
    torch.save({"state_dict": {"x": table}, "step": 3}, folder / "nested.bin")
    torch.save({"x": table, "y": Runs()}, folder / "runs.bin")
    with zipfile.ZipFile(folder / "zip.bin") as whole, zipfile.ZipFile(folder / "packed.bin", "w",
                                                                       zipfile.ZIP_DEFLATED) as packed:
        for name in whole.namelist():
            packed.writestr(zipfile.ZipInfo(name), whole.read(name), zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(folder / "zip.bin") as whole, zipfile.ZipFile(folder / "zip64.bin", "w") as large:
        for name in whole.namelist():
            with large.open(zipfile.ZipInfo(name), "w", force_zip64=True) as entry:
                entry.write(whole.read(name))


def make_adapter(model, folder):
    import peft
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=6, lora_dropout=0.05, use_rslora=True,
                             target_modules=["q_proj", "down_proj"])
    shutil.rmtree(folder, ignore_errors=True)
    peft.get_peft_model(model, config).save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    path = folder / "adapter_config.json"
    write_json(path, json.loads(path.read_text()) | {"base_model_name_or_path": "tiny"})


def make_configs(folder):
    common = dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
                  num_key_value_heads=8, head_dim=64, vocab_size=128256, max_position_embeddings=131072,
                  rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=128000,
                  eos_token_id=[128001, 128008, 128009])
    five = transformers.LlamaConfig(**common, dtype=torch.bfloat16, architectures=["LlamaForCausalLM"],
                                    rope_parameters=LLAMA3_ROPE | {"rope_theta": 500000.0})
    write_json(folder / "llama3_v5.json", json.loads(five.to_json_string()))
    # The same model in the keys of transformers 4, as they stand in published checkpoints.
    write_json(folder / "llama3_v4.json", common | dict(
        architectures=["LlamaForCausalLM"], model_type="llama", attention_bias=False, attention_dropout=0.0,
        hidden_act="silu", initializer_range=0.02, mlp_bias=False, pretraining_tp=1, rope_theta=500000.0,
        rope_scaling=LLAMA3_ROPE, torch_dtype="bfloat16", transformers_version="4.45.0", use_cache=True))
    qwen = dict(hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
                num_key_value_heads=2, vocab_size=151936, max_position_embeddings=32768, rms_norm_eps=1e-6,
                tie_word_embeddings=True, bos_token_id=151643, eos_token_id=151645, max_window_layers=21,
                use_sliding_window=False)
    five = transformers.Qwen2Config(**qwen, dtype=torch.bfloat16, architectures=["Qwen2ForCausalLM"],
                                    rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})
    write_json(folder / "qwen2_v5.json", json.loads(five.to_json_string()))
    write_json(folder / "qwen2_v4.json", qwen | dict(
        architectures=["Qwen2ForCausalLM"], model_type="qwen2", attention_dropout=0.0, hidden_act="silu",
        rope_theta=1000000.0, sliding_window=32768, torch_dtype="bfloat16", transformers_version="4.43.1"))


# What transformers and tokenizers make of the same three models is the reference for snug's import.

def tiny_vocabulary():
    tokens = ["<|unk|>", "<|bos|>", "<|eos|>", "<tool>"] + list("abcdefghij0123\u0120\u010a\u00c3\u00a9!.'")
    merges = ["a b", "ab c", "\u0120 a", "\u0120a b", "\u00c3 \u00a9", "d e", "0 1"]
    tokens += [merge.replace(" ", "") for merge in merges]
    tokens += [f"<pad{i}>" for i in range(40 - len(tokens))]
    return tokens, merges


def tokenizer_json(pre, tokens, merges, types):
    bpe = models.BPE({t: i for i, t in enumerate(tokens) if types[i] != 5}, [tuple(m.split(" ")) for m in merges],
                     unk_token="<|unk|>", fuse_unk=True, ignore_merges=pre == "llama-bpe")
    tokenizer = tokenizers.Tokenizer(bpe)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre == "smollm")
    if pre == "smollm":
        first = pre_tokenizers.Digits(individual_digits=True)
    else:
        first = pre_tokenizers.Split(tokenizers.Regex(PATTERN % ("{1,3}" if pre == "llama-bpe" else "")), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, byte_level])
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    if pre == "llama-bpe":
        template = processors.TemplateProcessing(single="<|bos|> $A", pair="<|bos|> $A <|bos|>:1 $B:1",
                                                 special_tokens=[("<|bos|>", 1)])
        tokenizer.post_processor = processors.Sequence([tokenizer.post_processor, template])
    for i, kind in enumerate(types):
        token = tokenizers.AddedToken(tokens[i], normalized=False, special=kind == 3)
        if kind == 3:
            tokenizer.add_special_tokens([token])
        if kind == 4:
            tokenizer.add_tokens([token])
    return json.loads(tokenizer.to_str())


def permute(weight, heads):
    """Rotary halves to neighbours, as llama.cpp keeps Llama's q and k."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def rope_factors(theta, pairs):
    frequency = theta ** (-np.arange(pairs) / pairs)
    config = llama_config(rope_parameters=LLAMA3_ROPE | {"rope_theta": theta})
    scaled, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    return (frequency / scaled.numpy()).astype(np.float32)


def make_gguf(folder, name, architecture, pre, tied, types, theta=10000.0):
    torch.manual_seed(1)
    qwen = architecture == "qwen2"
    config = (transformers.Qwen2Config if qwen else transformers.LlamaConfig)(
        **{k: v for k, v in llama_config().to_dict().items() if k in (
            "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
            "head_dim", "vocab_size", "max_position_embeddings")}, tie_word_embeddings=tied)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    path = folder / f"{name}.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(name)
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(theta)
    if not qwen:
        writer.add_rope_dimension_count(16)
    tokens, merges = tiny_vocabulary()
    kinds = [3, 3, 3, 4] + [1] * 36
    kinds = [5 if t.startswith("<pad") else k for t, k in zip(tokens, kinds)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(pre == "llama-bpe")
    writer.add_chat_template("{{ messages }}")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2 if qwen else gguf.MODEL_ARCH.LLAMA, 1)
    for i, (key, weight) in enumerate(model.state_dict().items()):
        if tied and key == "lm_head.weight":
            continue
        value = weight.numpy()
        if not qwen and ("q_proj" in key or "k_proj" in key):
            value = permute(value, 2 if "q_proj" in key else 1)
        kind = Quant.F32 if value.ndim == 1 else types[i % len(types)]
        writer.add_tensor(names.get_name(key, try_suffixes=(".weight", ".bias")),
                          gguf.quants.quantize(value, kind), raw_dtype=kind)
    if pre == "llama-bpe":
        writer.add_tensor("rope_freqs.weight", rope_factors(theta, 8))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=path.name, dtype=torch.bfloat16)
    state = {k: v.contiguous() for k, v in loaded.state_dict().items() if not (tied and k == "lm_head.weight")}
    save_file(state, folder / f"{name}.expected.safetensors")
    write_json(folder / f"{name}.tokenizer.json", tokenizer_json(pre, tokens, merges, kinds))


def check(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template([{"role": "user", "content": "What is the capital of France?"}],
                                         add_generation_prompt=True, tokenize=False)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
    print(tokenizer.decode(model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1]:]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", metavar="D")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.check:
        check(options.check)
        return
    make_safetensors(FIXTURES / "safetensors")
    make_torch(FIXTURES / "torch")
    make_configs(FIXTURES / "hf_config")
    (FIXTURES / "gguf").mkdir(exist_ok=True)
    make_gguf(FIXTURES / "gguf", "smollm", "llama", "smollm", True, [Quant.Q8_0, Quant.Q4_1])
    make_gguf(FIXTURES / "gguf", "llama3", "llama", "llama-bpe", False, [Quant.BF16, Quant.F16], theta=500000.0)
    make_gguf(FIXTURES / "gguf", "qwen2", "qwen2", "qwen2", False, [Quant.Q4_1, Quant.F32])


if __name__ == "__main__":
    main()
