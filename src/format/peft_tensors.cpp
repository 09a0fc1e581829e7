#include "format/peft_tensors.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace snug {
namespace {

// Wrappers put these parts anywhere in paths.
constexpr auto kWrappers =
    std::to_array<std::string_view>({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"});

using Parts = std::vector<std::string_view>;

Parts split(std::string_view path) {
  Parts parts;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    parts.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string join(Parts::const_iterator begin, Parts::const_iterator end) {
  return fmt::format("{}", fmt::join(begin, end, "."));
}

// Returns a name without those of the model's wrappers.
Parts unwrapped(std::string_view name) {
  Parts parts = split(name);
  std::erase_if(parts, [](std::string_view part) { return std::ranges::find(kWrappers, part) != kWrappers.end(); });
  const auto drop_first = [&](std::string_view part) {
    const bool there = parts.size() > 1 && parts[0] == part;
    if (there) parts.erase(parts.begin());
    return there;
  };
  while (drop_first("module")) {
  }
  // The model's own "model." follows PEFT's.
  if (drop_first("base_model")) drop_first("model");
  while (drop_first("module")) {
  }
  return parts;
}

// Reads a matrix of an adapter. `tail` follows the part of a path by which PEFT keeps things: its own, or adapters' by
// name.
PeftTensor parse_half(std::string_view half, const std::string& module, const Parts& tail) {
  if ((half != "lora_A" && half != "lora_B") || tail.empty() || tail.size() > 2 || tail.back() != "weight") return {};
  const bool a = half == "lora_A";
  return {a ? PeftTensorKind::LoraA : PeftTensorKind::LoraB,
          to_string(PeftTensorName{module, a ? LoraHalf::A : LoraHalf::B}),
          std::string(tail.size() == 2 ? tail[0] : "")};
}

// Reads norms of rows, whose name PEFT's layers of them end with ".weight", and its files do not.
PeftTensor parse_magnitude(const std::string& module, Parts tail) {
  if (!tail.empty() && tail.back() == "weight") tail.pop_back();
  if (tail.size() > 1) return {};
  return {PeftTensorKind::Magnitude, fmt::format("{}{}{}", kPeftPrefix, module, kMagnitude),
          std::string(tail.empty() ? "" : tail[0])};
}

PeftTensor parse_tokens(const std::string& module, const Parts& tail) {
  if (tail.empty() || tail.size() > 2 || tail[0] != "trainable_tokens_delta") return {};
  return {PeftTensorKind::Tokens, module + ".weight", std::string(tail.size() == 2 ? tail[1] : "")};
}

PeftTensor parse_base(const std::string& module, const Parts& tail) {
  if (tail.empty() || module.empty()) return {};
  return {PeftTensorKind::Base, fmt::format("{}.{}", module, fmt::join(tail, ".")), {}};
}

PeftTensor parse_saved(const std::string& module, const Parts& tail) {
  if (tail.empty() || module.empty()) return {};
  const bool named = tail.size() > 1;
  return {PeftTensorKind::Whole, fmt::format("{}.{}", module, fmt::join(tail.begin() + named, tail.end(), ".")),
          std::string(named ? tail[0] : "")};
}

}  // namespace

PeftTensor parse_peft_tensor(std::string_view name, const Spelling& spelling) {
  const Parts parts = unwrapped(name);
  for (auto part = parts.begin(); part != parts.end(); ++part) {
    const std::string module = spelling.ours(join(parts.begin(), part));
    const Parts tail(part + 1, parts.end());
    if (*part == kMagnitude.substr(1)) return parse_magnitude(module, tail);
    if (part->starts_with("lora_")) return parse_half(*part, module, tail);
    if (*part == "modules_to_save") return parse_saved(module, tail);
    if (*part == "original_module" || *part == "base_layer") return parse_base(module, tail);
    if (*part == "token_adapter")
      return !tail.empty() && tail[0] == "base_layer" ? parse_base(module, {tail.begin() + 1, tail.end()})
                                                      : parse_tokens(module, tail);
  }
  const bool named = parts.size() > 1 && (parts.back() == "weight" || parts.back() == "bias");
  return {named ? PeftTensorKind::Whole : PeftTensorKind::Other, spelling.ours(join(parts.begin(), parts.end())), {}};
}

std::string_view meaning_of_other(std::string_view name) {
  if (name.find("lora_embedding_") != std::string_view::npos) return "the adapter of an embedding";
  if (name.find("lora_B") != std::string_view::npos && name.ends_with("bias")) return "the bias of an adapter";
  return "no tensor of a LoRA adapter";
}

}  // namespace snug
