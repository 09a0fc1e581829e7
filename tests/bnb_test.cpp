// Linears that bitsandbytes quantised, in directories that transformers saved (tests/fixtures/bnb) and in damaged ones.
#include "format/bnb.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <sstream>

#include "expect_error.h"
#include "format/json.h"
#include "format/load.h"
#include "model/model_config.h"
#include "temp_directory.h"

namespace snug {
namespace {

const std::filesystem::path kFixtures = std::filesystem::path(SNUG_FIXTURES) / "bnb";
constexpr std::string_view kDown = "model.layers.0.mlp.down_proj.weight";
const Shape kDownShape{32, 80};

StoredWeight find(const SafetensorsIndex& index) { return find_stored_weight(index, kDown, kDownShape, "config.json"); }

TEST(Bnb, FindsCodesAndScalesOfInt8) {
  const auto index = SafetensorsIndex::open_model(kFixtures / "int8");
  const StoredWeight stored = find(index);
  EXPECT_EQ(stored.storage, WeightStorage::Int8);
  EXPECT_EQ(stored.weight->name, kDown);
  EXPECT_EQ(stored.scales->name, "model.layers.0.mlp.down_proj.SCB");
  EXPECT_EQ(stored.block_scales, nullptr);
}

TEST(Bnb, FindsNf4WithScalesQuantisedTwice) {
  const auto index = SafetensorsIndex::open_model(kFixtures / "nf4");
  const StoredWeight stored = find(index);
  EXPECT_EQ(stored.storage, WeightStorage::Nf4);
  EXPECT_EQ(stored.weight->bytes, 32u * 80 / 2);
  EXPECT_EQ(stored.scales->bytes, 32u * 80 / 64);
  ASSERT_NE(stored.block_scales, nullptr);
  EXPECT_EQ(stored.block_scales->bytes, 4u);
  EXPECT_GT(stored.offset, 0);
}

TEST(Bnb, FindsNf4WithPlainScales) {
  const auto index = SafetensorsIndex::open_model(kFixtures / "nf4_single");
  const StoredWeight stored = find(index);
  EXPECT_EQ(stored.storage, WeightStorage::Nf4);
  EXPECT_EQ(stored.scales->bytes, 32u * 80 / 64 * 4);
  EXPECT_EQ(stored.block_scales, nullptr);
  EXPECT_EQ(stored.offset, 0);
}

TEST(Bnb, PlainWeightsStayPlain) {
  const auto index = SafetensorsIndex::open_model(kFixtures / "nf4");
  const StoredWeight stored = find_stored_weight(index, "model.embed_tokens.weight", {40, 32}, "config.json");
  EXPECT_EQ(stored.storage, WeightStorage::Plain);
  EXPECT_EQ(stored.weight->dtype, DType::BF16);
  EXPECT_EQ(stored.scales, nullptr);
}

TEST(Bnb, ConfigSaysWhichKind) {
  const auto quantization = [](const char* folder) { return *read_model_config(kFixtures / folder).quantization; };
  EXPECT_TRUE(quantization("nf4").nf4 && quantization("nf4").nested);
  EXPECT_TRUE(quantization("nf4_single").nf4 && !quantization("nf4_single").nested);
  EXPECT_FALSE(quantization("int8").nf4 || quantization("int8").nested);
}

// ---- Damage ---------------------------------------------------------------------------------------------------------

// A fixture's file with its header or its data changed, and the error that finding down_proj in it gives.
void expect_refused(const char* fixture, const std::function<void(Json& header, std::string& data)>& change,
                    std::string_view message) {
  std::ostringstream whole;
  whole << std::ifstream(kFixtures / fixture / "model.safetensors", std::ios::binary).rdbuf();
  const std::string bytes = whole.str();
  const auto length = load<uint64_t>(std::as_bytes(std::span(bytes)).data());
  Json header = parse_json(bytes.substr(8, length), fixture);
  std::string data = bytes.substr(8 + length);
  change(header, data);
  const std::string text = header.dump();
  const uint64_t size = text.size();
  const TempDirectory folder;
  std::ofstream(folder.path() / "model.safetensors", std::ios::binary)
      << std::string_view(reinterpret_cast<const char*>(&size), 8) << text << data;
  const auto index = SafetensorsIndex::open_model(folder.path());
  EXPECT_TRUE(fails_with<UserError>([&] { find(index); }, message)) << message;
}

std::string part(const char* suffix) { return std::string(kDown) + suffix; }
const std::string kState = part(".quant_state.bitsandbytes__nf4");

void rename(Json& header, const std::string& from, const std::string& to) {
  header[to] = header.at(from);
  header.erase(from);
}

char* data_of(const Json& header, std::string& data, const std::string& tensor) {
  return data.data() + header.at(tensor)["data_offsets"][0].get<size_t>();
}

TEST(Bnb, RefusesMissingParts) {
  for (const std::string& name :
       {kState, part(".absmax"), part(".nested_absmax"), part(".quant_map"), part(".nested_quant_map")})
    expect_refused(
        "nf4", [&](Json& header, std::string&) { rename(header, name, "gone"); }, "'" + name + "' is missing");
  expect_refused(
      "int8", [](Json& header, std::string&) { rename(header, "model.layers.0.mlp.down_proj.SCB", "gone"); },
      "down_proj.SCB' is missing");
  expect_refused(
      "nf4", [](Json& header, std::string&) { rename(header, kState, part(".quant_state.bitsandbytes__fp4")); },
      "found bitsandbytes' fp4, expected nf4");
}

TEST(Bnb, RefusesOtherShapesAndTypes) {
  const auto set = [](std::string name, const char* key, Json value) {
    return [=](Json& header, std::string&) { header[name][key] = value; };
  };
  expect_refused("int8", set(std::string(kDown), "shape", {80, 32}), "found I8 [80, 32], expected I8 [32, 80]");
  expect_refused("int8", set("model.layers.0.mlp.down_proj.SCB", "shape", {16, 2}), "expected F32 [32]");
  expect_refused("int8", set("model.layers.0.mlp.down_proj.SCB", "dtype", "I32"), "found I32 [32]");
  expect_refused("nf4", set(std::string(kDown), "shape", {1, 1280}), "found U8 [1, 1280], expected U8 [1280, 1]");
  expect_refused("nf4", set(part(".absmax"), "dtype", "I8"), "found I8 [40], expected U8 [40]");
  expect_refused("nf4", set(part(".nested_absmax"), "dtype", "I32"), "expected F32 [1]");
  expect_refused("nf4", set(part(".quant_map"), "shape", {4, 4}), "expected F32 [16]");
  expect_refused("nf4_single", set(part(".absmax"), "dtype", "U32"), "found U32 [40], expected F32 [40]");
  expect_refused("nf4", set(kState, "dtype", "I8"), "bytes of I8, expected at most 4096 of U8");
}

TEST(Bnb, RefusesAnotherCodebookOrOrder) {
  const auto set_number = [](const char* suffix, size_t place, float value) {
    return [=](Json& header, std::string& data) {
      std::memcpy(data_of(header, data, part(suffix)) + 4 * place, &value, 4);
    };
  };
  expect_refused("nf4", set_number(".quant_map", 3, -0.4f), "quant_map', element 3: found -0.4, expected -0.3949");
  expect_refused("nf4", set_number(".nested_quant_map", 0, -1), "element 0: found -1, expected -0.99");
  expect_refused("nf4", set_number(".nested_quant_map", 9, std::numeric_limits<float>::quiet_NaN()), "element 9");
  expect_refused(
      "int8",
      [](Json& header, std::string& data) { *data_of(header, data, "model.layers.0.mlp.down_proj.weight_format") = 1; },
      "found 1, expected 0");
}

TEST(Bnb, RefusesAnotherState) {
  const auto replace = [](std::string from, std::string to) {
    return [=](Json& header, std::string& data) {
      const size_t state = header.at(kState)["data_offsets"][0].get<size_t>();
      data.replace(data.find(from, state), from.size(), to);
    };
  };
  expect_refused("nf4", replace("\"nf4\"", "\"fp4\""), "key 'quant_type': found \"fp4\"");
  expect_refused("nf4", replace("\"blocksize\": 64", "\"blocksize\": 65"), "key 'blocksize': found 65");
  expect_refused("nf4", replace("[32, 80]", "[80, 32]"), "found shape [80, 32], expected [32, 80] (config.json)");
  expect_refused("nf4", replace("[32, 80]", "[32, 8]}"), "expected JSON");
  expect_refused("nf4", replace("e\": 256", "e\": 255"), "key 'nested_blocksize': found 255");
  expect_refused("nf4", replace("\"float32\"", "\"float16\""), "key 'nested_dtype'");
}

TEST(Nf4State, RefusesNonsense) {
  const auto state = [](const char* shape, const char* more) {
    return fmt::format(R"({{"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": {}{}}})", shape, more);
  };
  EXPECT_EQ(parse_nf4_state(state("[3, 64]", ""), "x").cols, 64);
  const char* shapes[] = {"null",   "[]", "[64]", "[1, 1, 64]", "[0, 64]", "[-1, 64]", "[1.5, 64]", "[4294967296, 64]",
                          "[3, 63]"};
  for (const char* shape : shapes)
    EXPECT_TRUE(fails_with<UserError>([&] { parse_nf4_state(state(shape, ""), "x"); }, "'shape'")) << shape;
  const char* offsets[] = {"", ", \"nested_offset\": -1", ", \"nested_offset\": 1e39", ", \"nested_offset\": \"0\""};
  for (const char* offset : offsets) {
    const std::string more = std::string(R"(, "nested_blocksize": 256, "nested_dtype": "float32")") + offset;
    EXPECT_TRUE(fails_with<UserError>([&] { parse_nf4_state(state("[1, 64]", more.c_str()), "x"); }, "nested_offset"))
        << offset;
  }
}

}  // namespace
}  // namespace snug
