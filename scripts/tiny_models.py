"""The tiny models of tests/fixtures/models, which make_fixtures.py makes: their configurations, in odd sizes."""

import torch
from transformers import (ArceeConfig, Cohere2Config, CohereConfig, CwmConfig, Ernie4_5Config, Exaone4Config,
                          Gemma2Config, Gemma3Config, Gemma3TextConfig, GemmaConfig, Glm4Config, GlmConfig, GraniteConfig,
                          GraniteMoeHybridConfig, HeliumConfig, HunYuanDenseV1Config, LlamaConfig, Ministral3Config,
                          Mistral3Config, MistralConfig, NemotronConfig, Olmo2Config, Olmo3Config, Phi3Config,
                          PixtralVisionConfig, Qwen2Config, Qwen3Config, SeedOssConfig, SiglipVisionConfig,
                          SmolLM3Config, StableLmConfig, Starcoder2Config)

VOCABULARY = 997
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 7000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
COMMON = {"vocab_size": VOCABULARY, "num_hidden_layers": 2, "max_position_embeddings": 256, "pad_token_id": 0,
          "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
LLAMA = {"rms_norm_eps": 1e-5, "attention_bias": False, "mlp_bias": False} | COMMON
QWEN2 = {"rms_norm_eps": 1e-6, "use_sliding_window": False} | COMMON


ROPES = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": LLAMA3_ROPE,
    "yarn": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32},
    "yarn.said": {"rope_type": "yarn", "rope_theta": 500000.0, "factor": 40.0, "beta_fast": 16.0, "beta_slow": 2.0,
                  "mscale": 0.707, "mscale_all_dim": 1.0, "truncate": False, "original_max_position_embeddings": 64},
    "longrope": {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 64,
                 "short_factor": [1.0, 1.0, 1.05, 1.1, 1.2, 1.3, 1.35, 1.5],
                 "long_factor": [1.0, 1.2, 1.6, 2.0, 3.5, 6.0, 9.0, 17.5]},
}  # fmt: skip


def rope(theta):
    return {"rope_type": "default", "rope_theta": theta}


UNGATED = ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"]

