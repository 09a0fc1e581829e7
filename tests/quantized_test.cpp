// Models in GPTQ, AWQ, compressed-tensors and fp8 (tests/fixtures/quantized) made plain, and damaged ones refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>

#include "expect_error.h"
#include "format/load.h"
#include "format/quantized_import.h"
#include "format/quantized_weights.h"
#include "model/model_config.h"
#include "same_tensors.h"
#include "temp_directory.h"

namespace snug {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

const fs::path kFixtures = fs::path(SNUG_FIXTURES) / "quantized";
const std::string kDown = "model.layers.0.mlp.down_proj.";  // [32, 48]
constexpr uint64_t kMost = 1 << 20;

// A file of tensors, taken apart.
struct Tensors {
  Tensors() = default;
  explicit Tensors(const fs::path& file) {
    const std::string bytes = read_text(file, kMost);
    const auto length = load<uint64_t>(std::as_bytes(std::span(bytes)).data());
    header = parse_json(bytes.substr(8, length), file.string());
    header.erase("__metadata__");
    data = bytes.substr(8 + length);
  }
  void write(const fs::path& file) const {
    const std::string text = header.dump();
    const uint64_t length = text.size();
    write_text(file, std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text + data);
  }
  void rename(const std::string& from, const std::string& to) {
    header[to] = header.at(from);
    header.erase(from);
  }
  void remove(const std::string& tensor) {
    Tensors rest;
    for (const auto& [name, entry] : header.items()) {
      const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
      if (name != tensor)
        rest.add(name, entry["dtype"].get<std::string>(), entry["shape"], data.substr(begin, end - begin));
    }
    *this = std::move(rest);
  }
  char* at(const std::string& tensor) { return data.data() + header.at(tensor)["data_offsets"][0].get<size_t>(); }
  template <class T>
  void set(const std::string& tensor, size_t i, T value) {
    std::memcpy(at(tensor) + i * sizeof(T), &value, sizeof(T));
  }
  void add(const std::string& tensor, const std::string& dtype, const std::vector<int64_t>& shape,
           const std::string& bytes) {
    header[tensor] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {data.size(), data.size() + bytes.size()}}};
    data += bytes;
  }

  Json header;
  std::string data;
};

// A fixture's copy, and what is made of it.
class Quantized : public testing::Test {
 protected:
  using Change = std::function<void(Tensors&)>;

  void copy(const std::string& name, const Change& change = {}) {
    fs::remove_all(model_);
    fs::create_directory(model_);
    fs::copy(kFixtures / name / "config.json", model_);
    Tensors tensors(kFixtures / name / "model.safetensors");
    if (change) change(tensors);
    tensors.write(model_ / "model.safetensors");
  }

  void configure(const std::function<void(Json& config)>& change) {
    Json config = parse_json(read_text(model_ / "config.json", kMost), "config.json");
    change(config);
    write_text(model_ / "config.json", config.dump());
  }

  std::vector<std::string> import() { return import_quantized(model_, out_, Existing::Replace); }

  // Refused by a message with all of the parts; and nothing is left behind.
  void expect_refused(const std::vector<std::string>& parts) {
    for (const std::string& part : parts) EXPECT_TRUE(fails_with<UserError>([&] { import(); }, part));
    EXPECT_FALSE(fs::exists(out_));
    EXPECT_FALSE(fs::exists(partial_name(out_)));
  }
  void expect_refused(const std::string& name, const Change& change, const std::vector<std::string>& parts) {
    SCOPED_TRACE(name + ": " + parts[0]);
    copy(name, change);
    expect_refused(parts);
  }

  std::string bytes_of(const std::string& tensor) const { return bytes_of(out_ / "model.safetensors", tensor); }
  static std::string bytes_of(const fs::path& file, const std::string& tensor) {
    const Tensors tensors(file);
    const Json& range = tensors.header.at(tensor)["data_offsets"];
    return tensors.data.substr(range[0], range[1].get<size_t>() - range[0].get<size_t>());
  }

  TempDirectory directory_;
  fs::path model_ = directory_.path() / "model", out_ = directory_.path() / "out";
};

// ---- What is read ---------------------------------------------------------------------------------------------------

