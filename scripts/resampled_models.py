"""Tiny models whose projector is a resampler: MiniCPM-Llama3-V 2.5, from transformers' Llama and SigLIP blocks and
torch's attention, with the names of tensors that its files have. Every view is looked at by itself, and the i-th of its
n patches takes the row floor(side i / n) of the positions, which is what the model's code computes of a strip of patches.
"""

import json

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.idefics2.configuration_idefics2 import Idefics2VisionConfig
from transformers.models.idefics2.modeling_idefics2 import Idefics2VisionTransformer

from make_fixtures import draw_weights

QUERIES, PATCH, SIDE, HEAD = 5, 4, 7, 128
TEXT = {"hidden_size": HEAD, "intermediate_size": 100, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 2, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "max_position_embeddings": 256,
        "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}  # fmt: skip
VISION = {"hidden_size": 48, "intermediate_size": 68, "num_hidden_layers": 2, "num_attention_heads": 3,
          "image_size": SIDE * PATCH, "patch_size": PATCH}  # fmt: skip
MODELS = ("minicpmv",)


def sines(rows, columns, width):
    """[rows * columns, width]: sine and cosine of the column, then of the row, in fp64."""
    frequencies = 10000.0 ** -(torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    angles = [axis.flatten().double()[:, None] * frequencies for axis in (x, y)]
    return torch.cat([f(a) for a in angles for f in (torch.sin, torch.cos)], dim=1)


class Resampler(nn.Module):
    def __init__(self, queries, into, width):
        super().__init__()
        self.query = nn.Parameter(torch.empty(queries, width))
        self.proj = nn.Parameter(torch.empty(width, width))
        self.kv_proj = nn.Linear(into, width, bias=False)
        self.attn = nn.MultiheadAttention(width, width // HEAD)
        self.ln_q, self.ln_kv, self.ln_post = (nn.LayerNorm(width, eps=1e-6) for _ in range(3))

    def forward(self, x, rows, columns):
        keys = self.ln_kv(self.kv_proj(x))
        place = sines(rows, columns, keys.shape[1]).to(keys.dtype)
        out = self.attn(self.ln_q(self.query), keys + place, keys, need_weights=False)[0]
        return self.ln_post(out) @ self.proj


class MiniCpmV(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.llm = LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, attn_implementation="eager", **TEXT))
        self.config = self.llm.config
        self.vpm = Idefics2VisionTransformer(Idefics2VisionConfig(attn_implementation="eager", **VISION))
        self.resampler = Resampler(QUERIES, VISION["hidden_size"], TEXT["hidden_size"])

    def look(self, patches, rows, columns):
        embeddings, count = self.vpm.embeddings, len(patches)
        convolution = embeddings.patch_embedding
        x = nn.functional.linear(patches, convolution.weight.flatten(1), convolution.bias)
        x = x + embeddings.position_embedding(torch.arange(count) * SIDE // count)
        x = self.vpm.encoder(inputs_embeds=x[None], attention_mask=None).last_hidden_state
        return self.resampler(self.vpm.post_layernorm(x)[0], rows, columns)

    def forward(self, ids, images, pixels):
        x = self.llm.get_input_embeddings()(ids)
        first = 0
        for image in images:
            count = image["rows"] * image["columns"]
            seen = self.look(pixels[first : first + count].to(x.dtype), image["rows"], image["columns"])
            x = torch.cat([x[: image["begin"]], seen, x[image["begin"] + QUERIES :]])
            first += count
        return self.llm(inputs_embeds=x[None]).logits[0]


def write(folder, kind, seed, vocabulary):
    model = MiniCpmV(vocabulary)
    draw_weights(model, seed)
    folder.mkdir(parents=True)
    save_file({name: t.contiguous() for name, t in model.state_dict().items()}, folder / "model.safetensors")
    config = {"architectures": ["MiniCPMV"], "model_type": kind, "version": 2.5, "vocab_size": vocabulary,
              "torch_dtype": "float32", "query_num": QUERIES, "patch_size": PATCH, "image_size": SIDE * PATCH,
              "slice_mode": True, "drop_vision_last_layer": False, "batch_vision_input": True,
              "slice_config": {"max_slice_nums": 9, "patch_size": PATCH, "scale_resolution": 8},
              "vision_config": {"model_type": "idefics2", **VISION}, **TEXT}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def load(folder, dtype):
    config = json.loads((folder / "config.json").read_text())
    model = MiniCpmV(config["vocab_size"]).to(dtype)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.to(dtype).eval()
