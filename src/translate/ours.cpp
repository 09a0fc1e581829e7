#include "translate/ours.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "translate/settings.h"

namespace snug {
namespace {

using Kind = OurKey::Kind;
constexpr double kCount = 1 << 20, kOpenCount = 1 << 30;

constexpr OurKey kKeys[] = {
    {Kind::Text, "model", ""},
    {Kind::Word, "init", "pretrained", 0, 0, "pretrained random"},
    {Kind::Text, "adapter", ""},
    {Kind::List, "data", ""},
    {Kind::Word, "objective", "sft", 0, 0, "sft dpo orpo simpo kto reward distill"},
    {Kind::Word, "data_format", "auto", 0, 0, "auto alpaca sharegpt messages text tokens preference labelled"},
    {Kind::Map, "columns", ""},
    {Kind::Map, "roles", ""},
    {Kind::Text, "prompt", ""},
    {Kind::Integer, "max_samples", "", 1, kOpenCount},
    {Kind::List, "validation", ""},
    {Kind::Word, "template", "auto", 0, 0, "auto chatml llama3 llama2 mistral qwen none"},
    {Kind::Word, "train_on", "assistant", 0, 0, "assistant all"},
    {Kind::Integer, "sequence_length", "2048", 2, kCount},
    {Kind::Word, "long_samples", "cut", 0, 0, "cut split drop"},
    {Kind::Bool, "packing", "true"},
    {Kind::Text, "image_dir", ""},
    {Kind::Integer, "image_min_pixels", "", 1, kOpenCount},
    {Kind::Integer, "image_max_pixels", "", 1, kOpenCount},
    {Kind::Integer, "max_slices", "", 1, 64},
    {Kind::Bool, "freeze_vision_tower", "true"},
    {Kind::Bool, "freeze_projector", "true"},
    {Kind::Bool, "freeze_language_model", "false"},
    {Kind::Word, "preference_loss", "sigmoid", 0, 0, "sigmoid cdpo robust hinge ipo sigmoid_norm apo_zero apo_down"},
    {Kind::Number, "beta", "", 1e-9, 1e6},
    {Kind::Number, "label_smoothing", "0", 0, 0.9999},
    {Kind::Number, "nll_weight", "", 0, 1e6},
    {Kind::Number, "simpo_gamma", "0.5", 0, 1e6},
    {Kind::Number, "desirable_weight", "1", 0, 1e6},
    {Kind::Number, "undesirable_weight", "1", 0, 1e6},
    {Kind::Number, "center_coefficient", "0", 0, 1e6},
    {Kind::Text, "reference", "auto"},
    {Kind::Text, "teacher", ""},
    {Kind::Number, "distill_beta", "0", 0, 1},
    {Kind::Number, "distill_temperature", "1", 0.01, 100},
    {Kind::Word, "method", "lora", 0, 0, "lora full"},
    {Kind::Integer, "lora_rank", "16", 1, kCount},
    {Kind::Number, "lora_alpha", "32", 1e-6, 1e6},
    {Kind::List, "lora_targets", "all"},
    {Kind::Bool, "lora_rslora", "false"},
    {Kind::Bool, "lora_dora", "false"},
    {Kind::Number, "lora_dropout", "0", 0, 0.99},
    {Kind::Number, "lora_plus_ratio", "1", 1e-3, 1e3},
    {Kind::Word, "lora_init", "default", 0, 0, "default pissa olora"},
    {Kind::List, "modules_to_save", ""},
    {Kind::List, "add_tokens", ""},
    {Kind::List, "add_special_tokens", ""},
    {Kind::Word, "base_format", "", 0, 0, "bf16 fp32 int8 nf4 fp8"},
    {Kind::Word, "compute", "bf16", 0, 0, "bf16 fp32 fp8"},
    {Kind::Word, "optimizer", "adamw", 0, 0, "adamw lion schedule_free_adamw muon adafactor apollo"},
    {Kind::Integer, "apollo_rank", "256", 1, kCount},
    {Kind::Integer, "apollo_update_interval", "200", 1, kCount},
    {Kind::Number, "apollo_scale", "1", 1e-6, 1e6},
    {Kind::Word, "apollo_scale_type", "channel", 0, 0, "channel tensor"},
    {Kind::Word, "state_format", "fp32", 0, 0, "fp32 bf16 8bit"},
    {Kind::Number, "learning_rate", "", 0, 1e3},
    {Kind::Word, "schedule", "cosine", 0, 0,
     "constant linear cosine cosine_with_restarts polynomial inverse_sqrt warmup_stable_decay"},
    {Kind::Integer, "warmup_steps", "", 0, kCount},
    {Kind::Number, "warmup_ratio", "", 0, 1},
    {Kind::Number, "min_learning_rate_ratio", "0", 0, 1},
    {Kind::Number, "weight_decay", "0", 0, 1e3},
    {Kind::Number, "beta1", "0.9", 0, 1 - 1e-9},
    {Kind::Number, "beta2", "", 0, 1 - 1e-9},
    {Kind::Number, "epsilon", "1e-08", 1e-30, 1},
    {Kind::Number, "max_grad_norm", "1", 0, 1e9},
    {Kind::Number, "neftune_noise_alpha", "0", 0, 1e3},
    {Kind::Integer, "batch_size", "", 1, 1 << 16},
    {Kind::Integer, "micro_batch_size", "", 1, kOpenCount},
    {Kind::Integer, "gradient_accumulation_steps", "", 1, kOpenCount},
    {Kind::Integer, "max_steps", "", 1, kOpenCount},
    {Kind::Integer, "epochs", "", 1, 100'000},
    {Kind::Integer, "seed", "42", 0, 9.2e18},
    {Kind::Bool, "shuffle", "true"},
    {Kind::Word, "device", "auto", 0, 0, "auto cpu cuda"},
    {Kind::Integer, "ranks", "0", 0, kCount},
    {Kind::Text, "disk_dir", ""},
    {Kind::Word, "zero", "auto", 0, 0, "auto 0 1 2 3"},
    {Kind::Integer, "replicas", "1", 1, kCount},
    {Kind::Text, "recompute", "auto"},
    {Kind::Text, "offload_states", "auto"},
    {Kind::Text, "offload_gradients", "auto"},
    {Kind::Text, "offload_parameters", "auto"},
    {Kind::Text, "offload_activations", "auto"},
    {Kind::Text, "out", ""},
    {Kind::Text, "cache_dir", ""},
    {Kind::Bool, "overwrite", "false"},
    {Kind::Bool, "resume", "false"},
    {Kind::Cadence, "log_every", "1", 0, 9.2e18},
    {Kind::Cadence, "eval_every", "0", 0, 9.2e18},
    {Kind::Cadence, "save_every", "1800s", 0, 9.2e18},
    {Kind::Integer, "keep", "2", 1, kCount, "all"},
    {Kind::List, "metrics_format", ""},
    {Kind::Text, "best_metric", "eval_loss"},
    {Kind::Integer, "early_stopping", "0", 0, kOpenCount},
};

std::string_view without_white(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\n' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\n' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// Returns a whole number without an exponent or a point.
std::optional<std::string> whole(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return fmt::format("{}", value);
  const std::optional<double> number = read_number(text);
  if (!number || *number != std::floor(*number) || std::abs(*number) > 9e15) return std::nullopt;
  return fmt::format("{}", static_cast<int64_t>(*number));
}

}  // namespace

bool has_word(std::string_view words, std::string_view word) {
  for (size_t at = 0; at < words.size();) {
    const size_t end = std::min(words.find(' ', at), words.size());
    if (words.substr(at, end - at) == word) return true;
    at = end + 1;
  }
  return false;
}

std::span<const OurKey> our_keys() { return kKeys; }

const OurKey& our_key(std::string_view name) {
  const auto* const found = std::ranges::find(kKeys, name, &OurKey::name);
  check(found != std::end(kKeys), "translate: '{}' is no key", name);
  return *found;
}

std::optional<std::string> our_value(const OurKey& key, const std::string& value) {
  const std::string text(without_white(value));
  if (has_word(key.words, text)) return text;
  switch (key.kind) {
    case Kind::Word:
      return std::nullopt;
    case Kind::Bool:
      if (is_on(text)) return "true";
      return is_off(text) && !text.empty() ? std::optional<std::string>("false") : std::nullopt;
    case Kind::Integer:
    case Kind::Cadence: {
      if (key.kind == Kind::Cadence && text == "epoch") return text;
      const std::optional<std::string> number = whole(text);
      const std::optional<double> size = number ? read_number(*number) : std::nullopt;
      return size && *size >= key.least && *size <= key.most && *size < 9.2e18 ? number : std::nullopt;
    }
    case Kind::Number: {
      const std::optional<double> number = read_number(text);
      return number && *number >= key.least && *number <= key.most ? std::optional(text) : std::nullopt;
    }
    case Kind::Text:
    case Kind::List:
    case Kind::Map:
      break;
  }
  return text.empty() ? std::nullopt : std::optional(value);
}

std::string expected(const OurKey& key) {
  switch (key.kind) {
    case Kind::Word: {
      std::string words(key.words);
      std::ranges::replace(words, ' ', ',');
      return "one of " + words;
    }
    case Kind::Bool:
      return "true or false";
    case Kind::Integer:
    case Kind::Cadence:
      return fmt::format("a whole number of at least {}", key.least);
    case Kind::Number:
      return fmt::format("a number from {} to {}", key.least, key.most);
    default:
      return "a value";
  }
}

bool same_value(const OurKey& key, std::string_view a, std::string_view b) {
  if (a == b) return true;
  if (key.kind != Kind::Number) return false;
  const std::optional<double> x = read_number(a), y = read_number(b);
  return x && y && *x == *y;
}

std::optional<double> read_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::string number_text(double value) {
  if (value == std::floor(value) && std::abs(value) < 9e15) return fmt::format("{}", static_cast<int64_t>(value));
  return fmt::format("{}", value);
}

}  // namespace snug
