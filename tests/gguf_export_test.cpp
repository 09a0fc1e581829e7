// GGUF files that are written: against the gguf package, llama.cpp's quantiser and its converter of adapters
// (scripts/make_gguf_fixtures.py), and against snug's own import.
#include "train/gguf_export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <set>

#include "base/file.h"
#include "expect_error.h"
#include "format/gguf_import.h"
#include "format/gguf_pretokenizers.h"
#include "format/gguf_vocabulary.h"
#include "format/json.h"
#include "format/peft.h"
#include "format/safetensors.h"
#include "format/tokenizer.h"
#include "model/model_config.h"
#include "temp_directory.h"

namespace snug {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::HasSubstr;

const fs::path kFixtures = fs::path(SNUG_FIXTURES) / "gguf";

Json fixture(const std::string& name) { return parse_json(read_text(kFixtures / name, 1'000'000), name); }

std::vector<std::byte> bytes_of(const fs::path& file, const GgufTensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes);
  File::open_read(file, IoMode::Buffered).read(tensor.offset, bytes);
  return bytes;
}

std::vector<float> values_of(const fs::path& file, const GgufTensor& tensor) {
  uint64_t count = 1;
  for (const int64_t size : tensor.shape) count *= static_cast<uint64_t>(size);
  std::vector<float> values(count);
  dequantize(tensor.type, bytes_of(file, tensor), values);
  return values;
}

// ---- Types ----

class Quantize : public testing::Test {
 protected:
  const fs::path file_ = kFixtures / "quantized.gguf";
  const GgufHeader header_ = read_gguf({file_});
  const std::vector<float> values_ = values_of(file_, *header_.find("values"));
};

TEST_F(Quantize, WritesTheBytesOfTheGgufPackage) {
  for (const std::string type : {"F16", "BF16", "Q8_0", "Q5_0", "Q5_1"}) {
    const GgufTensor& tensor = *header_.find(type);
    std::vector<std::byte> bytes(tensor.bytes);
    quantize(tensor.type, values_, bytes);
    EXPECT_EQ(bytes, bytes_of(file_, tensor)) << type;
  }
}

// The squared errors of rows, each over the row's own squares, are together at most those of llama.cpp's quantiser.
TEST_F(Quantize, KTypesErrNoMoreThanLlamaCpp) {
  const Json errors = fixture("errors.json");
  for (const GgufType type : {GgufType::Q4_K, GgufType::Q5_K, GgufType::Q6_K}) {
    std::vector<std::byte> bytes(row_bytes(type, values_.size()));
    std::vector<float> found(values_.size());
    quantize(type, values_, bytes);
    dequantize(type, bytes, found);
    double mine = 0, theirs = 0;
    for (size_t row = 0; row < 16; ++row) {
      double error = 0, squares = 0;
      for (size_t i = row * 256; i < row * 256 + 256; ++i) {
        error += std::pow(static_cast<double>(found[i]) - values_[i], 2);
        squares += std::pow(static_cast<double>(values_[i]), 2);
      }
      mine += squares > 0 ? error / squares : error;
      theirs += errors[name(type)][row].get<double>();
    }
    EXPECT_LE(mine, theirs) << name(type);
    EXPECT_GT(mine, 0.5 * theirs) << name(type);
  }
}

TEST(GgufFileTypes, GiveEachTensorTheTypeThatLlamaCppGivesIt) {
  for (const Json& c : fixture("mixtures.json")) {
    const GgufSizes sizes{.architecture = find_gguf_architecture(c["architecture"].get<std::string>()),
                          .hidden = c["hidden"],
                          .inner = c["inner"],
                          .layers = c["layers"],
                          .heads = c["heads"],
                          .kv_heads = c["kv_heads"],
                          .head_dim = c["head_dim"],
                          .vocabulary = 259,
                          .own_head = c["own_head"]};
    for (const GgufFileType file : {GgufFileType::F16, GgufFileType::BF16, GgufFileType::Q8_0, GgufFileType::Q4_K_M}) {
      std::map<std::string, std::string> by_name;
      std::string usual;
      for (const auto& [type, names] : c[name(file)].items()) {
        if (names.is_string()) usual = type;
        if (names.is_array())
          for (const Json& tensor : names) by_name[tensor] = type;
      }
      for (const GgufTensorName& tensor : gguf_tensor_names(sizes)) {
        if (tensor.shape.rank < 2) continue;
        const auto named = by_name.find(tensor.gguf);
        EXPECT_EQ(name(gguf_tensor_type(file, tensor, sizes)), named == by_name.end() ? usual : named->second)
            << tensor.gguf << " of " << c.dump() << " in " << name(file);
      }
    }
  }
}

