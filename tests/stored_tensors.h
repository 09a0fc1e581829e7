// Safetensors files as a test takes them apart and puts them together, apart from the room that reads them.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli_fixture.h"
#include "tensor/dtype.h"

namespace snug {

struct StoredTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
  bool operator==(const StoredTensor&) const = default;
};
using StoredTensors = std::map<std::string, StoredTensor>;

inline StoredTensors read_stored(const fs::path& path) {
  const std::string file = text_of(path);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  StoredTensors tensors;
  const auto header = nlohmann::json::parse(file.substr(8, length));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const uint64_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    tensors[name] = {entry["dtype"], entry["shape"], file.substr(8 + length + begin, end - begin)};
  }
  return tensors;
}

// All files of a directory together.
inline StoredTensors read_model(const fs::path& directory) {
  StoredTensors tensors;
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.path().filename().string().starts_with("model") && entry.path().extension() == ".safetensors")
      tensors.merge(read_stored(entry.path()));
  return tensors;
}

inline void write_stored(const fs::path& path, const StoredTensors& tensors) {
  nlohmann::ordered_json header;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  const std::string json = header.dump();
  const uint64_t length = json.size();
  put(path, std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + json + data);
}

// Numbers of a tensor, and the tensor of numbers, rounded to the nearest of its type.
template <class T>
std::vector<T> elements_of(const StoredTensor& tensor) {
  std::vector<T> values(tensor.bytes.size() / sizeof(T));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}
inline std::vector<float> numbers_of(const StoredTensor& tensor) {
  if (tensor.dtype == "F32") return elements_of<float>(tensor);
  std::vector<float> values;
  if (tensor.dtype == "BF16")
    for (const BFloat16 x : elements_of<BFloat16>(tensor)) values.push_back(static_cast<float>(x));
  if (tensor.dtype == "F16")
    for (const Float16 x : elements_of<Float16>(tensor)) values.push_back(static_cast<float>(x));
  return values;
}
inline StoredTensor stored_as(const std::string& dtype, const std::vector<int64_t>& shape,
                              const std::vector<float>& values) {
  StoredTensor tensor{dtype, shape, {}};
  const auto add = [&](const auto& x) { tensor.bytes.append(reinterpret_cast<const char*>(&x), sizeof(x)); };
  for (const float value : values)
    if (dtype == "F32")
      add(value);
    else if (dtype == "BF16")
      add(BFloat16(value));
    else
      add(Float16(value));
  return tensor;
}

}  // namespace snug
