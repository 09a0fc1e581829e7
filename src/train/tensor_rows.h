// Reads rows of a tensor of a model's files, whatever floating-point type it is stored in.
#pragma once

#include <algorithm>
#include <filesystem>
#include <span>
#include <vector>

#include "base/file.h"
#include "format/safetensors.h"
#include "tensor/view.h"

namespace snug {

class TensorRows {
 public:
  // Rows begin at a byte of the file.
  TensorRows(const std::filesystem::path& file, uint64_t offset, DType dtype, int64_t columns)
      : file_(File::open_read(file, IoMode::Buffered)), offset_(offset), dtype_(dtype), columns_(columns) {}
  // `entry` must be of a type that snug reads.
  TensorRows(const SafetensorsIndex& index, const SafetensorsEntry& entry, int64_t columns)
      : TensorRows(index.files()[entry.file], entry.offset, *entry.dtype, columns) {}

  // Returns rows [first, first + count) in fp32.
  std::vector<float> read(int64_t first, int64_t count) const {
    const auto values = static_cast<uint64_t>(count * columns_);
    return dispatch_float(dtype_, [&]<class T>() {
      std::vector<T> stored(values);
      const auto offset = static_cast<uint64_t>(first * columns_) * sizeof(T);
      file_.read(offset_ + offset, std::as_writable_bytes(std::span(stored)));
      std::vector<float> wide(values);
      std::ranges::transform(stored, wide.begin(), [](T x) { return static_cast<float>(x); });
      return wide;
    });
  }

 private:
  File file_;
  uint64_t offset_;
  DType dtype_;
  int64_t columns_;
};

}  // namespace snug