TEST(GgufFileTypes, AreSpeltEitherWay) {
  EXPECT_EQ(gguf_file_type("q4_k_m"), GgufFileType::Q4_K_M);
  EXPECT_EQ(gguf_file_type("Q4_K_M"), GgufFileType::Q4_K_M);
  EXPECT_EQ(gguf_file_type("q4_k"), std::nullopt);
}

// ---- Models ----

class GgufExport : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { import_gguf(kFixtures / (std::string(GetParam()) + ".gguf"), model_, Existing::Refuse); }
  TempDirectory directory_;
  const fs::path model_ = directory_.path() / "model", file_ = directory_.path() / "x.gguf";
};
INSTANTIATE_TEST_SUITE_P(All, GgufExport,
                         testing::Values("smollm", "llama3", "qwen2", "qwen3", "smollm3", "mistral", "llama_bias",
                                         "granite", "gemma", "gemma2", "gemma3", "olmo2", "olmo3", "exaone4", "glm4",
                                         "hunyuan", "command_r", "cohere2", "phi3", "phi4_mini", "chatglm", "arcee",
                                         "stablelm", "nemotron", "ernie4_5", "seed_oss", "stablelm_12b", "granite4",
                                         "ministral3", "starcoder2"));

// Weights, configuration, tokenizer and template: each file has the bytes that it had.
TEST_P(GgufExport, WhatIsImportedAgainIsTheModel) {
  export_gguf_model(read_model_config(model_), model_, model_, file_, GgufFileType::BF16, "x");
  import_gguf(file_, directory_.path() / "again", Existing::Refuse);
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(model_)) {
    const std::string name = entry.path().filename().string();
    const std::string was = read_text(entry.path(), 1'000'000),
                      is = read_text(directory_.path() / "again" / name, 1'000'000);
    EXPECT_EQ(is, was) << name;
    ++files;
  }
  EXPECT_EQ(files, 5u);
}

TEST_P(GgufExport, QuantizedValuesAreThoseOfTheRows) {
  export_gguf_model(read_model_config(model_), model_, model_, file_, GgufFileType::Q8_0, "x");
  const GgufHeader header = read_gguf({file_});
  const auto index = SafetensorsIndex::open_model(model_);
  const SafetensorsEntry& entry = *index.find(
      fmt::format("model.layers.0.{}.weight", find_gguf_architecture(header.string("general.architecture"))->down));
  std::vector<BFloat16> stored(entry.bytes / 2);
  File::open_read(index.files()[0], IoMode::Buffered).read(entry.offset, std::as_writable_bytes(std::span(stored)));
  const std::vector<float> values(stored.begin(), stored.end());
  const GgufTensor& tensor = *header.find("blk.0.ffn_down.weight");
  ASSERT_EQ(tensor.type, GgufType::Q8_0);
  std::vector<std::byte> expected(tensor.bytes);
  quantize(GgufType::Q8_0, values, expected);
  EXPECT_EQ(bytes_of(file_, tensor), expected);
}

