#!/usr/bin/env python3
"""Writes tests/fixtures/hf_config/counts.json: configurations in true sizes, and how many parameters transformers' classes
make of them, without weights.

    make_config_fixtures.py [--out tests/fixtures/hf_config]

Needs torch and transformers 5.
"""
import argparse
import json
import pathlib

import torch
from transformers import (AutoModelForCausalLM, Cohere2Config, CohereConfig, CwmConfig, Exaone4Config, Glm4Config,
                          GraniteMoeHybridConfig, HeliumConfig, HunYuanDenseV1Config, Ministral3Config, Olmo2Config, Olmo3Config,
                          StableLmConfig, Starcoder2Config)

ALPHA = {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 1000.0, "factor": 1.0}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}

CONFIGS = [
    Olmo2Config(),
    Olmo3Config(rope_scaling=YARN),
    Exaone4Config(hidden_size=2048, intermediate_size=4096, num_hidden_layers=30, num_key_value_heads=8, head_dim=64,
                  layer_types=["full_attention"] * 30, sliding_window=None, tie_word_embeddings=True),
    Glm4Config(attention_bias=False),
    HunYuanDenseV1Config(vocab_size=128167, intermediate_size=14336, num_key_value_heads=8, head_dim=128,
                         rope_parameters=ALPHA),
    CohereConfig(),
    CohereConfig(hidden_size=12288, intermediate_size=33792, num_hidden_layers=64, num_attention_heads=96,
                 num_key_value_heads=8, use_qk_norm=True),
    StableLmConfig(vocab_size=100352, hidden_size=5120, intermediate_size=13824, num_hidden_layers=40,
                   num_key_value_heads=8, qk_layernorm=True, use_parallel_residual=True),
    Cohere2Config(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
                  num_key_value_heads=8),
    GraniteMoeHybridConfig(vocab_size=100352, hidden_size=2560, intermediate_size=8192, shared_intermediate_size=8192,
                           num_hidden_layers=40, num_attention_heads=40, num_key_value_heads=8, num_local_experts=0,
                           num_experts_per_tok=0, layer_types=["full_attention"] * 40, position_embedding_type="rope",
                           tie_word_embeddings=True),
    Ministral3Config(),
    Starcoder2Config(),
    HeliumConfig(),
    CwmConfig(),
]  # fmt: skip


def case_of(config):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    return {"parameters": sum(p.numel() for p in model.parameters()), "config": json.loads(config.to_json_string())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/fixtures/hf_config"))
    folder = parser.parse_args().out
    (folder / "counts.json").write_text(json.dumps([case_of(config) for config in CONFIGS], indent=1) + "\n")


if __name__ == "__main__":
    main()
