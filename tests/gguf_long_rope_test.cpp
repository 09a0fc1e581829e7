// GGUF files of Phi-3's kind with LongRope: against phi4_mini.gguf, which the gguf package wrote
// (scripts/make_gguf_fixtures.py), and against transformers' logits of the tiny model phi3.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "base/file.h"
#include "expect_error.h"
#include "format/gguf_import.h"
#include "format/json.h"
#include "temp_directory.h"
#include "tiny_model.h"
#include "train/generate.h"
#include "train/gguf_export.h"

namespace snug {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const fs::path kFixture = fs::path(SNUG_FIXTURES) / "gguf/phi4_mini.gguf";
constexpr std::string_view kFactor = "phi3.rope.scaling.attn_factor", kLong = "rope_factors_long.weight",
                           kShort = "rope_factors_short.weight";

// The fixture's bytes, to be changed.
class GgufLongRope : public testing::Test {
 protected:
  fs::path at(const std::string& name) const { return directory_.path() / name; }

  fs::path imported(const std::string& name) {
    write_text(at("x.gguf"), bytes_);
    notes_ = import_gguf(at("x.gguf"), at(name), Existing::Refuse);
    return at(name);
  }
  testing::AssertionResult refused(std::string_view part) {
    return fails_with<UserError>([&] { imported("refused"); }, part);
  }
  Json config_of(const fs::path& model) const {
    return parse_json(read_text(model / "config.json", 100'000), "config.json");
  }
  std::vector<std::string> exported(const fs::path& model, GgufFileType type) const {
    return export_gguf_model(read_model_config(model), model, model, at("y.gguf"), type, "y");
  }

  // Puts a value in the place of another of its size.
  template <class T>
  void put(uint64_t offset, T value) {
    std::memcpy(bytes_.data() + offset, &value, sizeof(value));
  }
  // Returns where the value of a key, or what follows a tensor's name, begins.
  uint64_t behind(std::string_view name) const { return bytes_.find(name) + name.size(); }
  template <class T>
  void set(std::string_view key, T value) {
    put(behind(key) + sizeof(uint32_t), value);
  }
  void rename(std::string_view from, std::string_view to) { bytes_.replace(bytes_.find(from), from.size(), to); }
  void set_divisor(std::string_view tensor, size_t pair, float value) {
    put(read_gguf({kFixture}).find(tensor)->offset + pair * sizeof(float), value);
  }
  // Adds a pair in front of the others, and one that fills up what the file's data are aligned to.
  void add(std::string_view key, uint32_t type, std::string_view value) {
    std::string added;
    const auto append = [&](std::string_view name, uint32_t kind, std::string_view stored) {
      const auto size = std::bit_cast<std::array<char, 8>>(uint64_t{name.size()});
      const auto number = std::bit_cast<std::array<char, 4>>(kind);
      added.append(size.begin(), size.end()).append(name).append(number.begin(), number.end()).append(stored);
    };
    append(key, type, value);
    constexpr size_t kAlignment = 32, kOfEmpty = 8 + 4 + 1;
    const std::string name(2 * kAlignment - (added.size() + kOfEmpty) % kAlignment, 'x');
    append(name, 7, std::string_view("\1", 1));
    bytes_.insert(24, added);
    put(16, read_pairs() + 2);
  }
  void add_text(std::string_view key, std::string_view text) {
    const auto size = std::bit_cast<std::array<char, 8>>(uint64_t{text.size()});
    add(key, 8, std::string(size.begin(), size.end()) + std::string(text));
  }
  uint64_t read_pairs() const {
    uint64_t pairs = 0;
    std::memcpy(&pairs, bytes_.data() + 16, sizeof(pairs));
    return pairs;
  }

  const std::string fixture_ = read_text(kFixture, 100'000);
  std::string bytes_ = fixture_;
  std::vector<std::string> notes_;
  TempDirectory directory_;
};

// ---- Read ----

TEST_F(GgufLongRope, IsReadFromKeysAndTensors) {
  const fs::path model = imported("model");
  EXPECT_THAT(notes_, ElementsAre("tensors of 5 F32, 5 Q8_0: written in bf16"));
  const ModelSpec spec = read_model_config(model).spec;
  EXPECT_EQ(spec.rope.type, RopeType::LongRope);
  EXPECT_EQ(spec.rope.dim, 8);
  EXPECT_EQ(spec.rope.long_factor, (std::vector<double>{1, 1.6f, 5, 16}));
  EXPECT_EQ(spec.rope.short_factor, (std::vector<double>{1, 1.05f, 1.2f, 1.5}));
  EXPECT_EQ(spec.rope.original_max_position, 64);
  EXPECT_EQ(spec.positions, 128);
  EXPECT_NEAR(spec.rope.attention_factor, std::sqrt(7.0 / 6), 1e-6);  // of 128 = 64^(7/6)
  EXPECT_EQ(spec.layers[0].window, 0);
  EXPECT_TRUE(spec.tied);
  // What the two lengths say is not said again: transformers 4 refuses more than these three.
  const Json scaling = config_of(model)["rope_scaling"];
  EXPECT_EQ(scaling.size(), 3u);
  EXPECT_EQ(scaling["type"], "longrope");
}

TEST_F(GgufLongRope, MayBeNamed) {
  add_text("phi3.rope.scaling.type", "longrope");
  EXPECT_EQ(read_model_config(imported("model")).spec.rope.type, RopeType::LongRope);
}

// As llama.cpp reads files without the key.
TEST_F(GgufLongRope, WithoutAFactorOfAttentionHasNone) {
  rename(kFactor, "phi3.rope.scaling.none_factor");
  EXPECT_EQ(read_model_config(imported("model")).spec.rope.attention_factor, 1);
}

TEST_F(GgufLongRope, LengthsAndFactorsOutOfRangeAreRefused) {
  set(kFactor, -1.0f);
  EXPECT_TRUE(refused("key 'phi3.rope.scaling.attn_factor': found -1, expected a number from 0 to 10000"));
  bytes_ = fixture_;
  set<uint32_t>("phi3.rope.scaling.original_context_length", 1);
  EXPECT_TRUE(refused("key 'phi3.rope.scaling.original_context_length': found 1, expected an integer from 2 to"));
  for (const float divisor :
       {0.0f, -2.0f, 1e4f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::string_view tensor : {kLong, kShort}) {
      bytes_ = fixture_;
      set_divisor(tensor, 3, divisor);
      EXPECT_TRUE(
          refused(fmt::format("tensor '{}': found {}, expected divisors above 0 and below 10000", tensor, divisor)));
    }
  }
}

TEST_F(GgufLongRope, TensorsOfOtherSizesOrTypesAreRefused) {
  for (const std::string_view tensor : {kLong, kShort}) {
    bytes_ = fixture_;
    put<uint64_t>(behind(tensor) + 4, 3);
    EXPECT_TRUE(refused(fmt::format("tensor '{}': found [3] of type F32, expected [4] of type F32", tensor)));
    bytes_ = fixture_;
    put<uint32_t>(behind(tensor) + 12, 1);
    EXPECT_TRUE(refused(fmt::format("tensor '{}': found [4] of type F16, expected [4] of type F32", tensor)));
  }
  bytes_ = fixture_;
  set<uint32_t>("phi3.rope.dimension_count", 6);
  EXPECT_TRUE(refused("tensor 'rope_factors_short.weight': found [4] of type F32, expected [3] of type F32"));
}

TEST_F(GgufLongRope, TensorsOfOneLengthAloneAreRefused) {
  rename(kShort, "rope_factors_other.weight");
  EXPECT_TRUE(refused("tensor 'rope_factors_short.weight' is missing, expected it and 'rope_factors_long.weight'"));
  rename(kLong, "rope_factors_more.weight");
  EXPECT_TRUE(refused("key 'phi3.rope.scaling.attn_factor': found 1.08"));
  set(kFactor, 1.0f);
  EXPECT_TRUE(refused("found tensor 'rope_factors_more.weight', which no phi3 model has"));
  add_text("phi3.rope.scaling.type", "longrope");
  EXPECT_TRUE(refused("found \"longrope\", expected tensor 'rope_factors_long.weight' beside it"));
}

TEST_F(GgufLongRope, OtherScalingsBesideItAreRefused) {
  const float twice = 2;
  const std::string two(reinterpret_cast<const char*>(&twice), sizeof(twice));
  add("phi3.rope.scaling.factor", 6, two);
  EXPECT_TRUE(refused("expected \"none\" beside tensor 'rope_factors_long.weight'"));
  add_text("phi3.rope.scaling.type", "longrope");
  EXPECT_TRUE(refused("key 'phi3.rope.scaling.factor': found 2, expected 1 or nothing beside \"longrope\""));
  bytes_ = fixture_;
  add_text("phi3.rope.scaling.type", "dynamic");
  EXPECT_TRUE(refused("found \"dynamic\", expected \"none\", \"linear\", \"longrope\" or \"yarn\""));
}

// llama.cpp multiplies cosine and sine by it in any architecture.
TEST_F(GgufLongRope, AFactorOfAttentionInOtherFilesIsRefused) {
  bytes_ = read_text(kFixture.parent_path() / "qwen3.gguf", 100'000);
  const float twice = 2;
  add("qwen3.rope.scaling.attn_factor", 6, std::string(reinterpret_cast<const char*>(&twice), sizeof(twice)));
  EXPECT_TRUE(refused("key 'qwen3.rope.scaling.attn_factor': found 2, expected 1 or nothing"));
  set("qwen3.rope.scaling.attn_factor", 1.0f);
  imported("model");
  EXPECT_THAT(notes_, Not(Contains(HasSubstr("not used"))));
}

// ---- Written ----

TEST_F(GgufLongRope, IsWrittenAsTheConverterDoes) {
  const fs::path model = imported("model");
  EXPECT_THAT(exported(model, GgufFileType::Q8_0),
              Contains(HasSubstr("llama.cpp takes the rotary embedding of long texts for all texts where its context "
                                 "(-c; num_ctx in Ollama) has more than 64 tokens")));
  const GgufHeader found = read_gguf({at("y.gguf")}), expected = read_gguf({kFixture});
  for (const std::string key : {"context_length", "embedding_length", "block_count", "feed_forward_length",
                                "attention.head_count", "attention.head_count_kv", "attention.sliding_window",
                                "rope.dimension_count", "rope.scaling.original_context_length"})
    EXPECT_EQ(found.integer("phi3." + key, 0, INT64_MAX), expected.integer("phi3." + key, 0, INT64_MAX)) << key;
  for (const std::string key : {"attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scaling.attn_factor"})
    EXPECT_FLOAT_EQ(static_cast<float>(found.number("phi3." + key)),
                    static_cast<float>(expected.number("phi3." + key)));
  for (const std::string key : {"general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.pre"})
    EXPECT_EQ(found.string(key), expected.string(key));
  EXPECT_FALSE(found.has("phi3.rope.scaling.type"));
  ASSERT_EQ(found.tensors().size(), expected.tensors().size());
  for (const GgufTensor& tensor : expected.tensors()) {
    const GgufTensor* ours = found.find(tensor.name);
    ASSERT_NE(ours, nullptr) << tensor.name;
    EXPECT_EQ(ours->shape, tensor.shape) << tensor.name;
    EXPECT_EQ(ours->type, tensor.type) << tensor.name;
    if (tensor.name != kLong && tensor.name != kShort) continue;
    EXPECT_EQ(read_text(at("y.gguf"), 100'000).substr(ours->offset, ours->bytes),
              fixture_.substr(tensor.offset, tensor.bytes));
  }
}

TEST_F(GgufLongRope, AFactorOfAttentionOfItsOwnComesBack) {
  const fs::path model = imported("model");
  Json config = config_of(model);
  config["rope_scaling"]["attention_factor"] = 1.25;
  write_text(model / "config.json", config.dump());
  exported(model, GgufFileType::BF16);
  import_gguf(at("y.gguf"), at("again"), Existing::Refuse);
  EXPECT_EQ(config_of(at("again"))["rope_scaling"], config["rope_scaling"]);
}

TEST_F(GgufLongRope, AnOriginalLengthOfMoreThan32BitsIsRefused) {
  const fs::path model = imported("model");
  for (const double length : {64.5, 5e9}) {
    Json config = config_of(model);
    config["original_max_position_embeddings"] = length;
    write_text(model / "config.json", config.dump());
    EXPECT_TRUE(fails_with<UserError>([&] { exported(model, GgufFileType::BF16); },
                                      "key 'original_max_position_embeddings': found"));
  }
}

// A window that holds every text that the model was made for is none.
TEST_F(GgufLongRope, AWindowOfTheWholeContextIsNoDifference) {
  const fs::path model = imported("model");
  Json config = config_of(model);
  const auto notes = [&](int64_t window) {
    config["sliding_window"] = window;
    write_text(model / "config.json", config.dump());
    return exported(model, GgufFileType::BF16);
  };
  EXPECT_THAT(notes(127), Contains(HasSubstr("the model to the last 127")));
  EXPECT_THAT(notes(128), Not(Contains(HasSubstr("the model to the last"))));
}

// ---- Through a file ----

// Returns the logits after every token of a text, with room for `positions` tokens, which decides between the tables.
std::vector<float> logits_of(const fs::path& model, const std::vector<int32_t>& ids, int64_t positions) {
  JobSpec spec = tiny_job(model, std::nullopt, DType::F32);
  spec.purpose = Purpose::Generate;
  spec.cache_positions = positions;
  TinySession session(spec, 1);
  session.load();
  return Generator(session, {0, {}, {}}).score(ids);
}

// The tiny model turns half of each head, has fused linears, a head of its own and a window.
TEST_F(GgufLongRope, AWrittenModelGivesTransformersLogits) {
  const fs::path model = imported("tokenizer"), phi3 = models() / "phi3";
  for (const char* file : {"config.json", "model.safetensors"})
    fs::copy_file(phi3 / file, model / file, fs::copy_options::overwrite_existing);
  exported(model, GgufFileType::BF16);
  import_gguf(at("y.gguf"), at("again"), Existing::Refuse);
  const auto reference = read_tensors(phi3 / "reference.safetensors");
  const auto samples = tiny_samples();
  for (size_t s = 0; s < 4; ++s)
    EXPECT_LE(relative_error(logits_of(at("again"), samples[s].ids, 64), reference.at(fmt::format("logits.{}", s))),
              1e-5);
  const Json generation = read_json(phi3 / "generation.json");
  const auto prompt = generation["prompt"].get<std::vector<int32_t>>();
  const auto expected = generation["logits"].get<std::vector<float>>();
  const std::vector<float> found = logits_of(at("again"), prompt, std::ssize(prompt));
  ASSERT_GT(prompt.size(), 64u);
  EXPECT_LE(relative_error({found.end() - std::ssize(expected), found.end()}, expected), 1e-5);
}

}  // namespace
}  // namespace snug