TEST(GgufExportTemplates, WithNamesComeBack) {
  const TempDirectory directory;
  const fs::path model = directory.path() / "m", file = directory.path() / "x.gguf";
  import_gguf(kFixtures / "smollm.gguf", model, Existing::Refuse);
  Json json = parse_json(read_text(model / "tokenizer_config.json", 100000), "tokenizer_config.json");
  json["chat_template"] = {{{"name", "default"}, {"template", "D"}}, {{"name", "tool_use"}, {"template", "T"}}};
  write_text(model / "tokenizer_config.json", json.dump());
  export_gguf_model(read_model_config(model), model, model, file, GgufFileType::Q8_0, "x");
  const GgufHeader header = read_gguf({file});
  EXPECT_EQ(header.string("tokenizer.chat_template"), "D");
  EXPECT_EQ(header.string("tokenizer.chat_template.tool_use"), "T");
  EXPECT_EQ(header.strings("tokenizer.chat_templates"), std::vector<std::string>{"tool_use"});
  EXPECT_EQ(parse_json(gguf_tokenizer_config(header), "x")["chat_template"], json["chat_template"]);
}

TEST(GgufExportRope, Llama3sScalingOfOtherConstantsIsReadBack) {
  const TempDirectory directory;
  const fs::path model = directory.path() / "m", file = directory.path() / "x.gguf", again = directory.path() / "n";
  import_gguf(kFixtures / "llama3.gguf", model, Existing::Refuse);
  Json json = parse_json(read_text(model / "config.json", 100000), "config.json");
  json["rope_scaling"]["original_max_position_embeddings"] = 64;
  json["rope_scaling"]["low_freq_factor"] = 2.0;
  json["rope_scaling"]["high_freq_factor"] = 5.0;
  write_text(model / "config.json", json.dump());
  export_gguf_model(read_model_config(model), model, model, file, GgufFileType::Q8_0, "x");
  import_gguf(file, again, Existing::Refuse);
  const auto factors = [](const fs::path& from) {
    const ModelSpec spec = read_model_config(from).spec;
    return llama3_rope_factors(spec.rope, spec.layers.at(0).heads.dim);
  };
  const std::vector<double> was = factors(model), is = factors(again);
  ASSERT_EQ(is.size(), was.size());
  for (size_t i = 0; i < is.size(); ++i) EXPECT_NEAR(is[i], was[i], 1e-4 * was[i]);
}

TEST(GgufExportRope, ScalingsComeBackAsTheyWere) {
  const TempDirectory directory;
  const fs::path model = directory.path() / "m", file = directory.path() / "x.gguf";
  import_gguf(kFixtures / "qwen3.gguf", model, Existing::Refuse);
  Json json = parse_json(read_text(model / "config.json", 100000), "config.json");
  const auto again = [&](const Json& scaling) {
    json["rope_scaling"] = scaling;
    write_text(model / "config.json", json.dump());
    export_gguf_model(read_model_config(model), model, model, file, GgufFileType::Q8_0, "x");
    return parse_json(gguf_model_config(read_gguf({file})), "x")["rope_scaling"];
  };
  EXPECT_EQ(again({{"rope_type", "linear"}, {"factor", 4.0}}), (Json{{"rope_type", "linear"}, {"factor", 4.0}}));
  EXPECT_EQ(again({{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}}),
            (Json{{"rope_type", "yarn"},
                  {"factor", 4.0},
                  {"original_max_position_embeddings", 32},
                  {"beta_fast", 32.0},
                  {"beta_slow", 1.0}}));
  EXPECT_TRUE(fails_with<UserError>(
      [&] {
        again({{"rope_type", "yarn"},
               {"factor", 4.0},
               {"attention_factor", 1.0},
               {"original_max_position_embeddings", 32}});
      },
      "found rope scaling of type yarn with an attention factor of its own"));
  EXPECT_TRUE(fails_with<UserError>(
      [&] {
        again({{"rope_type", "dynamic"}, {"factor", 4.0}});
      },
      "found rope scaling of type dynamic, which GGUF's qwen3 has no form for"));
}

TEST(GgufExportRefusals, NameWhatHasNoForm) {
  const TempDirectory directory;
  const fs::path model = directory.path() / "m", file = directory.path() / "x.gguf";
  import_gguf(kFixtures / "smollm.gguf", model, Existing::Refuse);
  const auto refused = [&](const std::string& from, const std::string& to, std::string_view part) {
    const std::string was = read_text(model / "config.json", 100000);
    std::string changed = was;
    changed.replace(changed.find(from), from.size(), to);
    write_text(model / "config.json", changed);
    const auto result = fails_with<UserError>(
        [&] { export_gguf_model(read_model_config(model), model, model, file, GgufFileType::F16, "x"); }, part);
    write_text(model / "config.json", was);
    return result;
  };
  EXPECT_TRUE(refused("\"attention_bias\": false", "\"attention_bias\": true", "q_proj.bias"));
  EXPECT_TRUE(refused("\"num_hidden_layers\": 1", "\"num_hidden_layers\": 2", "model.layers.1."));
  fs::remove(model / "tokenizer.json");
  EXPECT_TRUE(refused("{", "{", "tokenizer.json"));
}

