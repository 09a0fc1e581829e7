#!/usr/bin/env python3
"""Adds to tests/fixtures/gguf what the gguf package reads and writes; make_format_fixtures.py writes the rest there.

types.gguf     a tensor of random blocks for each type that the package dequantises, and of numbers
types.json     {TYPE: {"hash": XXH3 of its values in fp32, "first": the first eight}}
NAME.gguf      tiny models of architectures, and one that is split into three files
NAME.expected.safetensors    their tensors under Hugging Face's names, in bf16
quantized.gguf values in fp32, and what the package makes of them in each type that it writes
With the library ggml-base of llama.cpp, built with BUILD_SHARED_LIBS:
bits.gguf, bits.json    the same for the types that the package does not dequantise, by llama.cpp
With llama.cpp's quantiser:
mixtures.json  for models of several sizes the types of their matrices in each kind of file
errors.json    {TYPE: the squared errors of llama.cpp's quantiser on those values over the values' own squares}

Needs numpy, xxhash and gguf.
  make_gguf_fixtures.py [--out tests/fixtures/gguf] [--quantizer llama-quantize] [--ggml libggml-base.so]
"""
import argparse
import ctypes
import enum
import json
import math
import pathlib
import struct
import subprocess
import tempfile

import gguf
import numpy as np
import xxhash
from gguf import GGMLQuantizationType as Type

HIDDEN, INNER, HEADS, KV_HEADS, HEAD = 32, 64, 2, 1, 16

# Where blocks have an fp16, in bytes.
HALVES = {Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0], Type.Q2_K: [80, 82],
          Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208], Type.TQ1_0: [52], Type.TQ2_0: [64],
          Type.IQ2_XXS: [0], Type.IQ2_XS: [0], Type.IQ2_S: [0], Type.IQ3_XXS: [0], Type.IQ3_S: [0], Type.IQ1_S: [0],
          Type.IQ1_M: [], Type.IQ4_NL: [0], Type.IQ4_XS: [0], Type.MXFP4: [], Type.NVFP4: []}
NUMBERS = {Type.F32: np.float32, Type.F16: np.float16, Type.F64: np.float64, Type.I8: np.int8, Type.I16: np.int16,
           Type.I32: np.int32, Type.I64: np.int64}


def random_blocks(kind, rng):
    """Any bytes, but fp16 that are finite: zeros of both signs and subnormal ones among them."""
    values, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (1, (24 if values == 256 else 64), size), dtype=np.uint8)
    for at in HALVES[kind]:
        halves = blocks[0, :, at:at + 2].copy().view(np.uint16)[:, 0]
        halves[(halves & 0x7c00) == 0x7c00] &= 0xbfff
        halves[:4] = [0, 0x8000, 1, 0x83ff]
        blocks[0, :, at:at + 2] = halves[:, None].view(np.uint8)
    if kind == Type.MXFP4:  # an exponent; the largest ones overflow
        blocks[0, :, 0] = np.minimum(blocks[0, :, 0], 250)
    if kind == Type.IQ1_M:  # the scale lies in the top four bits of four 16-bit words
        blocks[0, :, 55] &= 0xbf
    return blocks.reshape(1, -1)


def make_types(folder):
    rng = np.random.default_rng(38)
    writer = gguf.GGUFWriter(folder / "types.gguf", "types")
    expected = {}
    for kind in [*NUMBERS, Type.BF16, *HALVES]:
        if kind in NUMBERS:
            values = (rng.standard_normal((1, 64)) * 100).astype(NUMBERS[kind])
            writer.add_tensor(kind.name, values, raw_dtype=kind)
            out = values.astype(np.float32)
        else:
            raw = (gguf.quants.quantize(rng.standard_normal((1, 64)).astype(np.float32), kind) if kind == Type.BF16
                   else random_blocks(kind, rng))
            writer.add_tensor(kind.name, raw, raw_dtype=kind)
            out = gguf.quants.dequantize(raw, kind)
        assert out.dtype == np.float32 and np.isfinite(out).all(), kind
        expected[kind.name] = {"hash": xxhash.xxh3_64_hexdigest(out.tobytes()), "first": [float(x) for x in out[0, :8]]}
    close(writer)
    (folder / "types.json").write_text(json.dumps(expected, indent=1) + "\n")


