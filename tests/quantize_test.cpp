// Codes, scales and numbers == those of bitsandbytes (fp8: torch), stored in tests/fixtures/quantize and bnb.
#include <gtest/gtest.h>

#include <cstring>

#include "backend/cpu/backend.h"
#include "base/file.h"
#include "format/bnb.h"
#include "tensor/codebook.h"

namespace snug {
namespace {

namespace fs = std::filesystem;
const fs::path kFixtures = SNUG_FIXTURES;
using Bytes = std::vector<std::byte>;

struct Stored {
  explicit Stored(const fs::path& path) : index(SafetensorsIndex::open_file(path)) {}
  Bytes operator[](const SafetensorsEntry& entry) const {
    Bytes bytes(entry.bytes);
    File::open_read(index.files()[entry.file], IoMode::Buffered).read(entry.offset, bytes);
    return bytes;
  }
  Bytes operator[](const std::string& name) const {
    const SafetensorsEntry* entry = index.find(name);
    check(entry, "the fixture has no '{}'", name);
    return (*this)[*entry];
  }
  bool has(const std::string& name) const { return index.find(name); }
  SafetensorsIndex index;
};

struct Part {
  DType dtype;
  Shape shape;
  Bytes bytes;
};
Part zeros(DType dtype, const Shape& shape) {
  return {dtype, shape, Bytes(static_cast<size_t>(shape.count()) * element_bytes(dtype))};
}

// Runs the op on these operands, in place.
void run(const Attrs& attrs, std::vector<Part*> parts) {
  CpuBackend backend;
  Op op;
  op.attrs = attrs;
  op.site = "test";
  std::vector<TensorView> views;
  for (Part* part : parts) views.push_back({part->bytes.data(), part->dtype, part->shape, part->shape.cols()});
  backend.bind(op, views)({});
}

const char* spelling(BaseFormat format) {
  return format == BaseFormat::Int8 ? "int8" : format == BaseFormat::Fp8 ? "fp8" : "nf4";
}

class QuantizeTest : public testing::TestWithParam<const char*> {
 protected:
  QuantizeTest() : stored(kFixtures / "quantize" / "numbers.safetensors") {
    const SafetensorsEntry* entry = stored.index.find(name("x"));
    x = {*entry->dtype, {entry->shape[0], entry->shape[1]}, stored[*entry]};
  }
  std::string name(const std::string& what) const { return std::string(GetParam()) + "." + what; }

  // Dequantised in both dtypes, as far as the fixture has them.
  void expect_numbers(const Dequantize& op, std::vector<Part*> parts, const std::string& what) {
    for (const DType t : {DType::F32, DType::BF16}) {
      const std::string expected = name(what + "." + std::string(snug::name(t)));
      if (!stored.has(expected)) continue;
      Part y = zeros(t, x.shape);
      std::vector<Part*> all = parts;
      all.push_back(&y);
      run(op, all);
      EXPECT_TRUE(y.bytes == stored[expected]) << expected;
    }
  }

  Stored stored;
  Part x;
};

TEST_P(QuantizeTest, RowsEqualTheirs) {
  for (const BaseFormat format : {BaseFormat::Int8, BaseFormat::Fp8}) {
    const std::string what = spelling(format);
    Part codes = zeros(format == BaseFormat::Int8 ? DType::I8 : DType::U8, x.shape);
    Part scales = zeros(DType::F32, {x.shape[0]});
    run(Quantize{format}, {&x, &codes, &scales});
    EXPECT_TRUE(codes.bytes == stored[name(what + ".codes")]) << what;
    EXPECT_TRUE(scales.bytes == stored[name(what + ".scales")]) << what;
    expect_numbers({format}, {&codes, &scales}, what);
  }
}

TEST_P(QuantizeTest, BlocksEqualTheirs) {
  const int64_t blocks = x.shape.count() / kNf4Block;
  Part codes = zeros(DType::U8, {x.shape.count() / 2}), scales = zeros(DType::F32, {blocks});
  run(Quantize{BaseFormat::Nf4}, {&x, &codes, &scales});
  EXPECT_TRUE(codes.bytes == stored[name("nf4.codes")]);
  EXPECT_TRUE(scales.bytes == stored[name("nf4.scales")]);
  expect_numbers({BaseFormat::Nf4, true}, {&codes, &scales}, "nf4.plain");

  Part offset{DType::F32, {1}, stored[name("nf4.offset")]};
  Part scale_codes = zeros(DType::U8, {blocks});
  Part block_scales = zeros(DType::F32, {(blocks + kNf4ScaleBlock - 1) / kNf4ScaleBlock});
  run(QuantizeScales{}, {&scales, &offset, &scale_codes, &block_scales});
  EXPECT_TRUE(scale_codes.bytes == stored[name("nf4.scale_codes")]);
  EXPECT_TRUE(block_scales.bytes == stored[name("nf4.block_scales")]);
  expect_numbers({BaseFormat::Nf4}, {&codes, &scale_codes, &block_scales, &offset}, "nf4");
}

INSTANTIATE_TEST_SUITE_P(Stored, QuantizeTest, testing::Values("fp32", "bf16", "fp16", "edges"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Codebook, EqualsTheirs) {
  const Stored stored(kFixtures / "quantize" / "numbers.safetensors");
  const auto equal = [](const auto& book, const Bytes& theirs) {
    return theirs.size() == sizeof(book) && std::memcmp(book.data(), theirs.data(), sizeof(book)) == 0;
  };
  EXPECT_TRUE(equal(kNf4Codebook, stored["nf4_codebook"]));
  EXPECT_TRUE(equal(kSignedMap, stored["dynamic_codebook"]));
}

TEST(SavedByTransformers, DequantisesAsBitsandbytesDoes) {
  const Stored expected(kFixtures / "bnb" / "dequantised.safetensors");
  for (const std::string folder : {"int8", "nf4", "nf4_single"}) {
    const Stored stored(kFixtures / "bnb" / folder / "model.safetensors");
    const Shape shape{32, 80};
    const StoredWeight found = find_stored_weight(stored.index, "model.layers.0.mlp.down_proj.weight", shape, "");
    const bool int8 = found.storage == WeightStorage::Int8;
    const int64_t blocks = shape.count() / kNf4Block;
    Part codes{int8 ? DType::I8 : DType::U8, int8 ? shape : Shape{shape.count() / 2}, stored[*found.weight]};
    Part scales{found.block_scales ? DType::U8 : DType::F32, {int8 ? shape[0] : blocks}, stored[*found.scales]};
    Part x = zeros(DType::BF16, shape);
    if (found.block_scales) {
      Part block_scales{DType::F32, {1}, stored[*found.block_scales]}, offset = zeros(DType::F32, {1});
      std::memcpy(offset.bytes.data(), &found.offset, sizeof(float));
      run(Dequantize{BaseFormat::Nf4}, {&codes, &scales, &block_scales, &offset, &x});
    } else {
      run(Dequantize{int8 ? BaseFormat::Int8 : BaseFormat::Nf4, !int8}, {&codes, &scales, &x});
    }
    EXPECT_TRUE(x.bytes == expected["down_proj." + folder]) << folder;
  }
}

}  // namespace
}  // namespace snug
