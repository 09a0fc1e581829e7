#!/usr/bin/env python3
"""Writes tests/fixtures/quantized: a tiny Llama in each format that snug imports, what its codes stand for, and its loss.

NAME/config.json, NAME/model.safetensors    the model as the format's own programs write it
NAME/expected.safetensors                   its tensors as a plain model: what was quantised in bf16, the rest as it is
reference.json                              for each the mean loss that transformers computes in fp32 of the plain model
                                            on the tokens `ids`

Models of compressed-tensors are compressed, and their values decompressed, by that package. Codes of GPTQ and AWQ are
drawn, packed here as the formats have them, and their values computed from the codes before they were packed. Those of
"fp8" are by torch's float8_e4m3fn, their values by transformers' own reader where its blocks divide the matrix. Models
that transformers loads on a CPU by itself (fp8, compressed-tensors) are loaded by it too, in fp32, and must have the same
weights once these are rounded to bf16.

Needs torch, transformers 5 and compressed-tensors.
  make_quantized_fixtures.py [FOLDER]     FOLDER is tests/fixtures unless told
"""
import json
import pathlib
import re
import shutil
import sys

import numpy as np
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

import make_fixtures as fixtures

E4M3 = torch.float8_e4m3fn
GROUP = 16


def is_linear(name):
    return name.endswith("_proj.weight")


def bf16(values):
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).bfloat16()


# ---- GPTQ and AWQ ----------------------------------------------------------------------------------------------------

def round_to_codes(weight, groups, bits, symmetric):
    """Codes [in, out], zero points and fp16 scales [groups, out] for inputs in `groups`, nearest to the weight."""
    count, top = int(groups.max()) + 1, 2**bits - 1
    transposed = weight.float().numpy().T
    codes = np.zeros(transposed.shape, np.int64)
    zeros, scales = np.zeros((count, transposed.shape[1]), np.int64), np.zeros((count, transposed.shape[1]), np.float16)
    for g in range(count):
        rows = transposed[groups == g]
        low, high = np.minimum(rows.min(0), 0), np.maximum(rows.max(0), 0)
        if symmetric:
            high = np.maximum(-low, high)
            low = -high
        scales[g] = np.maximum((high - low) / top, 1e-5)
        zeros[g] = (top + 1) // 2 if symmetric else np.round(-low / scales[g].astype(np.float32))
        zeros[g] = np.clip(zeros[g], 0, top)
        codes[groups == g] = np.clip(np.round(rows / scales[g].astype(np.float32)) + zeros[g], 0, top)
    return codes, zeros, scales


def values_of(codes, zeros, scales, groups):
    return bf16((scales.astype(np.float32)[groups] * (codes - zeros[groups]).astype(np.float32)).T)


def pack(codes, bits, axis, order=None):
    """Words of 32 bits, the first code in the lowest bits; `order` says which of a word's codes come first."""
    per_word = 32 // bits
    codes = np.moveaxis(codes, axis, -1).astype(np.uint64)
    codes = codes.reshape(*codes.shape[:-1], -1, per_word)
    if order:
        codes = codes[..., order]
    words = (codes << (np.arange(per_word, dtype=np.uint64) * np.uint64(bits))).sum(-1).astype(np.uint32)
    return np.ascontiguousarray(np.moveaxis(words, -1, axis))


def int32(words):
    return torch.from_numpy(np.ascontiguousarray(words).view(np.int32).copy())