# Sizes are odd on purpose. `dtype` is what the weights are stored in: all values below are computed from the stored
# ones, widened. `shard_size` splits the file; `spelling` 4 rewrites config.json as transformers 4 wrote it.
FAMILIES = {
    "llama": {
        "config": LlamaConfig(hidden_size=72, intermediate_size=136, num_attention_heads=3, num_key_value_heads=1,
                              head_dim=24, rope_parameters=rope(10000.0), tie_word_embeddings=False, **LLAMA),
        "dtype": torch.float32,
    },
    "llama3": {  # heads x head_dim is not the hidden size, and every head has its own keys
        "config": LlamaConfig(hidden_size=60, intermediate_size=144, num_attention_heads=2, num_key_value_heads=2,
                              head_dim=24, rope_parameters=LLAMA3_ROPE, tie_word_embeddings=True, **LLAMA),
        "dtype": torch.float32,
        "spelling": 4,
    },
    "llama_gqa7": {
        "config": LlamaConfig(hidden_size=56, intermediate_size=150, num_attention_heads=7, num_key_value_heads=1,
                              head_dim=8, rope_parameters=rope(10000.0), tie_word_embeddings=True, **LLAMA),
        "dtype": torch.bfloat16,
    },
    "qwen2": {
        "config": Qwen2Config(hidden_size=72, intermediate_size=140, num_attention_heads=4, num_key_value_heads=2,
                              rope_parameters=rope(1000000.0), tie_word_embeddings=False, **QWEN2),
        "dtype": torch.bfloat16,
    },
    "qwen2_tied": {
        "config": Qwen2Config(hidden_size=54, intermediate_size=137, num_attention_heads=3, num_key_value_heads=1,
                              rope_parameters=rope(1000000.0), tie_word_embeddings=True, **QWEN2),
        "dtype": torch.float16,
        "shard_size": 110000,
    },
    "qwen2_window": {  # the second layer sees nine tokens
        "config": Qwen2Config(hidden_size=48, intermediate_size=104, num_attention_heads=3, num_key_value_heads=1,
                              rope_parameters=rope(10000.0), tie_word_embeddings=True,
                              **QWEN2 | {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
        "dtype": torch.bfloat16,
    },
    "llama_bias": {
        "config": LlamaConfig(hidden_size=44, intermediate_size=92, num_attention_heads=4, num_key_value_heads=2,
                              head_dim=10, rope_parameters=rope(10000.0), tie_word_embeddings=True,
                              **LLAMA | {"attention_bias": True, "mlp_bias": True}),
        "dtype": torch.bfloat16,
    },
    "mistral": {  # every layer sees seven tokens
        "config": MistralConfig(hidden_size=40, intermediate_size=90, num_attention_heads=3, num_key_value_heads=1,
                                head_dim=14, sliding_window=7, rope_parameters=rope(10000.0), rms_norm_eps=1e-5,
                                tie_word_embeddings=False, **COMMON),
        "dtype": torch.bfloat16,
    },
    "smollm3": {  # the second layer has no rotary embedding
        "config": SmolLM3Config(hidden_size=48, intermediate_size=98, num_attention_heads=4, num_key_value_heads=2,
                                no_rope_layer_interval=2, **COMMON),
        "dtype": torch.bfloat16,
    },
    "qwen3": {  # heads of another size than hidden / heads
        "config": Qwen3Config(hidden_size=60, intermediate_size=110, num_attention_heads=4, num_key_value_heads=2,
                              head_dim=16, **COMMON),
        "dtype": torch.bfloat16,
    },
    "llama_linear": {
        "config": LlamaConfig(hidden_size=36, intermediate_size=70, num_attention_heads=3, num_key_value_heads=1,
                              head_dim=12, rope_parameters=ROPES["linear"], tie_word_embeddings=True, **LLAMA),
        "dtype": torch.bfloat16,
    },
    "llama_yarn": {
        "config": LlamaConfig(hidden_size=40, intermediate_size=74, num_attention_heads=2, num_key_value_heads=2,
                              head_dim=20, rope_parameters=ROPES["yarn"], tie_word_embeddings=True, **LLAMA),
        "dtype": torch.bfloat16,
    },
    "llama_longrope": {  # samples are short for it, and what is generated is long
        "config": LlamaConfig(hidden_size=32, intermediate_size=66, num_attention_heads=2, num_key_value_heads=1,
                              head_dim=16, rope_parameters=ROPES["longrope"], tie_word_embeddings=True, **LLAMA),
        "dtype": torch.bfloat16,
    },
    "phi3": {  # linears are fused, half of a head turns, tokens see eleven
        "config": Phi3Config(hidden_size=48, intermediate_size=100, num_attention_heads=3, num_key_value_heads=1,
                             sliding_window=11, tie_word_embeddings=False, original_max_position_embeddings=64,
                             rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0,
                                              "partial_rotary_factor": 0.5, "original_max_position_embeddings": 64,
                                              "short_factor": [1.0, 1.05, 1.2, 1.5],
                                              "long_factor": [1.0, 1.6, 5.0, 16.0]}, **COMMON),
        "dtype": torch.bfloat16,
        "linears": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
    },
    "glm": {  # gate and up are fused, neighbours in half of a head turn
        "config": GlmConfig(hidden_size=44, intermediate_size=90, num_attention_heads=2, num_key_value_heads=1,
                            head_dim=16, rope_parameters=rope(10000.0) | {"partial_rotary_factor": 0.5},
                            tie_word_embeddings=False, **COMMON),
        "dtype": torch.bfloat16,
        "linears": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"],
    },
    "ernie4_5": {  # neighbours turn
        "config": Ernie4_5Config(hidden_size=40, intermediate_size=84, num_attention_heads=4, num_key_value_heads=2,
                                 head_dim=12, use_bias=True, rope_parameters=rope(10000.0), tie_word_embeddings=True,
                                 **COMMON),
        "dtype": torch.bfloat16,
    },
    "seed_oss": {
        "config": SeedOssConfig(hidden_size=52, intermediate_size=88, num_attention_heads=3, num_key_value_heads=1,
                                head_dim=14, attention_dropout=0.0, residual_dropout=0.0, rope_parameters=rope(10000.0),
                                tie_word_embeddings=False, **COMMON),
        "dtype": torch.bfloat16,
    },
    "granite": {  # every factor, far from what it would be without its key
        "config": GraniteConfig(hidden_size=52, intermediate_size=94, num_attention_heads=2, num_key_value_heads=1,
                                head_dim=26, rope_parameters=rope(10000.0), tie_word_embeddings=True,
                                embedding_multiplier=12.0, attention_multiplier=0.1, residual_multiplier=0.22,
                                logits_scaling=8.0, **LLAMA),
        "dtype": torch.bfloat16,
    },
    "gemma": {
        "config": GemmaConfig(hidden_size=44, intermediate_size=86, num_attention_heads=3, num_key_value_heads=1,
                              head_dim=18, **COMMON),
        "dtype": torch.bfloat16,
    },
    "gemma3": {  # of three layers the second sees all, with a rope of its own; the scale is not the head's
        "config": Gemma3TextConfig(hidden_size=48, intermediate_size=82, num_attention_heads=4, num_key_value_heads=2,
                                   head_dim=14, query_pre_attn_scalar=24, sliding_window=7, attn_logit_softcapping=3.0,
                                   layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                                   rope_parameters={
                                       "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                                       "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                                   },
                                   **COMMON | {"num_hidden_layers": 3}),
        "dtype": torch.bfloat16,
    },
    "gemma2": {  # caps that bite: the first layer sees seven tokens, the second all
        "config": Gemma2Config(hidden_size=40, intermediate_size=78, num_attention_heads=4, num_key_value_heads=2,
                               head_dim=12, query_pre_attn_scalar=20, sliding_window=7, attn_logit_softcapping=0.8,
                               final_logit_softcapping=1.5, **COMMON),
        "dtype": torch.bfloat16,
    },
    "nemotron": {  # LayerNorm by 1 + weight with a bias, half of a head turns, the MLP has no gate
        "config": NemotronConfig(hidden_size=44, intermediate_size=90, num_attention_heads=3, num_key_value_heads=1,
                                 head_dim=16, norm_eps=1e-4, rope_parameters=rope(10000.0), **COMMON),
        "dtype": torch.bfloat16, "linears": UNGATED},
    "arcee": {  # the MLP has no gate, and biases
        "config": ArceeConfig(hidden_size=48, intermediate_size=94, num_attention_heads=4, num_key_value_heads=2,
                              head_dim=14, rope_parameters=ROPES["yarn"], tie_word_embeddings=True,
                              **LLAMA | {"attention_bias": True, "mlp_bias": True}),
        "dtype": torch.bfloat16, "linears": UNGATED},
    "stablelm": {  # LayerNorm with a bias, a quarter of a head turns
        "config": StableLmConfig(hidden_size=48, intermediate_size=86, num_attention_heads=2, num_key_value_heads=1,
                                 use_qkv_bias=True, layer_norm_eps=1e-4, rope_parameters=rope(10000.0), **COMMON),
        "dtype": torch.bfloat16,
    },
    "olmo2": {  # norms behind the branches alone, and of all queries and all keys
        "config": Olmo2Config(hidden_size=48, intermediate_size=90, num_attention_heads=4, num_key_value_heads=2,
                              rms_norm_eps=1e-5, rope_parameters=rope(10000.0), **COMMON),
        "dtype": torch.bfloat16,
    },
    "olmo3": {  # of three layers the second sees all, with a rope of its own
        "config": Olmo3Config(hidden_size=42, intermediate_size=82, num_attention_heads=3, num_key_value_heads=1,
                              rms_norm_eps=1e-5, sliding_window=7, attention_bias=True,
                              layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                              rope_parameters={"full_attention": ROPES["yarn"],
                                               "sliding_attention": {"rope_type": "default", "rope_theta": 5e5}},
                              **COMMON | {"num_hidden_layers": 3}),
        "dtype": torch.bfloat16,
    },
    "exaone4": {  # of three layers the second sees all, without rope
        "config": Exaone4Config(hidden_size=44, intermediate_size=86, num_attention_heads=4, num_key_value_heads=2,
                                head_dim=14, rms_norm_eps=1e-5, sliding_window=9, rope_parameters=LLAMA3_ROPE,
                                layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                                tie_word_embeddings=True, **COMMON | {"num_hidden_layers": 3}),
        "dtype": torch.bfloat16,
    },
    "glm4": {  # as glm, with norms behind the branches too
        "config": Glm4Config(hidden_size=44, intermediate_size=78, num_attention_heads=2, num_key_value_heads=1,
                             head_dim=16, rope_parameters=rope(10000.0) | {"partial_rotary_factor": 0.5},
                             **COMMON),
        "dtype": torch.bfloat16,
        "linears": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"],
    },
    "hunyuan": {  # heads are normed behind the rope, whose base is enlarged
        "config": HunYuanDenseV1Config(hidden_size=40, intermediate_size=76, num_attention_heads=3,
                                       num_key_value_heads=1, head_dim=12, rms_norm_eps=1e-5,
                                       rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 1.0,
                                                        "alpha": 50.0}, tie_word_embeddings=True, **COMMON),
        "dtype": torch.bfloat16,
    },
    "cohere": {  # attention and MLP side by side behind a LayerNorm, neighbours turn
        "config": CohereConfig(hidden_size=48, intermediate_size=84, num_attention_heads=4, num_key_value_heads=2,
                               attention_bias=True, logit_scale=0.25, layer_norm_eps=1e-4,
                               rope_parameters=rope(10000.0), **COMMON),
        "dtype": torch.bfloat16,
    },
    "cohere2": {  # of three layers the second sees all, without rope
        "config": Cohere2Config(hidden_size=42, intermediate_size=80, num_attention_heads=3, num_key_value_heads=1,
                                logit_scale=0.5, layer_norm_eps=1e-5, sliding_window=8,
                                layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                                rope_parameters=rope(10000.0), **COMMON | {"num_hidden_layers": 3}),
        "dtype": torch.bfloat16,
    },
    "granite4": {  # gate and up are fused
        "config": GraniteMoeHybridConfig(hidden_size=48, intermediate_size=16, shared_intermediate_size=92,
                                         num_attention_heads=3, num_key_value_heads=1, num_local_experts=0,
                                         num_experts_per_tok=0, layer_types=["full_attention"] * 2,
                                         position_embedding_type="rope", mamba_n_heads=2, rope_parameters=rope(10000.0),
                                         embedding_multiplier=12.0, attention_multiplier=0.1,
                                         residual_multiplier=0.22, logits_scaling=8.0, rms_norm_eps=1e-5,
                                         tie_word_embeddings=True, **COMMON),
        "dtype": torch.bfloat16,
        "linears": ["q_proj", "k_proj", "v_proj", "o_proj", "input_linear", "output_linear"],
    },
    "ministral3": {  # queries grow with their positions
        "config": Ministral3Config(hidden_size=40, intermediate_size=82, num_attention_heads=3, num_key_value_heads=1,
                                   head_dim=14, rms_norm_eps=1e-5, tie_word_embeddings=False,
                                   rope_parameters=ROPES["yarn"] | {"original_max_position_embeddings": 16,
                                                                    "llama_4_scaling_beta": 0.3},
                                   **COMMON),
        "dtype": torch.bfloat16,
    },
}  # fmt: skip

