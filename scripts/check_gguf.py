#!/usr/bin/env python3
"""Compares a GGUF file that snug exported with the model directory that it is of, by the gguf package.

    check_gguf.py MODEL_DIR FILE.gguf

Every matrix has the bytes that the package makes of the model's values in its type, where the package can write that
type; in the K types, which it reads alone, the relative error is printed. LongRope's divisors are the model's. Needs
gguf, safetensors and torch.
"""
import argparse
import json
import pathlib

import gguf
import numpy as np
from safetensors import safe_open

INTERLEAVED = ("llama", "smollm3", "granite")  # architectures that keep rotary halves of q and k as neighbours
WRITTEN = ("F32", "F16", "BF16", "Q8_0", "Q5_0", "Q5_1")


def stored_order(values, heads):
    half = values.shape[0] // heads // 2
    return values.reshape(heads, 2, half, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, metavar="MODEL_DIR")
    parser.add_argument("file", type=pathlib.Path, metavar="FILE.gguf")
    options = parser.parse_args()
    reader = gguf.GGUFReader(options.file)
    config = json.loads((options.model / "config.json").read_text())
    architecture = reader.fields["general.architecture"].contents()
    kind = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    heads = {".attn_q.": config["num_attention_heads"],
             ".attn_k.": config.get("num_key_value_heads", config["num_attention_heads"])}
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    same, errors = 0, {}
    for path in sorted(options.model.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for key in file.keys():
                name = names.get_name(key, try_suffixes=(".weight", ".bias"))
                if name not in tensors and key == "lm_head.weight":
                    continue  # the embedding's
                tensor, values = tensors.pop(name), file.get_tensor(key).float().numpy()
                for part, count in heads.items():
                    if part in name and architecture in INTERLEAVED:
                        values = stored_order(values, count)
                if architecture.startswith("gemma") and values.ndim == 1:
                    values = values + 1  # files hold gains
                if tensor.tensor_type.name in WRITTEN:
                    expected = gguf.quants.quantize(values, tensor.tensor_type)
                    assert expected.tobytes() == tensor.data.tobytes(), f"{name}: other bytes"
                    same += 1
                else:
                    found = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(values.shape)
                    error = float(np.sqrt(((found - values) ** 2).sum() / (values ** 2).sum()))
                    errors[tensor.tensor_type.name] = max(error, errors.get(tensor.tensor_type.name, 0))
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    for length in ("long", "short"):
        if f"{length}_factor" not in scaling:
            continue
        divisors = np.array(scaling[f"{length}_factor"], dtype=np.float32)
        tensor = tensors.pop(f"rope_factors_{length}.weight")
        assert divisors.tobytes() == tensor.data.tobytes(), f"{tensor.name}: other bytes"
        same += 1
    left = sorted(set(tensors) - {"rope_freqs.weight"})
    assert not left, f"in the file alone: {left}"
    print(json.dumps({"same_bytes": same, "largest_errors": errors}))


if __name__ == "__main__":
    main()