def gptq(weight, rng, *, bits, group=GROUP, symmetric=True, order=False, v2=False, with_index=True):
    size = group if group > 0 else weight.shape[1]
    groups = np.arange(weight.shape[1]) // size
    if order:
        groups = rng.permutation(groups)
    codes, zeros, scales = round_to_codes(weight, groups, bits, symmetric)
    words = pack(zeros, bits, 1)
    if not v2:  # each zero point less 1, the word taken as a whole
        words = words - np.uint32(0xffffffff // (2**bits - 1))
    parts = {"qweight": int32(pack(codes, bits, 0)), "qzeros": int32(words), "scales": torch.from_numpy(scales)}
    if with_index:
        parts["g_idx"] = torch.from_numpy(groups.astype(np.int32))
    return parts, values_of(codes, zeros, scales, groups)


def awq(weight, _):
    groups = np.arange(weight.shape[1]) // GROUP
    codes, zeros, scales = round_to_codes(weight, groups, 4, False)
    interleaved = [0, 2, 4, 6, 1, 3, 5, 7]
    parts = {"qweight": int32(pack(codes, 4, 1, interleaved)), "qzeros": int32(pack(zeros, 4, 1, interleaved)),
             "scales": torch.from_numpy(scales)}
    return parts, values_of(codes, zeros, scales, groups)


# ---- compressed-tensors ----------------------------------------------------------------------------------------------

def blocks_of(weight, rows, cols):
    """The weight as [row blocks, rows, column blocks, columns], zeros where it ends before."""
    padded = torch.nn.functional.pad(weight, (0, -weight.shape[1] % cols, 0, -weight.shape[0] % rows))
    return padded.reshape(padded.shape[0] // rows, rows, padded.shape[1] // cols, cols)


def scales_of(weight, args, dtype):
    """Scales and zero points as an observer of minima and maxima has them."""
    weight = weight.float()
    if args.strategy == "block":
        blocks = blocks_of(weight, *args.block_structure)
        low, high = blocks.amin((1, 3)), blocks.amax((1, 3))
    elif args.strategy == "group":
        groups = weight.unflatten(1, (-1, args.group_size))
        low, high = groups.amin(2), groups.amax(2)
    elif args.strategy == "channel":
        low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    else:
        low, high = weight.min().reshape(1), weight.max().reshape(1)
    low, high = low.clamp(max=0), high.clamp(min=0)
    if args.type == "float":
        return (torch.maximum(-low, high) / 448).clamp(min=1e-6).to(dtype), None
    levels = 2**args.num_bits - 1
    if args.symmetric:
        return (torch.maximum(-low, high) * 2 / levels).clamp(min=1e-6).to(dtype), None
    scales = ((high - low) / levels).clamp(min=1e-6).to(dtype)
    half = 2**(args.num_bits - 1)
    zeros = (torch.round(-low / scales.float()) - half).clamp(-half, half - 1).to(torch.int8)
    return scales, zeros


def compressed(weight, _, *, form, scale_dtype=torch.bfloat16, extra=(), **weights):
    args = QuantizationArgs(**weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.get_value_from_registry(form)
    scales, zeros = scales_of(weight, args, scale_dtype)
    state = {"weight": weight.to(scale_dtype), "weight_scale": scales}
    if zeros is not None:
        state["weight_zero_point"] = zeros
    parts = compressor.compress(state, scheme)
    widened = parts | {"weight_scale": parts["weight_scale"].float()}
    values = compressor.decompress(widened, scheme)["weight"].bfloat16()
    if scale_dtype == torch.bfloat16:  # as the package itself has them
        assert torch.equal(values, compressor.decompress(parts, scheme)["weight"])
    return parts | {name: torch.tensor([0.5]) for name in extra}, values


# ---- fp8 -------------------------------------------------------------------------------------------------------------

def fp8(weight, _, *, block=None, rows=False, name="weight_scale_inv", extra=()):
    weight = weight.float()
    high, wide = (list(block) if block else [1 if rows else weight.shape[0], weight.shape[1]])
    blocks = blocks_of(weight, high, wide)
    scales = (blocks.abs().amax((1, 3)) / 448).clamp(min=1e-6)
    spread = scales.repeat_interleave(high, 0).repeat_interleave(wide, 1)[:weight.shape[0], :weight.shape[1]]
    codes = (weight / spread).clamp(-448, 448).to(E4M3)
    values = (codes.float() * spread).bfloat16()
    if weight.shape[0] % high == 0 and weight.shape[1] % wide == 0:
        theirs = Fp8Dequantize(None)._dequantize_one(codes, scales, output_dtype=torch.bfloat16)
        assert torch.equal(values, theirs)
    if not block and not rows:
        scales = scales.reshape(())
    return {"weight": codes, name: scales} | {part: torch.tensor(0.5) for part in extra}, values


# ---- Models ----------------------------------------------------------------------------------------------------------

def of_compressed_tensors(form, scale_dtype=torch.bfloat16, extra=(), **weights):
    inputs = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False} if extra else None
    args = QuantizationArgs(**weights).model_dump(mode="json")
    group = {"targets": ["Linear"], "weights": args, "input_activations": inputs}
    if not extra:
        group["format"] = form  # as its newer versions write it
    config = {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
              "ignore": ["lm_head"], "config_groups": {"group_0": group}}
    return config, lambda w, rng: compressed(w, rng, form=form, scale_dtype=scale_dtype, extra=extra, **weights)


def of_gptq(bits, group=GROUP, symmetric=True, order=False, v2=False, with_index=True, dynamic=None):
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": order, "sym": symmetric,
              "checkpoint_format": "gptq_v2" if v2 else "gptq", "damp_percent": 0.1}
    config |= {"dynamic": dynamic} if dynamic else {}

    def quantise(weight, rng, own={}):
        size, ordered = own.get("group_size", group), own.get("desc_act", order)
        return gptq(weight, rng, bits=own.get("bits", bits), group=size, symmetric=symmetric, order=ordered, v2=v2,
                    with_index=with_index or ordered)
    return config, quantise


def of_fp8(**how):
    config = {"quant_method": "fp8", "activation_scheme": "static" if "extra" in how else "dynamic",
              "weight_block_size": how.get("block"), "modules_to_not_convert": ["lm_head"]}
    return config, lambda w, rng: fp8(w, rng, **how)


AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True,
       "modules_to_not_convert": None}
