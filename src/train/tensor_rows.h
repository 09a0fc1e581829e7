// Reads rows of a tensor of a model's files, whatever floating-point type it is stored in.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "base/file.h"
#include "format/safetensors.h"
#include "tensor/view.h"

namespace snug {

class TensorRows {
 public:
  // `entry` must be of a type that snug reads, and outlive this.
  TensorRows(const SafetensorsIndex& index, const SafetensorsEntry& entry, int64_t columns)
      : file_(File::open_read(index.files()[entry.file], IoMode::Buffered)), entry_(entry), columns_(columns) {}

  // Returns rows [first, first + count) in fp32.
  std::vector<float> read(int64_t first, int64_t count) const {
    const auto values = static_cast<uint64_t>(count * columns_);
    return dispatch_float(*entry_.dtype, [&]<class T>() {
      std::vector<T> stored(values);
      const auto offset = static_cast<uint64_t>(first * columns_) * sizeof(T);
      file_.read(entry_.offset + offset, std::as_writable_bytes(std::span(stored)));
      std::vector<float> wide(values);
      std::ranges::transform(stored, wide.begin(), [](T x) { return static_cast<float>(x); });
      return wide;
    });
  }

 private:
  File file_;
  const SafetensorsEntry& entry_;
  int64_t columns_;
};

}  // namespace snug
