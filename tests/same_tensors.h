// Tensors of two sets of files, name by name and byte by byte.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "base/file.h"
#include "format/safetensors.h"

namespace snug {

inline std::vector<std::byte> bytes_of(const SafetensorsIndex& index, const SafetensorsEntry& entry) {
  std::vector<std::byte> bytes(entry.bytes);
  File::open_read(index.files()[entry.file], IoMode::Buffered).read(entry.offset, bytes);
  return bytes;
}

inline void expect_same_tensors(const SafetensorsIndex& found, const SafetensorsIndex& expected) {
  ASSERT_EQ(found.entries().size(), expected.entries().size());
  for (const SafetensorsEntry& entry : expected.entries()) {
    const SafetensorsEntry* const ours = found.find(entry.name);
    ASSERT_NE(ours, nullptr) << entry.name;
    EXPECT_EQ(ours->shape, entry.shape) << entry.name;
    EXPECT_EQ(ours->dtype, entry.dtype) << entry.name;
    EXPECT_EQ(bytes_of(found, *ours), bytes_of(expected, entry)) << entry.name;
  }
}

}  // namespace snug
