// The tiny models whose every number is compared with transformers': tests/parity_test.cpp here, the same tests on a
// card, and tests/support_test.cpp for the table in README.md.
#pragma once

#include <array>

namespace snug {

inline constexpr std::array<const char*, 40> kTinyFamilies{
    "llama",        "llama3",         "llama_gqa7",     "qwen2",    "qwen2_tied", "qwen2_window",  "llama_bias",
    "mistral",      "smollm3",        "qwen3",          "granite",  "gemma",      "gemma2",        "gemma3",
    "llama_linear", "llama_yarn",     "llama_longrope", "phi3",     "glm",        "ernie4_5",      "seed_oss",
    "nemotron",     "arcee",          "stablelm",       "olmo2",    "olmo3",      "exaone4",       "glm4",
    "hunyuan",      "cohere",         "cohere2",        "granite4", "ministral3", "gemma3_vision", "mistral3",
    "cohere_norms", "stablelm_norms", "starcoder2",     "helium",   "cwm"};

}  // namespace snug