# A model of texts and images, of which texts alone are used.
FAMILIES["gemma3_vision"] = {
    "config": Gemma3Config(text_config=FAMILIES["gemma3"]["config"].to_dict(), mm_tokens_per_image=4,
                           vision_config=SiglipVisionConfig(hidden_size=16, intermediate_size=20, num_hidden_layers=1,
                                                            num_attention_heads=2, image_size=28,
                                                            patch_size=14).to_dict()),
    "dtype": torch.bfloat16,
    "linears": [f"language_model.layers.{layer}.{module}" for layer in range(3)
                for module in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                               "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")],
}  # fmt: skip
FAMILIES["mistral3"] = {
    "config": Mistral3Config(text_config=FAMILIES["ministral3"]["config"].to_dict(), tie_word_embeddings=False,
                             vision_config=PixtralVisionConfig(hidden_size=16, intermediate_size=20, head_dim=8,
                                                               num_hidden_layers=1, num_attention_heads=2,
                                                               image_size=28, patch_size=14).to_dict()),
    "dtype": torch.bfloat16,
    "linears": [name for name in FAMILIES["gemma3_vision"]["linears"] if ".layers.2." not in name],
    "seed": 41,
}  # fmt: skip

# Heads are normed, each with a gain of its own: as Command-R+ is and, each gain in a tensor, StableLM 2 12B.
FAMILIES["cohere_norms"] = {
    "config": CohereConfig(hidden_size=40, intermediate_size=78, num_attention_heads=4, num_key_value_heads=2,
                           use_qk_norm=True, logit_scale=0.5, layer_norm_eps=1e-4, rope_parameters=rope(10000.0),
                           **COMMON),
    "dtype": torch.bfloat16,
}  # fmt: skip
FAMILIES["stablelm_norms"] = {  # attention and MLP side by side
    "config": StableLmConfig(hidden_size=72, intermediate_size=82, num_attention_heads=3, num_key_value_heads=1,
                             qk_layernorm=True, use_parallel_residual=True, layer_norm_eps=1e-4,
                             rope_parameters=rope(10000.0), **COMMON),
    "dtype": torch.bfloat16,
}  # fmt: skip
FAMILIES["starcoder2"] = {  # LayerNorms, biases everywhere, an MLP without a gate through GELU; tokens see eight
    "config": Starcoder2Config(hidden_size=42, intermediate_size=86, num_attention_heads=3, num_key_value_heads=1,
                               norm_epsilon=1e-4, sliding_window=8, rope_parameters=rope(10000.0), **COMMON),
    "dtype": torch.bfloat16,
    "linears": ["q_proj", "k_proj", "v_proj", "o_proj", "c_fc", "c_proj"],
}  # fmt: skip
FAMILIES["helium"] = {  # neighbours turn, biases on q, k and v, but not on o
    "config": HeliumConfig(hidden_size=52, intermediate_size=80, num_attention_heads=2, num_key_value_heads=1,
                           head_dim=26, attention_bias=True, **COMMON),
    "dtype": torch.bfloat16,
}  # fmt: skip
FAMILIES["cwm"] = {  # of three layers the first sees all
    "config": CwmConfig(hidden_size=48, intermediate_size=74, num_attention_heads=3, num_key_value_heads=1, head_dim=18,
                        mlp_bias=True, sliding_window=7, rope_parameters=LLAMA3_ROPE,
                        **COMMON | {"num_hidden_layers": 3}),
    "dtype": torch.bfloat16,
    "seed": 42,
}  # fmt: skip

LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