MODELS = {
    "gptq4": of_gptq(4),
    "gptq4_order": of_gptq(4, symmetric=False, order=True),
    "gptq2_v2": of_gptq(2, group=-1, symmetric=False, v2=True),
    "gptq8": of_gptq(8, symmetric=False, with_index=False),
    "awq": (AWQ, awq),
    "int8_channel": of_compressed_tensors("int-quantized", num_bits=8, strategy="channel"),
    "int8_tensor": of_compressed_tensors("naive-quantized", torch.float32, num_bits=8, strategy="tensor",
                                         symmetric=False),
    "int8_group": of_compressed_tensors("int-quantized", num_bits=8, strategy="group", group_size=GROUP,
                                        symmetric=False),
    "packed4": of_compressed_tensors("pack-quantized", torch.float16, num_bits=4, strategy="group", group_size=GROUP),
    "packed4_zeros": of_compressed_tensors("pack-quantized", num_bits=4, strategy="group", group_size=GROUP,
                                           symmetric=False),
    "packed8": of_compressed_tensors("pack-quantized", num_bits=8, strategy="channel"),
    "float_channel": of_compressed_tensors("float-quantized", num_bits=8, type="float", strategy="channel"),
    "float_tensor": of_compressed_tensors("float-quantized", num_bits=8, type="float", strategy="tensor",
                                          extra=("input_scale",)),
    "float_block": of_compressed_tensors("float-quantized", torch.float32, num_bits=8, type="float", strategy="block",
                                         block_structure=[16, 32]),
    "fp8_block": of_fp8(block=[16, 16]),
    "fp8_ragged": of_fp8(block=[32, 24]),
    "fp8_tensor": of_fp8(extra=("activation_scale",)),
    "fp8_rows": of_fp8(rows=True, name="weight_scale"),
    "gptq_dynamic": of_gptq(4, with_index=False, dynamic={
        r".*\.mlp\.(down|up)": {"bits": 8, "group_size": 8, "damp_percent": 0.05},
        r"+:model\.layers\.0\.self_attn\.q_": {"desc_act": True}, r"-:.*\.v_proj": {}, r".*v_proj": {"bits": 2},
        r".*o_proj": {"group_size": -1}, "layers": {"bits": 2}}),
}
# transformers makes whole blocks of the matrices of float_block and fp8_ragged, and rounds activations in float_tensor.
LOADED = [name for name in MODELS
          if name.startswith(("int8", "packed", "float_channel", "fp8_block", "fp8_tensor"))]


