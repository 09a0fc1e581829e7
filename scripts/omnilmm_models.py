"""A tiny OmniLMM, restated with torch: an EVA CLIP tower as timm's Eva with use_post_norm computes it, whose last block
does nothing, a resampler with a stored table of positions, and transformers' Mistral, with the names of tensors that the
model's files have. All images are of one size, so both tables of positions are resized: the tower's as timm's
resample_abs_pos_embed does it, with antialiasing, the resampler's without.
"""

import json

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import MistralConfig, MistralForCausalLM

from make_fixtures import draw_weights
from resampled_models import HEAD, sines
from resampled_models import Resampler as SineResampler

GRID, PATCH, SIDE, TABLE = 2, 4, 5, 3  # sides: of queries, of a patch, of an image and of the tower's table in patches
QUERIES = GRID * GRID
TEXT = {"hidden_size": HEAD, "intermediate_size": 100, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 2, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "max_position_embeddings": 256,
        "sliding_window": 24, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}  # fmt: skip
VISION = {"img_size": TABLE * PATCH, "patch_size": PATCH, "embed_dim": 48, "depth": 3, "num_heads": 3,
          "mlp_ratio": 1.4375}  # fmt: skip
MODELS = ("omnilmm",)
TARGETS = r"model\.layers\..*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"


def resized(table, side, antialias):
    """A square of rows as one of side x side."""
    old = int(len(table) ** 0.5)
    if old == side:
        return table
    square = table.float() if table.dtype != torch.float64 else table
    square = square.reshape(1, old, old, -1).permute(0, 3, 1, 2)
    square = F.interpolate(square, size=(side, side), mode="bicubic", antialias=antialias, align_corners=False)
    return square.permute(0, 2, 3, 1).flatten(0, 2).to(table.dtype)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.q_bias, self.v_bias = (nn.Parameter(torch.empty(width)) for _ in range(2))
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        bias = torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])
        q, k, v = F.linear(x, self.qkv.weight, bias).reshape(len(x), 3, self.heads, -1).permute(1, 2, 0, 3)
        weights = (q @ k.transpose(1, 2) * q.shape[-1] ** -0.5).softmax(-1)
        return self.proj((weights @ v).transpose(0, 1).flatten(1))


class Mlp(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.attn, self.mlp = Attention(width, heads), Mlp(width, inner)
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=1e-6) for _ in range(2))

    def forward(self, x):
        x = x + self.norm1(self.attn(x))
        return x + self.norm2(self.mlp(x))


class Eva(nn.Module):
    def __init__(self, img_size, patch_size, embed_dim, depth, num_heads, mlp_ratio):
        super().__init__()
        self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(torch.empty(1, 1 + (img_size // patch_size) ** 2, embed_dim))
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(3, embed_dim, patch_size, patch_size)
        inner = int(embed_dim * mlp_ratio)
        blocks = [Block(embed_dim, num_heads, inner) for _ in range(depth - 1)]
        self.blocks = nn.ModuleList([*blocks, nn.Identity()])
        self.norm = nn.LayerNorm(embed_dim, eps=1e-6)

    def forward(self, patches, side):
        x = F.linear(patches, self.patch_embed.proj.weight.flatten(1), self.patch_embed.proj.bias)
        places = self.pos_embed[0]
        x = torch.cat([self.cls_token[0], x]) + torch.cat([places[:1], resized(places[1:], side, True)])
        for block in self.blocks:
            x = block(x)
        return self.norm(x)[1:]


class Resampler(SineResampler):
    def __init__(self, into, width):
        super().__init__(QUERIES, into, width)
        self.pos_embed = nn.Parameter(torch.empty(QUERIES, width), requires_grad=False)

    def forward(self, x, side):
        values = self.ln_kv(self.kv_proj(x))
        keys = values + resized(self.pos_embed, side, False)
        out = self.attn(self.ln_q(self.query) + self.pos_embed, keys, values, need_weights=False)[0]
        return self.ln_post(out) @ self.proj


class OmniLmm(MistralForCausalLM):
    def __init__(self, vocabulary):
        super().__init__(MistralConfig(vocab_size=vocabulary, attn_implementation="eager", **TEXT))
        self.model.vision_tower = Eva(**VISION)
        self.model.resampler = Resampler(VISION["embed_dim"], TEXT["hidden_size"])

    def look(self, patches, side):
        return self.model.resampler(self.model.vision_tower(patches, side), side)

    def forward(self, ids, images, pixels):
        x = self.get_input_embeddings()(ids)
        for number, image in enumerate(images):
            patches = pixels[number * SIDE**2 : (number + 1) * SIDE**2].to(x.dtype)
            x = torch.cat([x[: image["begin"]], self.look(patches, SIDE), x[image["begin"] + QUERIES :]])
        return super().forward(inputs_embeds=x[None]).logits[0]


def write(folder, kind, seed, vocabulary):
    model = OmniLmm(vocabulary)
    draw_weights(model, seed)
    model.model.resampler.pos_embed.data = sines(GRID, GRID, TEXT["hidden_size"]).float()
    folder.mkdir(parents=True)
    save_file({name: t.contiguous() for name, t in model.state_dict().items()}, folder / "model.safetensors")
    config = {"architectures": ["OmniLMMForCausalLM"], "model_type": kind, "vocab_size": vocabulary,
              "torch_dtype": "float32", "mm_vision_tower": "eva02_enormous_patch14_clip_224.laion2b_plus",
              "mm_use_im_start_end": True, "use_mm_proj": True, "num_query": QUERIES, "image_size": SIDE * PATCH,
              "vision_config": VISION, **TEXT}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def load(folder, dtype):
    config = json.loads((folder / "config.json").read_text())
    model = OmniLmm(config["vocab_size"]).to(dtype)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.to(dtype).eval()