class Bits(enum.IntEnum):
    Q1_0 = 41
    Q2_0 = 42


def make_bits(folder, library):
    ggml = ctypes.CDLL(library)
    rng = np.random.default_rng(41)
    writer = gguf.GGUFWriter(folder / "bits.gguf", "bits")
    expected = {}
    for kind, sizes in {Bits.Q1_0: (128, 18), Bits.Q2_0: (64, 18)}.items():
        gguf.GGML_QUANT_SIZES[kind] = sizes
        HALVES[kind] = [0]
        raw = random_blocks(kind, rng)
        writer.add_tensor(kind.name, raw, raw_dtype=kind)
        out = np.zeros((1, raw.size // sizes[1] * sizes[0]), np.float32)
        function = getattr(ggml, f"dequantize_row_{kind.name.lower()}")
        function(ctypes.c_void_p(raw.ctypes.data), ctypes.c_void_p(out.ctypes.data), ctypes.c_int64(out.size))
        assert np.isfinite(out).all() and out.any(), kind
        expected[kind.name] = {"hash": xxhash.xxh3_64_hexdigest(out.tobytes()), "first": [float(x) for x in out[0, :8]]}
    close(writer)
    (folder / "bits.json").write_text(json.dumps(expected, indent=1) + "\n")


def close(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def bf16(values):
    return gguf.quants.quantize(np.ascontiguousarray(values, dtype=np.float32), Type.BF16).view(np.uint16)


def write_expected(path, tensors):
    header, data = {}, b""
    for name, (shape, raw) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [len(data), len(data) + raw.nbytes]}
        data += raw.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def interleaved(weight, heads):
    """Rotary halves to neighbours, as llama.cpp keeps q and k of Llama and its like."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, half, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def straight(weight, heads):
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, half, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def byte_tokenizer(writer, pre):
    order = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(byte) for byte in order] + [chr(256 + i) for i in range(256 - len(order))]
    tokens = ["<|end|>", *letters, "ab", "abc"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (len(tokens) - 1))
    writer.add_token_merges(["a b", "ab c"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
    return len(tokens)


def piece_tokenizer(writer):
    """SentencePiece's, without saying which tokens open, close and stand for what is unknown."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, "▁", *"etaoinshr", "▁t", "he", "▁the"]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [-float(i) for i in range(len(tokens) - 259)])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259))
    return len(tokens)


def linears(architecture, biases, head_norms):
    queries, keys = HEADS * HEAD, KV_HEADS * HEAD
    every = {"attn_q": ("self_attn.q_proj", queries, HIDDEN), "attn_k": ("self_attn.k_proj", keys, HIDDEN),
             "attn_v": ("self_attn.v_proj", keys, HIDDEN), "attn_output": ("self_attn.o_proj", HIDDEN, queries),
             "ffn_gate": ("mlp.gate_proj", INNER, HIDDEN), "ffn_up": ("mlp.up_proj", INNER, HIDDEN),
             "ffn_down": ("mlp.down_proj", HIDDEN, INNER)}
    if architecture in ("glm4", "chatglm", "phi3"):
        del every["ffn_gate"]
        every["ffn_up"] = ("mlp.gate_up_proj", 2 * INNER, HIDDEN)
    if architecture == "phi3":
        every["attn_qkv"] = ("self_attn.qkv_proj", queries + 2 * keys, HIDDEN)
        for name in ("attn_q", "attn_k", "attn_v"):
            del every[name]
    if architecture in ("arcee", "nemotron", "starcoder2"):
        del every["ffn_gate"]
    if architecture == "starcoder2":
        every |= {"ffn_up": ("mlp.c_fc", INNER, HIDDEN), "ffn_down": ("mlp.c_proj", HIDDEN, INNER)}
    for name, (module, rows, columns) in every.items():
        yield f"{name}.weight", f"{module}.weight", (rows, columns)
        if biases and (architecture in ("llama", "starcoder2") or name in ("attn_q", "attn_k", "attn_v")):
            yield f"{name}.bias", f"{module}.bias", (rows,)
    norms = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    behind = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
    if architecture in ("gemma2", "gemma3"):
        norms |= behind | {"ffn_norm": "pre_feedforward_layernorm"}
    if architecture in ("olmo2", "exaone4"):
        norms = behind
    if architecture == "glm4":
        norms |= {"post_attention_norm": "post_self_attn_layernorm", "post_ffw_norm": "post_mlp_layernorm"}
    if architecture in ("command-r", "cohere2"):
        del norms["ffn_norm"]
    if architecture == "stablelm" and head_norms:  # attention and MLP side by side
        del norms["ffn_norm"]
    if architecture == "seed_oss":
        norms = {"attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm"}
    for name, module in norms.items():
        yield f"{name}.weight", f"{module}.weight", (HIDDEN,)
        if architecture in ("stablelm", "nemotron", "starcoder2"):
            yield f"{name}.bias", f"{module}.bias", (HIDDEN,)
    names = {"qwen3": "_norm", "gemma3": "_norm", "olmo2": "_norm", "exaone4": "_norm", "hunyuan-dense": None}
    if architecture in names:
        query, key = ("query_layernorm", "key_layernorm") if names[architecture] is None else ("q_norm", "k_norm")
        joint = architecture == "olmo2"
        yield "attn_q_norm.weight", f"self_attn.{query}.weight", (queries if joint else HEAD,)
        yield "attn_k_norm.weight", f"self_attn.{key}.weight", (keys if joint else HEAD,)
    if head_norms:
        query, key = ("q_norm", "k_norm") if architecture == "command-r" else ("q_layernorm.norms.{}", "k_layernorm.norms.{}")
        yield "attn_q_norm.weight", f"self_attn.{query}.weight", (HEADS, HEAD)
        yield "attn_k_norm.weight", f"self_attn.{key}.weight", (KV_HEADS, HEAD)


# Context, original context, and the divisors of rotary frequencies for texts beyond it and up to it.
LONG_ROPE = (128, 64, [1.0, 1.6, 5.0, 16.0], [1.0, 1.05, 1.2, 1.5])


def add_positions(writer, architecture, layers, window, growth, long_rope):
    """Windows and how rotary frequencies are scaled."""
    if window or long_rope:
        writer.add_sliding_window(window)
    if long_rope:
        longest, original, longer, shorter = LONG_ROPE
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(longest / original) / math.log(original)))
        for tensor, divisors in (("long", longer), ("short", shorter)):
            writer.add_tensor(f"rope_factors_{tensor}.weight", np.array(divisors, dtype=np.float32))
    if window and architecture in ("olmo2", "exaone4"):
        writer.add_sliding_window_pattern([(layer + 1) % 4 != 0 for layer in range(layers)])
    if growth:
        writer.add_attn_temperature_scale(growth)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(32)
        writer.add_rope_scaling_yarn_beta_fast(32.0)
        writer.add_rope_scaling_yarn_beta_slow(1.0)
        writer.add_rope_scaling_yarn_log_mul(1.0)
    if window and architecture == "olmo2":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(8.0)
        writer.add_rope_scaling_orig_ctx_len(16)
        writer.add_rope_scaling_yarn_beta_fast(32.0)
        writer.add_rope_scaling_yarn_beta_slow(1.0)
    if architecture in ("glm4", "chatglm", "stablelm", "nemotron", "phi3"):
        writer.add_rope_dimension_count(HEAD // 2)


def make_model(folder, name, architecture, tokenizer, kinds, layers=1, biases=False, window=0, parts=0, head_norms=False,
               growth=0, hybrid=False, long_rope=False):
    rng = np.random.default_rng(len(name))
    path = folder / f"{name}.gguf"
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=parts)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv([KV_HEADS] * layers if hybrid else KV_HEADS)
    if hybrid:  # what llama.cpp's converter writes of a Granite 4 without Mamba layers too
        writer.add_ssm_conv_kernel(4)
        writer.add_rope_scaling_finetuned(True)
    if not long_rope:  # of Phi-3 llama.cpp's converter writes no size of a head
        writer.add_key_length(HEAD)
        writer.add_value_length(HEAD)
    if architecture in ("command-r", "cohere2"):
        writer.add_layer_norm_eps(1e-5)
        writer.add_logit_scale(0.0625)
    elif architecture in ("stablelm", "nemotron", "starcoder2"):
        writer.add_layer_norm_eps(1e-5)
    else:
        writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    add_positions(writer, architecture, layers, window, growth, long_rope)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(40.0)
        writer.add_final_logit_softcapping(20.0)
    if architecture == "granite":
        writer.add_attention_scale(0.125)
        writer.add_embedding_scale(12.0)
        writer.add_residual_scale(0.25)
        writer.add_logit_scale(8.0)
    vocabulary = tokenizer(writer)
    tensors = [("token_embd.weight", "model.embed_tokens.weight", (vocabulary, HIDDEN)),
               ("output_norm.weight", "model.norm.weight", (HIDDEN,))]
    if architecture in ("stablelm", "nemotron", "starcoder2"):
        tensors.append(("output_norm.bias", "model.norm.bias", (HIDDEN,)))
    if architecture in ("stablelm", "nemotron"):
        tensors.append(("output.weight", "lm_head.weight", (vocabulary, HIDDEN)))
    for layer in range(layers):
        tensors += [(f"blk.{layer}.{stored}", f"model.layers.{layer}.{module}", shape)
                    for stored, module, shape in linears(architecture, biases, head_norms)]
    expected = {}
    for i, (stored, module, shape) in enumerate(tensors):
        kind = Type.F32 if len(shape) == 1 or stored.endswith("_norm.weight") else kinds[i % len(kinds)]
        value = rng.standard_normal(shape).astype(np.float32)
        heads = {"attn_q.": HEADS, "attn_k.": KV_HEADS}.get(stored.split(".", 2)[-1][:7], 0)
        turn = heads and architecture in ("llama", "smollm3", "granite", "arcee", "mistral3")
        raw = gguf.quants.quantize(interleaved(value, heads) if turn else value, kind)
        writer.add_tensor(stored, raw, raw_dtype=kind)
        read = gguf.quants.dequantize(raw, kind).reshape(shape)
        gain = len(shape) == 1 and stored.endswith(".weight")
        if gain and (architecture.startswith("gemma") or architecture == "nemotron"):
            read = read - np.float32(1)  # files hold gains
        if "{}" in module:
            expected |= {module.format(row): ((shape[1],), bf16(read[row])) for row in range(shape[0])}
            continue
        expected[module] = (shape, bf16(straight(read, heads) if turn else read))
    close(writer)
    write_expected(folder / f"{name}.expected.safetensors", expected)