def loss_of(model, ids):
    with torch.no_grad():
        loss, count = fixtures.loss_sum(model, {"input_ids": ids, "labels": ids})
    return loss.item() / count


def rule_of(config, module):
    """What the first key of GPTQ's "dynamic" says that the module's name begins as; None where it stays plain."""
    for key, own in config.get("dynamic", {}).items():
        if re.match(key.removeprefix("-:").removeprefix("+:"), module):
            return None if key.startswith("-:") else own
    return {}


def make_model(folder, weights, config, quantise, rng):
    stored, plain = {}, {}
    for name, value in weights.items():
        own = rule_of(config, name.removesuffix(".weight"))
        if not is_linear(name) or own is None:
            stored[name] = plain[name] = value
            continue
        parts, plain[name] = quantise(value, rng, **({"own": own} if own else {}))
        stored |= {name.removesuffix("weight") + part: tensor.contiguous() for part, tensor in parts.items()}
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    save_file(plain, folder / "expected.safetensors")
    text = json.loads((folder / "config.json").read_text()) | {"quantization_config": config}
    (folder / "config.json").write_text(json.dumps(text, indent=1) + "\n")
    return plain


def main():
    here = pathlib.Path(__file__).resolve().parent.parent / "tests" / "fixtures"
    folder = (pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here) / "quantized"
    torch.set_num_threads(1)
    shutil.rmtree(folder, ignore_errors=True)
    ids = torch.randint(0, 40, (24,), generator=torch.Generator().manual_seed(3)).tolist()
    reference = {"ids": ids, "loss": {}}
    for seed, (name, (config, quantise)) in enumerate(MODELS.items()):
        half = config["quant_method"] in ("gptq", "awq")
        family = {"dtype": torch.float16 if half else torch.bfloat16,
                  "config": LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=1,
                                        num_attention_heads=2, num_key_value_heads=1, head_dim=16, vocab_size=40,
                                        max_position_embeddings=128, tie_word_embeddings=half, attention_bias=half)}
        fixtures.write_model(folder / name, family, seed)
        weights = load_file(folder / name / "model.safetensors")
        if not half:
            weights["model.layers.0.self_attn.o_proj.weight"][0] = 0.0  # a row of zeros
            weights["model.layers.0.mlp.up_proj.weight"][3:7] *= 100  # rows of another size
        else:
            weights["model.layers.0.mlp.up_proj.weight"][:5].abs_()  # zero points of 0
        plain = make_model(folder / name, weights, config, quantise, np.random.default_rng(seed))
        settings = AutoConfig.from_pretrained(folder / name)
        del settings.quantization_config
        model = AutoModelForCausalLM.from_config(settings, attn_implementation="eager").float().eval()
        model.load_state_dict({n: v.float() for n, v in plain.items()}, strict=False)
        reference["loss"][name] = loss_of(model, ids)
        print(name, reference["loss"][name])
        if name in LOADED:
            theirs = fixtures.load_model(folder / name, torch.float32)
            print(name, "unrounded", loss_of(theirs, ids))  # compressed-tensors decompresses in the first forward
            for weight, value in plain.items():
                assert torch.equal(theirs.get_parameter(weight).to(value.dtype), value), (name, weight)
    (folder / "reference.json").write_text(json.dumps(reference, indent=1) + "\n")


if __name__ == "__main__":
    main()