class QuantizedFormats : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, QuantizedFormats,
                         testing::Values("gptq4", "gptq4_order", "gptq2_v2", "gptq8", "gptq_dynamic", "awq",
                                         "int8_channel", "int8_tensor", "int8_group", "packed4", "packed4_zeros",
                                         "packed8", "float_channel", "float_tensor", "float_block", "fp8_block",
                                         "fp8_ragged", "fp8_tensor", "fp8_rows"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(QuantizedFormats, ValuesAreBitIdenticalToTheFormatsOwn) {
  const TempDirectory directory;
  import_quantized(kFixtures / GetParam(), directory.path() / "out", Existing::Refuse);
  expect_same_tensors(SafetensorsIndex::open_model(directory.path() / "out"),
                      SafetensorsIndex::open_file(kFixtures / GetParam() / "expected.safetensors"));
}

TEST_F(Quantized, ConfigIsThatOfAPlainModel) {
  copy("gptq4");
  EXPECT_EQ(quantized_by(model_), QuantizationMethod::Gptq);
  EXPECT_THAT(read_model_config(model_).notes, ElementsAre(HasSubstr("quantised by gptq")));
  const std::map<std::string, std::string> beside{
      {"tokenizer.json", "a"}, {"chat_template.jinja", "b"}, {"generation_config.json", "{}"}};
  for (const auto& [name, text] : beside) write_text(model_ / name, text);
  import();
  EXPECT_EQ(quantized_by(out_), std::nullopt);
  Json expected = parse_json(read_text(model_ / "config.json", kMost), "config.json");
  expected.erase("quantization_config");
  EXPECT_EQ(parse_json(read_text(out_ / "config.json", kMost), "config.json"), expected);
  EXPECT_TRUE(read_model_config(out_).notes.empty());
  for (const auto& [name, text] : beside) EXPECT_EQ(read_text(out_ / name, kMost), text);
}

TEST_F(Quantized, NotesSayWhatIsRoundedAndWhatIsNotUsed) {
  copy("fp8_block");
  EXPECT_THAT(import(), ElementsAre(HasSubstr("fp8, e4m3, blocks of 16 x 16: 7 weights are written in bf16"),
                                    HasSubstr("--method full trains all of it")));
  copy("float_tensor");
  EXPECT_THAT(import(), ElementsAre(HasSubstr("compressed-tensors, e4m3, a scale for each linear"), testing::_,
                                    HasSubstr("not used: 7 scales of activations and caches")));
}

TEST_F(Quantized, ShardsAreReadAndMissingOnesRefused) {
  copy("awq");
  const Tensors whole(model_ / "model.safetensors");
  fs::rename(model_ / "model.safetensors", model_ / "a.safetensors");
  Tensors second = whole;
  second.header.clear();
  second.data.clear();
  const std::string norm = "model.norm.weight", scales = kDown + "scales";
  Json map;
  for (const auto& [name, entry] : whole.header.items()) map[name] = "a.safetensors";
  for (const std::string& name : {norm, scales}) {
    const std::string bytes = bytes_of(kFixtures / "awq" / "model.safetensors", name);
    second.add(name, "F16", whole.header.at(name)["shape"], bytes);
    map[name] = "b.safetensors";
  }
  write_text(model_ / "model.safetensors.index.json", Json{{"weight_map", map}}.dump());
  expect_refused({"is missing: ", "in 'b.safetensors', which is missing"});
  second.write(model_ / "b.safetensors");
  import();
  expect_same_tensors(SafetensorsIndex::open_model(out_),
                      SafetensorsIndex::open_file(kFixtures / "awq" / "expected.safetensors"));
}

TEST_F(Quantized, OlderConfigsMaySpellThingsOtherwise) {
  copy("awq");
  configure([](Json& config) {
    Json& quantization = config["quantization_config"];
    quantization = {{"quant_method", "awq"}, {"w_bit", 4}, {"q_group_size", 16}, {"version", "GEMM"}};
  });
  import();
  EXPECT_EQ(bytes_of(kDown + "weight"), bytes_of(kFixtures / "awq" / "expected.safetensors", kDown + "weight"));
  copy("packed4");
  configure([](Json& config) {
    config["quantization_config"]["quantization_status"] = "frozen";
    config["compression_config"] = config["quantization_config"];
    config.erase("quantization_config");
  });
  import();
  EXPECT_EQ(bytes_of(kDown + "weight"), bytes_of(kFixtures / "packed4" / "expected.safetensors", kDown + "weight"));
  EXPECT_FALSE(parse_json(read_text(out_ / "config.json", kMost), "config.json").contains("compression_config"));
}

// Columns of the first group take the scales of the last one, and so on.
TEST_F(Quantized, AGroupIndexSaysWhichScaleAColumnHas) {
  const std::string scale = kDown + "weight_scale";
  copy("packed4", [&](Tensors& tensors) {
    for (size_t row = 0; row < 32; ++row) {
      const auto* scales = reinterpret_cast<const uint16_t*>(tensors.at(scale)) + row * 3;
      const uint16_t first = scales[0], last = scales[2];
      tensors.set(scale, row * 3, last);
      tensors.set(scale, row * 3 + 2, first);
    }
    std::string index;
    for (int32_t c = 0; c < 48; ++c) {
      const int32_t group = 2 - c / 16;
      index.append(reinterpret_cast<const char*>(&group), sizeof(group));
    }
    tensors.add(kDown + "weight_g_idx", "I32", {48}, index);
  });
  import();
  EXPECT_EQ(bytes_of(kDown + "weight"), bytes_of(kFixtures / "packed4" / "expected.safetensors", kDown + "weight"));
}

TEST_F(Quantized, ANoteSaysWhichModulesHaveBitsAndGroupsOfTheirOwn) {
  copy("gptq_dynamic");
  EXPECT_THAT(import(),
              ElementsAre(HasSubstr("gptq, 4 bits, groups of 16: 6 weights, 1 of them gptq, 4 bits, a scale for each "
                                    "row, 2 of them gptq, 8 bits, groups of 8 are written in bf16"),
                          testing::_));
}

TEST_F(Quantized, TheLastWordOfARowMayBeFilledUp) {
  constexpr int64_t kCols = 43;
  copy("packed4", [](Tensors& tensors) { tensors.set(kDown + "weight_shape", 1, kCols); });
  import();
  const std::string whole = bytes_of(kFixtures / "packed4" / "expected.safetensors", kDown + "weight");
  const std::string found = bytes_of(kDown + "weight");
  ASSERT_EQ(found.size(), 32u * kCols * 2);
  for (size_t row = 0; row < 32; ++row)
    EXPECT_EQ(found.substr(row * kCols * 2, kCols * 2), whole.substr(row * 48 * 2, kCols * 2)) << row;
}

// ---- What is refused ------------------------------------------------------------------------------------------------

TEST_F(Quantized, RefusesFormatsThatAreNotRead) {
  const struct {
    const char* fixture;
    const char* key;
    Json value;
    const char* message;
  } cases[] = {
      {"gptq4", "quant_method", "hqq",
       "found \"hqq\", expected one of \"gptq\", \"awq\", \"compressed-tensors\", \"fp8\""},
      {"gptq4", "bits", 3, "'quantization_config.bits': found 3, expected 2, 4 or 8"},
      {"gptq4", "bits", nullptr, "'quantization_config.bits': found null, expected an integer from 1 to 32"},
      {"gptq4", "group_size", 0, "'quantization_config.group_size': found 0, expected -1, or 1 and more"},
      {"gptq4", "checkpoint_format", "marlin", "found \"marlin\", expected \"gptq\" or \"gptq_v2\""},
      {"gptq4", "is_marlin_format", true, "'quantization_config.is_marlin_format': found true, expected nothing"},
      {"awq", "bits", 8, "'quantization_config.bits': found 8, expected 4"},
      {"awq", "version", "gemv", "'quantization_config.version': found \"gemv\", expected \"gemm\""},
      {"awq", "zero_point", false, "'quantization_config.zero_point': found false, expected true"},
      {"packed4",
       "sparsity_config",
       {{"format", "sparse-24-bitmask"}},
       "found \"sparse-24-bitmask\", expected \"dense\""},
      {"packed4", "transform_config", {{"groups", 1}}, "'quantization_config.transform_config': found"},
      {"awq", "checkpoint_format", "gemv_fast", "found \"gemv_fast\", expected \"gemm\""},
      {"awq", "backend", "llm-awq", "found \"llm-awq\", expected \"autoawq\""},
      {"packed4", "config_groups", Json::object(), "'quantization_config.config_groups': found {}, expected a group"},
      {"float_tensor", "format", "nvfp4-pack-quantized",
       "found \"nvfp4-pack-quantized\", expected one of \"pack-quantized\""},
      {"float_tensor", "format", "int-quantized",
       "weights.type': found \"float\", expected \"int\", as in int-quantized"},
      {"fp8_block", "weight_block_size", {128}, "'quantization_config.weight_block_size': found [128], expected [rows"},
      {"fp8_block", "weight_block_size", {0, 128}, "expected [rows, columns], each from 1"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.message);
    copy(c.fixture);
    configure([&](Json& config) { config["quantization_config"][c.key] = c.value; });
    expect_refused({c.message});
  }
}

TEST_F(Quantized, RefusesSchemesOfCompressedTensorsThatAreNotRead) {
  const auto refused = [&](const std::function<void(Json & groups)>& change, const char* message) {
    SCOPED_TRACE(message);
    copy("packed4");
    configure([&](Json& config) { change(config["quantization_config"]["config_groups"]); });
    expect_refused({message});
  };
  const auto set = [&](const char* key, const Json& value, const char* message) {
    refused([&](Json& groups) { groups["group_0"]["weights"][key] = value; }, message);
  };
  set("num_bits", 3, "group_0.weights.num_bits': found 3, expected 2, 4 or 8");
  set("type", "float", "group_0.weights.type': found \"float\", expected \"int\", as in pack-quantized");
  set("strategy", "tensor_group", "group_0.weights.strategy': found \"tensor_group\", expected \"tensor\"");
  set("group_size", nullptr, "group_0.weights.group_size': found null, expected 1 and more");
  set("dynamic", true, "group_0.weights.dynamic': found true, expected false");
  refused(
      [](Json& groups) {
        groups["group_1"] = groups["group_0"];
        groups["group_1"]["weights"]["num_bits"] = 8;
      },
      "config_groups.group_1': found an object of 4 keys, expected the weights of the group before it");
}

TEST_F(Quantized, GroupsInAnOrderOfTheirOwnNeedAnIndex) {
  const std::string index = kDown + "g_idx";
  const auto without = [&](Tensors& t) { t.remove(index); };
  const auto order = [](Json& config) -> Json& { return config["quantization_config"]["desc_act"]; };
  for (const char* fixture : {"gptq4", "gptq4_order"}) {
    SCOPED_TRACE(fixture);
    copy(fixture, without);
    configure([&](Json& config) { order(config) = true; });
    expect_refused({"tensor '" + kDown + "qweight': found groups of 16 columns and no '" + index + "', expected it",
                    "config.json, key 'quantization_config.desc_act' says that they do not follow each other"});
    configure([&](Json& config) { order(config) = false; });
    import();
    fs::remove_all(out_);
  }
  // A row that is one group has no order.
  copy("gptq2_v2", without);
  configure([&](Json& config) { order(config) = true; });
  import();
  fs::remove_all(out_);
  for (const Json& value : {Json("group"), Json("dynamic"), Json(true)}) {
    SCOPED_TRACE(value.dump());
    copy("packed4");
    const auto set = [&](const Json& to) {
      configure(
          [&](Json& config) { config["quantization_config"]["config_groups"]["group_0"]["weights"]["actorder"] = to; });
    };
    set(value);
    expect_refused(
        {"weight_packed': found groups of 16 columns and no 'model.layers.0.", "weights.actorder' says that"});
    set("weight");
    import();
    fs::remove_all(out_);
    set("else");
    expect_refused({"weights.actorder': found \"else\", expected \"group\" or \"weight\""});
  }
}

TEST_F(Quantized, RulesForModulesAreHonouredOrRefusedByKey) {
  const std::string qweight = "model.safetensors, tensor '" + kDown + "qweight': found I32 [12, 32], expected ";
  const auto refused = [&](const Json& rules, const std::string& message) {
    SCOPED_TRACE(message);
    copy("gptq_dynamic");
    configure([&](Json& config) { config["quantization_config"]["dynamic"] = rules; });
    expect_refused({message});
  };
  const std::string key = "config.json, key 'quantization_config.dynamic";
  refused({{"a", {{"bits", 3}}}}, key + ".a.bits': found 3, expected 2, 4 or 8");
  refused({{"a", {{"bits", 4}, {"rotation", "hadamard"}}}},
          key + ".a.rotation': found \"hadamard\", expected \"bits\"");
  refused({{"a)(b", {{"bits", 4}}}}, key + ".a)(b': found 'a)(b', expected a regular expression");
  refused({{"+:a", 4}}, key + ".+:a': found 4, expected an object");
  refused({{"-:.*down", Json::object()}},
          qweight + "no codes: '-:.*down' among the keys of 'dynamic' in config.json leaves the module plain");
  refused({{".*down", {{"bits", 8}, {"group_size", 8}}}, {".*do", {{"bits", 8}}}},
          qweight + "one key of 'dynamic' for it: '.*do' and '.*down' of config.json say otherwise");
  // Without the rules the codes are other ones.
  refused(Json::object(), "qzeros': found I32 [6, 8], expected I32 [6, 4]");
}

TEST_F(Quantized, RefusesAPlainModel) {
  copy("fp8_block");
  configure([](Json& config) { config.erase("quantization_config"); });
  expect_refused({"config.json: found no 'quantization_config', and '" + kDown + "weight_scale_inv' in ",
                  "model.safetensors, codes of '" + kDown + "weight': config.json needs the key"});
  fs::copy(kFixtures / "fp8_block" / "expected.safetensors", model_ / "model.safetensors",
           fs::copy_options::overwrite_existing);
  expect_refused({"config.json: found no 'quantization_config'", "read as they are, by --model"});
}

TEST_F(Quantized, RefusesMissingParts) {
  const auto missing = [&](const char* fixture, const std::string& part) {
    expect_refused(fixture, [&](Tensors& t) { t.rename(kDown + part, "z"); },
                   {"model.safetensors, tensor '" + kDown, "but '" + kDown + part + "' is missing"});
  };
  missing("gptq4", "qzeros");
  missing("gptq4", "scales");
  missing("awq", "qzeros");
  missing("packed4", "weight_scale");
  missing("packed4", "weight_shape");
  missing("packed4_zeros", "weight_zero_point");
  missing("fp8_tensor", "weight_scale_inv");
  missing("float_channel", "weight_scale");
  expect_refused("gptq4", [](Tensors& t) { t.rename(kDown + "qweight", "z"); },
                 {"tensor '" + kDown + "g_idx': found I32 [48], expected '" + kDown + "qweight' of I32 beside it"});
  expect_refused("fp8_block", [](Tensors& t) { t.rename(kDown + "weight", kDown + "gone"); },
                 {"found F8_E4M3 [32, 48], expected"});
}

TEST_F(Quantized, RefusesOtherShapesAndTypes) {
  const auto set = [](const std::string& part, const char* key, const Json& value) {
    return [=](Tensors& t) { t.header[kDown + part][key] = value; };
  };
  expect_refused("gptq4", set("qweight", "shape", {192}), {"found I32 [192], expected I32, two sizes above 0"});
  expect_refused("gptq4", set("qweight", "dtype", "F32"), {"found F32 [6, 32], expected I32, two sizes above 0"});
  expect_refused("gptq4", set("qweight", "shape", {3, 64}), {"g_idx': found I32 [48], expected I32 [24]"});
  expect_refused("gptq4", set("scales", "shape", {6, 16}),
                 {"scales': found F16 [6, 16], expected F32 or BF16 or F16 [3, 32]"});
  expect_refused("gptq4", set("scales", "dtype", "I16"),
                 {"scales': found I16 [3, 32], expected F32 or BF16 or F16 [3, 32]"});
  expect_refused("gptq4", set("qzeros", "shape", {4, 3}), {"qzeros': found I32 [4, 3], expected I32 [3, 4]"});
  expect_refused("awq", set("qzeros", "shape", {4, 3}), {"qzeros': found I32 [4, 3], expected I32 [3, 4]"});
  expect_refused("packed4", set("weight_shape", "shape", {1, 2}), {"found I64 [1, 2], expected I64 [2]"});
  expect_refused("packed4_zeros", set("weight_zero_point", "shape", {3, 4}), {"found I32 [3, 4], expected I32 [4, 3]"});
  expect_refused("int8_group", set("weight_zero_point", "shape", {3, 32}), {"found I8 [3, 32], expected I8 [32, 3]"});
  expect_refused("fp8_block", set("weight_scale_inv", "shape", {3, 2}),
                 {"found F32 [3, 2], expected F32 or BF16 or F16 [2, 3]"});
  expect_refused("fp8_tensor", set("weight", "dtype", "F8_E5M2"), {"found F8_E5M2 [32, 48], expected"});
  // A config that says otherwise than the files.
  copy("gptq4");
  configure([](Json& config) { config["quantization_config"]["bits"] = 8; });
  expect_refused({"g_idx': found I32 [", "expected I32 ["});
  copy("gptq4");
  configure([](Json& config) { config["quantization_config"]["group_size"] = 8; });
  expect_refused({"scales': found F16 [", "expected F32 or BF16 or F16 [6, 32]"});
  copy("fp8_block");
  configure([](Json& config) { config["quantization_config"]["quant_method"] = "awq"; });
  expect_refused({"'quantization_config.bits' is missing"});
}

TEST_F(Quantized, RefusesNumbersThatCannotBe) {
  const std::string index = kDown + "g_idx", shape = kDown + "weight_shape";
  for (const int32_t group : {-1, 3, INT32_MAX})
    expect_refused("gptq4", [&](Tensors& t) { t.set(index, 5, group); },
                   {"tensor '" + index + "', element 5: found group " + std::to_string(group) + ", expected 0 to 2"});
  for (const int64_t cols : {int64_t{0}, int64_t{40}, int64_t{49}, INT64_MAX, INT64_MIN})
    expect_refused("packed4", [&](Tensors& t) { t.set(shape, 1, cols); },
                   {"tensor '" + shape + "': found [32, " + std::to_string(cols) + "], expected [32, 48], or less"});
  expect_refused("packed4", [&](Tensors& t) { t.set(shape, 0, int64_t{31}); }, {"found [31, 48], expected [32, 48]"});
  constexpr uint16_t kHalfInfinity = 0x7c00;
  expect_refused(
      "gptq4", [](Tensors& t) { t.set(kDown + "scales", 33, kHalfInfinity); },
      {"tensor '" + kDown + "qweight': found ", " times a scale of inf in row 1, column 16, expected a finite number"});
  expect_refused(
      "fp8_tensor", [](Tensors& t) { t.set(kDown + "weight", 50, uint8_t{0x7f}); },
      {"tensor '" + kDown + "weight': found nan times a scale of ", "in row 1, column 2, expected a finite number"});
}

TEST_F(Quantized, RefusesTensorsThatNoSuchModelHas) {
  expect_refused("gptq4", [](Tensors& t) { t.add(kDown + "weight", "F16", {1}, "ab"); },
                 {"tensor '" + kDown + "qweight': found I32 [6, 32], expected either this or '" + kDown + "weight'"});
  expect_refused(
      "gptq4", [](Tensors& t) { t.add("x", "I64", {1}, "abcdefgh"); },
      {"tensor 'x': found I64 [1], expected up to four sizes above 0 of F32, BF16 or F16, or what gptq stores"});
  expect_refused("gptq4",
                 [](Tensors& t) {
                   t.add("x", "F16", {1, 1, 1, 1, 1}, "ab");
                 },
                 {"tensor 'x': found F16 [1, 1, 1, 1, 1]"});
  expect_refused("gptq4",
                 [](Tensors& t) {
                   t.add("x", "F16", {4294967296, 0}, "");
                 },
                 {"tensor 'x': found F16 [4294967296, 0], expected up to four sizes above 0"});
  expect_refused("fp8_block", [](Tensors& t) { t.add("x.weight_scale", "F32", {1}, "abcd"); },
                 {"tensor 'x.weight_scale': found F32 [1], expected 'x.weight' of F8_E4M3 beside it"});
  copy("fp8_block");
  configure([](Json& config) {
    config["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 16}};
  });
  expect_refused({"found F8_E4M3 ["});
  copy("fp8_block", [](Tensors& t) {
    const Json header = t.header;
    for (const auto& [name, entry] : header.items())
      if (entry["dtype"] == "F8_E4M3" || name.ends_with("_inv")) t.remove(name);
  });
  expect_refused({"found no tensor '*.weight' of F8_E4M3, as fp8 stores them"});
}

}  // namespace
}  // namespace snug