// What llama.cpp takes for granted of an architecture, and families of which it has another form.
TEST(GgufExportRefusals, NameLayersAndFamiliesWithoutAForm) {
  const TempDirectory directory;
  const fs::path file = directory.path() / "x.gguf";
  const auto refused = [&](const fs::path& model, std::string_view part) {
    return fails_with<UserError>(
        [&] { export_gguf_model(read_model_config(model), model, model, file, GgufFileType::F16, "x"); }, part);
  };
  import_gguf(kFixtures / "exaone4_window.gguf", directory.path() / "exaone4", Existing::Refuse);
  EXPECT_TRUE(refused(directory.path() / "exaone4",
                      "found 4 layers, some with a window, expected 64 of these in GGUF's exaone4"));
  const fs::path models = fs::path(SNUG_FIXTURES) / "models";
  EXPECT_TRUE(refused(models / "cohere", "layer 0 has a bias on o_proj, which GGUF's command-r has no form for"));
  EXPECT_TRUE(refused(models / "cohere2", "layer 1 sees all tokens, which GGUF's cohere2 has no form for"));
  EXPECT_TRUE(refused(models / "olmo3", "expected 10000 in a GGUF file"));
  EXPECT_TRUE(
      refused(models / "llama_longrope", "found rope scaling of type longrope, which GGUF's llama has no form for"));
  EXPECT_TRUE(refused(models / "cwm", "found a CwmForCausalLM, expected a model of GGUF's \"llama\", "));
  EXPECT_TRUE(refused(models / "helium", "found a HeliumForCausalLM, expected a model of GGUF's \"llama\", "));
  EXPECT_TRUE(refused(models / "ernie4_5", "layer 0 has a bias on o_proj, which GGUF's ernie4_5 has no form for"));
  import_gguf(kFixtures / "starcoder2.gguf", directory.path() / "starcoder2", Existing::Refuse);
  Json config = parse_json(read_text(directory.path() / "starcoder2/config.json", 100000), "x");
  config["use_bias"] = false;
  write_text(directory.path() / "starcoder2/config.json", config.dump());
  EXPECT_TRUE(
      refused(directory.path() / "starcoder2", "layer 0 has no biases, which GGUF's starcoder2 has no form for"));
  EXPECT_TRUE(refused(models.parent_path() / "vision/qwen2_vl",
                      "found a Qwen2VLForConditionalGeneration, expected a model of GGUF's \"llama\", "));
}

// Files say it, and llama.cpp's graphs of these have no window.
TEST(GgufExportNotes, NameAWindowThatLlamaCppPassesOver) {
  for (const char* name : {"mistral", "phi3", "starcoder2"}) {
    const TempDirectory directory;
    const fs::path model = directory.path() / "m", file = directory.path() / "x.gguf";
    import_gguf(kFixtures / fmt::format("{}.gguf", name), model, Existing::Refuse);
    EXPECT_THAT(export_gguf_model(read_model_config(model), model, model, file, GgufFileType::BF16, "x"),
                Contains("llama.cpp attends to all tokens, the model to the last 7: longer texts differ"))
        << name;
  }
}

