// Models whose files differ from those that GGUF files become, though they compute the same: the text in a model of
// texts and images, and Granite 4's without Mamba layers.
#pragma once

#include <functional>
#include <map>

#include "base/file.h"
#include "format/json.h"
#include "format/safetensors.h"

namespace snug {

// The bf16 numbers of a tensor.
struct StoredNumbers {
  Shape shape;
  std::string bytes;
};
using NamedNumbers = std::map<std::string, StoredNumbers>;

// Writes a model to `to` that is the one of `from`, in bf16, but for what `change` does.
inline void rewrite(const std::filesystem::path& from, const std::filesystem::path& to,
                    const std::function<void(Json& config, NamedNumbers& tensors)>& change) {
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
  Json config = parse_json(read_text(from / "config.json", 100'000), "config.json");
  NamedNumbers tensors;
  const auto index = SafetensorsIndex::open_model(from);
  for (const SafetensorsEntry& entry : index.entries()) {
    StoredNumbers& numbers = tensors[entry.name];
    numbers.shape = entry.shape.size() == 1 ? Shape{entry.shape[0]} : Shape{entry.shape[0], entry.shape[1]};
    numbers.bytes.resize(entry.bytes);
    File::open_read(index.files()[entry.file], IoMode::Buffered)
        .read(entry.offset, std::as_writable_bytes(std::span(numbers.bytes)));
  }
  change(config, tensors);
  write_text(to / "config.json", config.dump(1));
  std::vector<SafetensorsTensor> list;
  std::string bytes;
  for (const auto& [name, numbers] : tensors) {
    list.push_back({name, DType::BF16, numbers.shape});
    bytes += numbers.bytes;
  }
  write_text(to / "model.safetensors", layout_safetensors(list).header + bytes);
}

// Makes the model one of texts and images, of a type and class, in the spelling of transformers 5 or, `early`, 4.
inline void put_in_multimodal(const std::filesystem::path& from, const std::filesystem::path& to,
                              const std::string& type, const std::string& class_name, bool early) {
  rewrite(from, to, [&](Json& config, NamedNumbers& tensors) {
    config = {{"model_type", type},
              {"architectures", {class_name}},
              {"text_config", config},
              {"vision_config", {{"hidden_size", 2}}}};
    config["text_config"].erase("architectures");
    NamedNumbers renamed;
    for (const auto& [name, numbers] : tensors) {
      const std::string rest = name.starts_with("model.") ? name.substr(6) : "";
      if (early)
        renamed["language_model." + name] = numbers;
      else
        renamed[rest.empty() ? name : "model.language_model." + rest] = numbers;
    }
    renamed[early ? "vision_tower.patch.weight" : "model.vision_tower.patch.weight"] = {{1, 2}, "abcd"};
    tensors = std::move(renamed);
  });
}

// Makes a Granite a Granite 4, whose files have gate and up in one tensor.
inline void become_granite4(const std::filesystem::path& from, const std::filesystem::path& to) {
  rewrite(from, to, [&](Json& config, NamedNumbers& tensors) {
    const int64_t layers = config["num_hidden_layers"];
    config["model_type"] = "granitemoehybrid";
    config["architectures"] = {"GraniteMoeHybridForCausalLM"};
    config["num_local_experts"] = 0;
    config["position_embedding_type"] = "rope";
    config["shared_intermediate_size"] = config["intermediate_size"];
    config["layer_types"] = std::vector<std::string>(static_cast<size_t>(layers), "attention");
    for (int64_t layer = 0; layer < layers; ++layer) {
      const auto take = [&](const std::string& module) {
        return tensors.extract(fmt::format("model.layers.{}.mlp.{}.weight", layer, module)).mapped();
      };
      StoredNumbers gate = take("gate_proj");
      gate.shape.dims[0] *= 2;
      gate.bytes += take("up_proj").bytes;
      tensors[fmt::format("model.layers.{}.shared_mlp.input_linear.weight", layer)] = std::move(gate);
      tensors[fmt::format("model.layers.{}.shared_mlp.output_linear.weight", layer)] = take("down_proj");
    }
  });
}

}  // namespace snug
