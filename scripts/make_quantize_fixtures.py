#!/usr/bin/env python3
"""Writes tests/fixtures/{quantize,bnb}: numbers quantised by bitsandbytes, and tiny models that transformers saved so.

Needs torch, transformers 5, accelerate and bitsandbytes (CPU will do; with AVX2 or AVX-512, see tensor/codebook.h).
  make_quantize_fixtures.py [FOLDER]     FOLDER is tests/fixtures unless told
"""
import json
import os
import pathlib
import shutil
import sys

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # the default kernels as they are written
import torch  # noqa: E402

KERNELS = {}


def remember(register):
    """torch.library.register_kernel that also keeps the function. bitsandbytes 0.50's library for the CPU departs from
    its default kernels: it searches the 8-bit codebook by an approximate table (about one code in 10000 is not the
    nearest), and takes wrong scales of nf4 for some rows that are not whole blocks (of 80, with AVX-512)."""
    def wrapped(name, device, *args, **kwargs):
        inner = register(name, device, *args, **kwargs)

        def decorate(function):
            KERNELS[name, device] = function
            return inner(function)
        return decorate
    return wrapped


torch.library.register_kernel = remember(torch.library.register_kernel)
import bitsandbytes.functional as bnb  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM  # noqa: E402

SCALE_BLOCK = 256


def nf4_numbers(codes, state, dtype):
    scales = state.absmax
    if state.nested:
        scales = bnb.dequantize_blockwise(scales, state.state2) + state.offset
    return KERNELS["bitsandbytes::dequantize_4bit", "default"](codes, scales, 64, "nf4", state.shape, dtype)


def int8(x, result, case):
    codes, scales, _ = bnb.int8_vectorwise_quant(x)
    values = bnb.int8_vectorwise_dequant(codes, scales)
    result |= {f"{case}.int8.codes": codes, f"{case}.int8.scales": scales, f"{case}.int8.fp32": values,
               f"{case}.int8.bf16": values.bfloat16()}


def fp8(x, result, case):
    scales = x.float().abs().max(dim=1).values / 448
    codes = (x.float() / scales[:, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    codes = torch.where(scales[:, None] > 0, codes.view(torch.uint8), 0)
    values = codes.view(torch.float8_e4m3fn).float() * scales[:, None]
    result |= {f"{case}.fp8.codes": codes, f"{case}.fp8.scales": scales, f"{case}.fp8.fp32": values,
               f"{case}.fp8.bf16": values.bfloat16()}


def nf4(x, result, case):
    codes, state = bnb.quantize_4bit(x, quant_type="nf4")
    offset = state.absmax.mean()
    centred = state.absmax - offset
    count = centred.numel()
    # Zeros after a last short block change neither its scale nor its codes.
    padded = torch.nn.functional.pad(centred, (0, -count % SCALE_BLOCK))
    book = bnb.create_dynamic_map()
    scale_codes, block_scales = KERNELS["bitsandbytes::quantize_blockwise", "default"](padded, book, SCALE_BLOCK)
    nested = bnb.QuantState(absmax=scale_codes[:count].contiguous(), shape=x.shape, code=state.code, blocksize=64,
                            quant_type="nf4", dtype=torch.float32, offset=offset,
                            state2=bnb.QuantState(absmax=block_scales, blocksize=SCALE_BLOCK, code=book,
                                                  dtype=torch.float32))
    result |= {f"{case}.nf4.codes": codes.flatten(), f"{case}.nf4.scales": state.absmax,
               f"{case}.nf4.offset": offset[None], f"{case}.nf4.scale_codes": nested.absmax,
               f"{case}.nf4.block_scales": block_scales}
    for suffix, quantised in (("", nested), (".plain", state)):
        for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            result[f"{case}.nf4{suffix}.{name}"] = nf4_numbers(codes, quantised, dtype)


def edges():
    """Rows of 64: zeros, one huge number, one tiny one, ties of int8 and of nf4, alike, only negative."""
    x = torch.randn(8, 64)
    x[0] = 0
    x[1, 5] = -3e38
    x[2] = torch.linspace(-1, 1, 64) * 1e-35
    x[3] = torch.arange(64) - 31.5
    x[3, 0] = 127
    book = bnb.get_4bit_type("nf4", device="cpu")
    x[4, :15] = (book[:-1] + book[1:]) / 2
    x[4, 15:] = 1
    x[5] = -0.37
    x[6] = -x[6].abs()
    return x


def make_numbers(folder):
    torch.manual_seed(0)
    result = {"nf4_codebook": bnb.get_4bit_type("nf4", device="cpu"), "dynamic_codebook": bnb.create_dynamic_map()}
    cases = {"fp32": torch.randn(24, 72) * 0.05, "bf16": torch.randn(264, 72).mul(0.05).bfloat16(),
             "fp16": torch.randn(16, 72).mul(0.05).half(), "edges": edges()}
    for case, x in cases.items():
        result[f"{case}.x"] = x
        for quantise in (int8, fp8, nf4):
            quantise(x, result, case)
    # The large case is there for the second quantisation: of its numbers those of nf4 in bf16 are enough.
    numbers = ("int8.fp32", "int8.bf16", "fp8.fp32", "fp8.bf16", "nf4.fp32", "nf4.plain.fp32", "nf4.plain.bf16")
    result = {k: v for k, v in result.items() if k not in {f"bf16.{name}" for name in numbers}}
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in result.items()}, folder / "numbers.safetensors")


MODELS = {
    "nf4": BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                              bnb_4bit_compute_dtype=torch.bfloat16),
    "nf4_single": BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    "int8": BitsAndBytesConfig(load_in_8bit=True),
}


def make_models(folder, scratch):
    """The linears of one layer, quantised and saved by transformers; `down_proj.<model>` is what that stands for."""
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=32, intermediate_size=80, num_hidden_layers=1, num_attention_heads=2,
                         num_key_value_heads=1, head_dim=16, vocab_size=40, max_position_embeddings=128,
                         tie_word_embeddings=True)
    LlamaForCausalLM(config).bfloat16().save_pretrained(scratch)
    expected = {}
    for name, quantisation in MODELS.items():
        model = LlamaForCausalLM.from_pretrained(scratch, quantization_config=quantisation, device_map="cpu",
                                                 dtype=torch.bfloat16)
        shutil.rmtree(folder / name, ignore_errors=True)
        model.save_pretrained(folder / name)
        (folder / name / "generation_config.json").unlink(missing_ok=True)
        weight = model.model.layers[0].mlp.down_proj.weight
        if name == "int8":
            values = bnb.int8_vectorwise_dequant(weight.data, weight.SCB).bfloat16()
        else:
            values = nf4_numbers(weight.data, weight.quant_state, torch.bfloat16)
        expected["down_proj." + name] = values.contiguous()
        stored = load_file(folder / name / "model.safetensors")
        print(name, json.dumps({k: [str(v.dtype), list(v.shape)] for k, v in stored.items() if "down_proj" in k}))
    save_file(expected, folder / "dequantised.safetensors")
    shutil.rmtree(scratch)


def main():
    here = pathlib.Path(__file__).resolve().parent.parent / "tests" / "fixtures"
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here
    torch.set_num_threads(1)
    print("torch", torch.__version__, "transformers", transformers.__version__, torch.backends.cpu.get_cpu_capability())
    make_numbers(folder / "quantize")
    make_models(folder / "bnb", folder / "bnb" / "scratch")


if __name__ == "__main__":
    main()