def make_quantized(folder):
    """Rows of several deviations, some values far out, a row of zeros, one of a constant."""
    rng = np.random.default_rng(7)
    values = (rng.standard_normal((16, 256)) * np.exp(rng.uniform(-8, 2, (16, 1)))).astype(np.float32)
    values[3, ::37] *= 20
    values[5] = 0
    values[6] = -0.75
    writer = gguf.GGUFWriter(folder / "quantized.gguf", "types")
    writer.add_tensor("values", values)
    for kind in [Type.F16, Type.BF16, Type.Q8_0, Type.Q5_0, Type.Q5_1]:
        writer.add_tensor(kind.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    close(writer)
    return values


# Architecture, layers, hidden, inner, heads, key heads, head, whether it has a head of its own.
SIZES = [("llama", 3, 256, 512, 4, 2, 64, True), ("llama", 30, 192, 512, 3, 1, 64, False),
         ("llama", 9, 80, 96, 2, 2, 40, True), ("qwen3", 28, 256, 256, 4, 2, 64, False),
         ("llama", 80, 256, 256, 4, 2, 64, True), ("llama", 80, 256, 256, 4, 4, 64, True),
         ("qwen2", 80, 96, 256, 4, 4, 64, True), ("smollm3", 36, 256, 256, 4, 1, 64, False)]


def write_sized(path, sizes, key_values=None):
    """A model of zeros, or one whose k matrices are these values."""
    architecture, layers, hidden, inner, heads, kv_heads, head, own_head = sizes
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(64)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(1e-5)
    vocabulary = byte_tokenizer(writer, "gpt-2")
    matrices = {"token_embd.weight": (vocabulary, hidden)}
    for layer in range(layers):
        for name, rows, columns in (("attn_q", heads * head, hidden), ("attn_k", kv_heads * head, hidden),
                                    ("attn_v", kv_heads * head, hidden), ("attn_output", hidden, heads * head),
                                    ("ffn_gate", inner, hidden), ("ffn_up", inner, hidden),
                                    ("ffn_down", hidden, inner)):
            matrices[f"blk.{layer}.{name}.weight"] = (rows, columns)
    if own_head:
        matrices["output.weight"] = (vocabulary, hidden)
    for name, shape in matrices.items():
        values = np.zeros(shape, dtype=np.float32) if key_values is None or "attn_k" not in name else key_values
        writer.add_tensor(name, values if key_values is not None else values.astype(np.float16))
    close(writer)


def quantized_types(quantizer, path, kind):
    with tempfile.NamedTemporaryFile(suffix=".gguf") as out:
        subprocess.run([quantizer, "--allow-requantize", path, out.name, kind], check=True, capture_output=True)
        tensors = gguf.GGUFReader(out.name).tensors
        return {tensor.name: (tensor.tensor_type, np.array(tensor.data)) for tensor in tensors}


def make_mixtures(folder, quantizer, values):
    cases = []
    with tempfile.TemporaryDirectory() as temporary:
        path = pathlib.Path(temporary) / "model.gguf"
        for sizes in SIZES:
            write_sized(path, sizes)
            case = dict(zip(("architecture", "layers", "hidden", "inner", "heads", "kv_heads", "head_dim", "own_head"),
                            sizes))
            for kind in ("F16", "BF16", "Q8_0", "Q4_K_M"):
                by_type = {}
                for name, (stored, _) in quantized_types(quantizer, path, kind).items():
                    by_type.setdefault(stored.name, []).append(name)
                usual = max(by_type, key=lambda stored: len(by_type[stored]))
                case[kind] = {stored: names if stored != usual else "all others" for stored, names in by_type.items()}
            cases.append(case)
        write_sized(path, ("llama", 1, 256, 256, 4, 1, 16, True), values)
        errors = {}
        for kind, stored in (("Q4_K_M", Type.Q4_K), ("Q5_K_M", Type.Q5_K), ("Q6_K", Type.Q6_K)):
            found, raw = quantized_types(quantizer, path, kind)["blk.0.attn_k.weight"]
            assert found == stored
            difference = gguf.quants.dequantize(raw, found).astype(np.float64) - values
            squares = (values.astype(np.float64) ** 2).sum(axis=1)
            errors[stored.name] = [float(e / s) if s else 0.0 for e, s in zip((difference ** 2).sum(axis=1), squares)]
    (folder / "mixtures.json").write_text(json.dumps(cases, indent=1) + "\n")
    (folder / "errors.json").write_text(json.dumps(errors, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/fixtures/gguf"))
    parser.add_argument("--quantizer", metavar="llama-quantize")
    parser.add_argument("--ggml", metavar="libggml-base.so")
    arguments = parser.parse_args()
    folder = arguments.out
    make_types(folder)
    if arguments.ggml:
        make_bits(folder, arguments.ggml)
    values = make_quantized(folder)
    if arguments.quantizer:
        make_mixtures(folder, arguments.quantizer, values)
    make_model(folder, "qwen3", "qwen3", lambda w: byte_tokenizer(w, "qwen2"), [Type.Q5_0, Type.Q8_0])
    make_model(folder, "smollm3", "smollm3", lambda w: byte_tokenizer(w, "llama-bpe"), [Type.Q4_0, Type.BF16], layers=4)
    make_model(folder, "mistral", "llama", piece_tokenizer, [Type.Q5_1], window=7)
    make_model(folder, "llama_bias", "llama", piece_tokenizer, [Type.Q8_0, Type.F16], biases=True)
    make_model(folder, "granite", "granite", lambda w: byte_tokenizer(w, "gpt-2"), [Type.Q8_0])
    make_model(folder, "gemma", "gemma", piece_tokenizer, [Type.Q8_0])
    make_model(folder, "gemma2", "gemma2", piece_tokenizer, [Type.Q8_0], layers=2, window=7)
    make_model(folder, "gemma3", "gemma3", piece_tokenizer, [Type.Q8_0, Type.F16], layers=7, window=7)
    make_model(folder, "olmo2", "olmo2", lambda w: byte_tokenizer(w, "gpt-2"), [Type.Q8_0])
    make_model(folder, "olmo3", "olmo2", lambda w: byte_tokenizer(w, "gpt-2"), [Type.Q8_0], layers=4, window=7)
    make_model(folder, "exaone4", "exaone4", lambda w: byte_tokenizer(w, "gpt-2"), [Type.Q8_0])
    make_model(folder, "exaone4_window", "exaone4", lambda w: byte_tokenizer(w, "gpt-2"), [Type.Q8_0], layers=4, window=7)
    make_model(folder, "glm4", "glm4", lambda w: byte_tokenizer(w, "gpt-2"), [Type.Q8_0], biases=True)
    make_model(folder, "hunyuan", "hunyuan-dense", lambda w: byte_tokenizer(w, "hunyuan-dense"), [Type.Q8_0])
    make_model(folder, "command_r", "command-r", lambda w: byte_tokenizer(w, "command-r"), [Type.Q8_0])
    make_model(folder, "cohere2", "cohere2", lambda w: byte_tokenizer(w, "command-r"), [Type.Q8_0], layers=4, window=7)
    make_model(folder, "phi3", "phi3", piece_tokenizer, [Type.Q8_0], window=7)
    make_model(folder, "phi4_mini", "phi3", lambda w: byte_tokenizer(w, "gpt-4o"), [Type.Q8_0], long_rope=True)
    make_model(folder, "chatglm", "chatglm", lambda w: byte_tokenizer(w, "glm4"), [Type.Q8_0], biases=True)
    make_model(folder, "arcee", "arcee", lambda w: byte_tokenizer(w, "llama-bpe"), [Type.Q8_0])
    make_model(folder, "stablelm", "stablelm", lambda w: byte_tokenizer(w, "stablelm2"), [Type.Q8_0], biases=True)
    make_model(folder, "nemotron", "nemotron", piece_tokenizer, [Type.Q8_0])
    make_model(folder, "ernie4_5", "ernie4_5", piece_tokenizer, [Type.Q8_0])
    make_model(folder, "seed_oss", "seed_oss", lambda w: byte_tokenizer(w, "gpt-2"), [Type.Q8_0], biases=True)
    make_model(folder, "command_r_plus", "command-r", lambda w: byte_tokenizer(w, "command-r"), [Type.Q8_0], head_norms=True)
    make_model(folder, "stablelm_12b", "stablelm", lambda w: byte_tokenizer(w, "stablelm2"), [Type.Q8_0], head_norms=True)
    make_model(folder, "granite4", "granite", lambda w: byte_tokenizer(w, "gpt-2"), [Type.Q8_0], layers=2, hybrid=True)
    make_model(folder, "ministral3", "mistral3", lambda w: byte_tokenizer(w, "tekken"), [Type.Q8_0], growth=0.1)
    make_model(folder, "mistral_small", "mistral3", lambda w: byte_tokenizer(w, "tekken"), [Type.Q8_0])
    make_model(folder, "starcoder2", "starcoder2", lambda w: byte_tokenizer(w, "starcoder"), [Type.Q8_0], biases=True, window=7)
    make_model(folder, "split", "llama", lambda w: byte_tokenizer(w, "gpt-2"), [Type.Q8_0, Type.Q4_0], parts=5)


if __name__ == "__main__":
    main()