// 70000 is no fp16.
TEST(GgufExportRefusals, ValuesBeyondTheTypeAreNamed) {
  const TempDirectory directory;
  const fs::path model = directory.path() / "m", file = directory.path() / "x.gguf";
  import_gguf(kFixtures / "smollm.gguf", model, Existing::Refuse);
  const auto index = SafetensorsIndex::open_model(model);
  const uint64_t offset = index.find("model.layers.0.mlp.up_proj.weight")->offset;
  std::string weights = read_text(model / "model.safetensors", 1'000'000);
  const uint16_t large = BFloat16(70000.0f).bits;
  std::memcpy(weights.data() + offset, &large, sizeof(large));
  write_text(model / "model.safetensors", weights);
  for (const GgufFileType type : {GgufFileType::F16, GgufFileType::Q8_0, GgufFileType::Q4_K_M})
    EXPECT_TRUE(
        fails_with<UserError>([&] { export_gguf_model(read_model_config(model), model, model, file, type, "x"); },
                              "tensor 'model.layers.0.mlp.up_proj.weight': found 70144, expected at most 65504"));
  EXPECT_NO_THROW(export_gguf_model(read_model_config(model), model, model, file, GgufFileType::BF16, "x"));
}

// ---- Tokenizers ----

// The tokenizer of a directory, written to GGUF and read again.
Tokenizer through_gguf(const fs::path& directory, int64_t rows) {
  GgufWriter writer;
  writer.add("general.architecture", "llama");
  add_gguf_tokenizer(writer, directory, rows, {});
  const std::string bytes = writer.layout().header;
  const GgufHeader header = parse_gguf(
      [&](uint64_t offset, std::span<std::byte> out) { std::memcpy(out.data(), bytes.data() + offset, out.size()); },
      bytes.size(), "x.gguf");
  return Tokenizer::parse({.tokenizer = gguf_tokenizer(header)});
}

class GgufVocabulary : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Kinds, GgufVocabulary, testing::Values("gpt2", "command_r", "o200k", "tekken", "qwen3_5"));

// A tokenizer.json that went through GGUF gives the ids that the tokenizers library gives it (tokenizer_kinds).
TEST_P(GgufVocabulary, TokenizersThatComeBackEncodeAsBefore) {
  const fs::path kinds = fs::path(SNUG_FIXTURES) / "tokenizer_kinds";
  const Json kind = parse_json(read_text(kinds / "kinds.json", 1'000'000), "kinds.json")[GetParam()];
  Json json = parse_json(read_text(kinds / "bases.json", 10'000'000), "bases.json")[kind["base"].get<std::string>()];
  json.merge_patch(kind["patch"]);
  // GGUF has no place for how added tokens are found in a text.
  for (Json& token : json["added_tokens"])
    for (const char* flag : {"lstrip", "rstrip", "single_word", "normalized"}) token[flag] = false;
  const TempDirectory directory;
  write_text(directory.path() / "tokenizer.json", json.dump());
  const Tokenizer before = Tokenizer::load(directory.path());
  const Tokenizer after = through_gguf(directory.path(), 1600);
  std::ifstream cases(kinds / "cases.jsonl");
  size_t compared = 0;
  for (std::string line; std::getline(cases, line); ++compared) {
    const std::string text = Json::parse(line)["text"];
    ASSERT_EQ(after.encode(text), before.encode(text)) << line.substr(0, 200);
  }
  EXPECT_GE(compared, 200u);
}

// Tools write nothing, NFC, or a sequence of these.
TEST(GgufVocabularyNormalizer, OfASequenceOfOneIsThatOne) {
  const TempDirectory directory;
  import_gguf(kFixtures / "smollm.gguf", directory.path() / "m", Existing::Refuse);
  const fs::path file = directory.path() / "m/tokenizer.json";
  Json json = parse_json(read_text(file, 1'000'000), "x");
  std::vector<std::string> notes;
  const auto written = [&](Json normalizers) {
    json["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}};
    write_text(file, json.dump());
    GgufWriter writer;
    notes = add_gguf_tokenizer(writer, directory.path() / "m", 300, {});
    return writer.layout().header;
  };
  EXPECT_THAT(written(Json::array()), HasSubstr("smollm"));
  EXPECT_THAT(written(Json::array({{{"type", "NFC"}}})), HasSubstr("command-r"));
  EXPECT_THAT(notes, testing::IsEmpty());
  json["pre_tokenizer"] = find_gguf_pre_tokenizer("llama-bpe")->pre_tokenizer;
  json["model"]["ignore_merges"] = true;
  EXPECT_THAT(written(Json::array({{{"type", "NFC"}}})), HasSubstr("llama-bpe"));
  EXPECT_THAT(notes, testing::ElementsAre(HasSubstr("normalises texts to NFC, which GGUF's \"llama-bpe\" does not")));
  json["pre_tokenizer"] = find_gguf_pre_tokenizer("smollm")->pre_tokenizer;
  json["model"]["ignore_merges"] = false;
  EXPECT_TRUE(fails_with<UserError>(
      [&] {
        written(Json::array({{{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}}}));
      },
      "key 'normalizer': found an object of 2 keys, expected none or NFC"));
}

TEST(GgufPieces, OfAModelOfSentencePieceEncodeAsBefore) {
  const fs::path fixtures = fs::path(SNUG_FIXTURES) / "sentencepiece";
  for (const char* model : {"llama.model", "gemma.model"}) {
    const TempDirectory directory;
    fs::copy_file(fixtures / model, directory.path() / "tokenizer.model");
    const Tokenizer before = Tokenizer::load(directory.path()), after = through_gguf(directory.path(), 4000);
    std::ifstream cases(fixtures / "cases.jsonl");
    size_t compared = 0;
    for (std::string line; std::getline(cases, line); ++compared) {
      const std::string text = Json::parse(line)["text"];
      ASSERT_EQ(after.encode(text), before.encode(text)) << line.substr(0, 200);
    }
    EXPECT_GE(compared, 100u);
  }
}

// Merges that are only some of the ways to join two tokens to a third cannot be told by scores.
TEST(GgufPieces, WithOtherMergesThanTheirScoresSayAreRefused) {
  const TempDirectory directory;
  const fs::path model = directory.path() / "m";
  import_gguf(kFixtures / "mistral.gguf", model, Existing::Refuse);
  Json json = parse_json(read_text(model / "tokenizer.json", 1'000'000), "x");
  const auto refused = [&](std::string_view part) {
    write_text(model / "tokenizer.json", json.dump());
    return fails_with<UserError>([&] { through_gguf(model, 300); }, part);
  };
  const Json merges = json["model"]["merges"];
  ASSERT_GE(merges.size(), 3u);
  json["model"]["merges"].erase(0);
  EXPECT_TRUE(refused("expected all 3 ways to join two tokens to one, as scores of tokens say them"));
  json["model"]["merges"] = merges;
  json["normalizer"] = {{"type", "NFKC"}};
  EXPECT_TRUE(refused("normalizer"));
}

// ---- Adapters ----

const fs::path kAdapters = fs::path(SNUG_FIXTURES) / "adapters";

TEST(GgufAdapter, IsWhatLlamaCppsConverterWrites) {
  const TempDirectory directory;
  const fs::path file = directory.path() / "x.gguf", theirs = kFixtures / "lora_plain.gguf";
  export_gguf_adapter(read_model_config(kAdapters / "own_head"), kAdapters / "own_head", kAdapters / "plain", file);
  const GgufHeader found = read_gguf({file}), expected = read_gguf({theirs});
  EXPECT_EQ(found.string("general.type"), "adapter");
  EXPECT_EQ(found.string("adapter.type"), "lora");
  EXPECT_EQ(found.string("general.architecture"), expected.string("general.architecture"));
  EXPECT_EQ(found.number("adapter.lora.alpha"), expected.number("adapter.lora.alpha"));
  ASSERT_EQ(found.tensors().size(), expected.tensors().size());
  for (const GgufTensor& tensor : expected.tensors()) {
    const GgufTensor* ours = found.find(tensor.name);
    ASSERT_NE(ours, nullptr) << tensor.name;
    EXPECT_EQ(ours->shape, tensor.shape) << tensor.name;
    EXPECT_EQ(bytes_of(file, *ours), bytes_of(theirs, tensor)) << tensor.name;
  }
}

// alpha / rank times B is each linear's own scale times its B, whatever patterns say: llama.cpp knows one alpha.
TEST(GgufAdapter, OneAlphaHoldsForUnevenScales) {
  for (const auto& [adapter, base] : {std::pair("uneven", "own_head"), {"uneven_rslora", "tied"}}) {
    const TempDirectory directory;
    const fs::path file = directory.path() / "x.gguf";
    export_gguf_adapter(read_model_config(kAdapters / base), kAdapters / base, kAdapters / adapter, file);
    const GgufHeader header = read_gguf({file});
    const auto index = SafetensorsIndex::open_adapter(kAdapters / adapter);
    const PeftConfig config = read_peft_config(kAdapters / adapter);
    const double alpha = header.number("adapter.lora.alpha");
    for (const std::string_view part : {"self_attn.v_proj", "mlp.up_proj"}) {
      const std::string linear = fmt::format("model.layers.1.{}", part);
      const GgufTensor& tensor =
          *header.find(part == "mlp.up_proj" ? "blk.1.ffn_up.weight.lora_b" : "blk.1.attn_v.weight.lora_b");
      const SafetensorsEntry& entry = *index.find(to_string({linear, LoraHalf::B}));
      std::vector<float> b(entry.bytes / 4);
      File::open_read(index.files()[0], IoMode::Buffered).read(entry.offset, std::as_writable_bytes(std::span(b)));
      const std::vector<float> stored = values_of(file, tensor);
      const LoraTarget target = *target_of(config, linear);
      ASSERT_EQ(tensor.shape.back(), target.rank);
      for (size_t i = 0; i < b.size(); ++i)
        EXPECT_NEAR(stored[i] * alpha / static_cast<double>(target.rank), b[i] * target.scale,
                    1e-6 * std::abs(b[i] * target.scale));
    }
  }
}

// A scale of 0 is halves B of zeros: llama.cpp takes an alpha of 0 for a scale of 1.
TEST(GgufAdapter, ScalesOfZeroAreWrittenAsZeros) {
  for (const char* patterns : {R"({"q_proj": 0, "down_proj": 0})", R"({".*": 0})"}) {
    const TempDirectory directory;
    const fs::path adapter = directory.path() / "adapter", file = directory.path() / "x.gguf";
    fs::copy(kAdapters / "plain", adapter);
    auto config = nlohmann::json::parse(read_text(adapter / "adapter_config.json", 100000));
    config["alpha_pattern"] = nlohmann::json::parse(patterns);
    write_text(adapter / "adapter_config.json", config.dump());
    export_gguf_adapter(read_model_config(kAdapters / "own_head"), kAdapters / "own_head", adapter, file);
    const GgufHeader header = read_gguf({file});
    EXPECT_GT(header.number("adapter.lora.alpha"), 0);
    const auto has_numbers = [&](const char* name) {
      const std::vector<float> values = values_of(file, *header.find(name));
      return std::ranges::any_of(values, [](float value) { return value != 0; });
    };
    EXPECT_FALSE(has_numbers("blk.0.attn_q.weight.lora_b"));
    EXPECT_FALSE(has_numbers("blk.1.ffn_down.weight.lora_b"));
    EXPECT_EQ(has_numbers("blk.0.attn_v.weight.lora_b"), std::string_view(patterns) != R"({".*": 0})");
    EXPECT_TRUE(has_numbers("blk.0.attn_q.weight.lora_a"));
  }
}

TEST(GgufAdapter, RefusesWhatIsMoreThanItsLinears) {
  const TempDirectory directory;
  const auto refused = [&](const char* adapter, const char* base, std::string_view part) {
    return fails_with<UserError>(
        [&] {
          export_gguf_adapter(read_model_config(kAdapters / base), kAdapters / base, kAdapters / adapter,
                              directory.path() / "x.gguf");
        },
        part);
  };
  EXPECT_TRUE(refused("saved", "own_head", "has no form in a GGUF adapter, which holds those of the layers' linears"));
  EXPECT_TRUE(refused("tokens", "own_head", "rows of the vocabulary have no form in a GGUF adapter"));
  EXPECT_TRUE(refused("biases", "tied", "has no form in a GGUF adapter"));
  EXPECT_TRUE(refused("dora", "own_head", "has no form in a GGUF adapter"));
}

}  // namespace
}  // namespace snug
