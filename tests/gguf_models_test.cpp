// GGUF's types and architectures against what the gguf package makes of them (scripts/make_gguf_fixtures.py), and
// models in several files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>

#include "base/file.h"
#include "base/hash.h"
#include "expect_error.h"
#include "format/gguf_architecture.h"
#include "format/gguf_import.h"
#include "format/gguf_pretokenizers.h"
#include "format/json.h"
#include "format/pretokenizer.h"
#include "format/safetensors.h"
#include "format/tokenizer.h"
#include "model/model_config.h"
#include "same_tensors.h"
#include "temp_directory.h"

namespace snug {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

const fs::path kFixtures = fs::path(SNUG_FIXTURES) / "gguf";

// Compares the tensors of NAME.gguf, called by their types, with the values in NAME.json.
void expect_types(const std::string& fixture) {
  const Json expected = parse_json(read_text(kFixtures / (fixture + ".json"), 100000), fixture);
  const fs::path path = kFixtures / (fixture + ".gguf");
  const GgufHeader header = read_gguf({path});
  const File file = File::open_read(path, IoMode::Buffered);
  EXPECT_EQ(header.tensors().size(), expected.size());
  for (const auto& [type, values] : expected.items()) {
    const GgufTensor* tensor = header.find(type);
    ASSERT_NE(tensor, nullptr) << type;
    EXPECT_EQ(name(tensor->type), type);
    std::vector<std::byte> bytes(tensor->bytes);
    std::vector<float> found(static_cast<size_t>(tensor->shape[0] * tensor->shape[1]));
    file.read(tensor->offset, bytes);
    dequantize(tensor->type, bytes, found);
    const std::vector<float> first(found.begin(), found.begin() + 8);
    EXPECT_EQ(first, values["first"].get<std::vector<float>>()) << type;
    EXPECT_EQ(hex(hash_of(std::span<const float>(found))), values["hash"].get<std::string>()) << type;
  }
}

TEST(GgufTypes, EveryTypeIsDequantizedToTheBit) { expect_types("types"); }
TEST(GgufTypes, OneAndTwoBitsAreDequantizedAsLlamaCppDoes) { expect_types("bits"); }

TEST(GgufTypes, ThoseThatHoldNoWeightsAreNamed) {
  EXPECT_EQ(gguf_type(15), std::nullopt);
  EXPECT_EQ(gguf_type_name(15), "Q8_K");
  EXPECT_EQ(gguf_type_name(12), "Q4_K");
  EXPECT_EQ(gguf_type_name(99), "number 99");
  EXPECT_THAT(gguf_type_names(), HasSubstr("IQ4_XS, "));
}

class GgufModel : public testing::TestWithParam<const char*> {
 protected:
  fs::path file() const {
    const fs::path whole = kFixtures / (std::string(GetParam()) + ".gguf");
    return is_file(whole) ? whole : kFixtures / (std::string(GetParam()) + "-00002-of-00003.gguf");
  }
  TempDirectory directory_;
  fs::path out_ = directory_.path() / "model";
};
INSTANTIATE_TEST_SUITE_P(All, GgufModel,
                         testing::Values("qwen3", "smollm3", "mistral", "llama_bias", "granite", "gemma", "gemma2",
                                         "gemma3", "split", "olmo2", "olmo3", "exaone4", "exaone4_window", "glm4",
                                         "hunyuan", "command_r", "cohere2", "phi3", "phi4_mini", "chatglm", "arcee",
                                         "stablelm", "nemotron", "ernie4_5", "seed_oss", "command_r_plus",
                                         "stablelm_12b", "granite4", "ministral3", "mistral_small", "starcoder2"));

TEST_P(GgufModel, TensorsAreTheValuesOfTheFileInBf16) {
  import_gguf(file(), out_, Existing::Refuse);
  const auto expected = SafetensorsIndex::open_file(kFixtures / (std::string(GetParam()) + ".expected.safetensors"));
  expect_same_tensors(SafetensorsIndex::open_model(out_), expected);
}

TEST_P(GgufModel, ConfigurationIsOfItsFamily) {
  import_gguf(file(), out_, Existing::Refuse);
  const std::string_view model = GetParam();
  const ModelConfig config = read_model_config(out_);
  const ModelSpec& spec = config.spec;
  static const std::map<std::string_view, std::string_view> kArchitectures{{"qwen3", "Qwen3ForCausalLM"},
                                                                           {"smollm3", "SmolLM3ForCausalLM"},
                                                                           {"mistral", "MistralForCausalLM"},
                                                                           {"granite", "GraniteForCausalLM"},
                                                                           {"gemma", "GemmaForCausalLM"},
                                                                           {"gemma2", "Gemma2ForCausalLM"},
                                                                           {"gemma3", "Gemma3ForCausalLM"},
                                                                           {"olmo2", "Olmo2ForCausalLM"},
                                                                           {"olmo3", "Olmo3ForCausalLM"},
                                                                           {"exaone4", "Exaone4ForCausalLM"},
                                                                           {"exaone4_window", "Exaone4ForCausalLM"},
                                                                           {"glm4", "Glm4ForCausalLM"},
                                                                           {"hunyuan", "HunYuanDenseV1ForCausalLM"},
                                                                           {"command_r", "CohereForCausalLM"},
                                                                           {"cohere2", "Cohere2ForCausalLM"},
                                                                           {"phi3", "Phi3ForCausalLM"},
                                                                           {"phi4_mini", "Phi3ForCausalLM"},
                                                                           {"chatglm", "GlmForCausalLM"},
                                                                           {"arcee", "ArceeForCausalLM"},
                                                                           {"stablelm", "StableLmForCausalLM"},
                                                                           {"nemotron", "NemotronForCausalLM"},
                                                                           {"ernie4_5", "Ernie4_5ForCausalLM"},
                                                                           {"seed_oss", "SeedOssForCausalLM"},
                                                                           {"command_r_plus", "CohereForCausalLM"},
                                                                           {"stablelm_12b", "StableLmForCausalLM"},
                                                                           {"granite4", "GraniteForCausalLM"},
                                                                           {"ministral3", "Ministral3ForCausalLM"},
                                                                           {"mistral_small", "MistralForCausalLM"},
                                                                           {"starcoder2", "Starcoder2ForCausalLM"}};
  const auto found = kArchitectures.find(model);
  EXPECT_EQ(spec.architecture, found == kArchitectures.end() ? "LlamaForCausalLM" : found->second);
  const auto is_one_of = [&](std::initializer_list<std::string_view> models) {
    return std::ranges::find(models, model) != models.end();
  };
  EXPECT_EQ(spec.layers[0].qkv.bias,
            is_one_of({"llama_bias", "glm4", "chatglm", "stablelm", "seed_oss", "starcoder2"}));
  EXPECT_EQ(spec.layers[0].down.bias, is_one_of({"llama_bias", "starcoder2"}));
  EXPECT_EQ(spec.layers[0].window > 0,
            is_one_of({"mistral", "gemma2", "gemma3", "olmo3", "exaone4_window", "cohere2", "phi3", "starcoder2"}));
  EXPECT_EQ(spec.layers.back().rope, !is_one_of({"smollm3", "exaone4_window", "cohere2"}));
  EXPECT_EQ(spec.tied, !is_one_of({"stablelm", "stablelm_12b", "nemotron"}));
  EXPECT_EQ(spec.layers[0].own_head_gains, is_one_of({"command_r_plus", "stablelm_12b"}));
  EXPECT_EQ(spec.layers[0].parallel, is_one_of({"command_r", "command_r_plus", "cohere2", "stablelm_12b"}));
  EXPECT_TRUE(config.notes.empty()) << config.notes[0];
}

TEST(GgufConfig, GranitesFactorsAreKeysOfTheFile) {
  const TempDirectory directory;
  import_gguf(kFixtures / "granite.gguf", directory.path() / "m", Existing::Refuse);
  const ModelSpec spec = read_model_config(directory.path() / "m").spec;
  EXPECT_EQ(spec.layers[0].attention_scale, 0.125);
  EXPECT_EQ(spec.layers[0].residual_multiplier, 0.25);
  EXPECT_EQ(spec.embedding_factor, 12.0);
  EXPECT_EQ(spec.logits_factor, 0.125);
}

TEST(GgufConfig, Gemma2sCapsAreKeysOfTheFile) {
  const TempDirectory directory;
  import_gguf(kFixtures / "gemma2.gguf", directory.path() / "m", Existing::Refuse);
  const ModelSpec spec = read_model_config(directory.path() / "m").spec;
  EXPECT_EQ(spec.layers[0].attention_cap, 40.0);
  EXPECT_EQ(spec.logits_cap, 20.0);
  EXPECT_EQ(spec.layers[1].window, 0);
}

// Keys that decide what a layer computes: each is where the family has it.
TEST(GgufConfig, KeysOfLaterFamiliesAreRead) {
  const TempDirectory directory;
  const auto spec_of = [&](const std::string& model) {
    import_gguf(kFixtures / (model + ".gguf"), directory.path() / model, Existing::Refuse);
    return read_model_config(directory.path() / model).spec;
  };
  const ModelSpec olmo3 = spec_of("olmo3"), exaone4 = spec_of("exaone4_window"), glm4 = spec_of("glm4"),
                  cohere2 = spec_of("cohere2");
  EXPECT_EQ(olmo3.rope.type, RopeType::Yarn);
  EXPECT_EQ(olmo3.rope.factor, 8);
  EXPECT_EQ(olmo3.local_rope.type, RopeType::Default);
  EXPECT_EQ(olmo3.local_rope.theta, 10000);
  EXPECT_TRUE(olmo3.layers[2].local_rope && !olmo3.layers[3].local_rope);
  EXPECT_EQ(exaone4.layers[3].window, 0);
  EXPECT_EQ(glm4.rope.dim, 8);
  EXPECT_EQ(cohere2.logits_factor, 0.0625);
  EXPECT_EQ(cohere2.final_norm.epsilon, static_cast<double>(1e-5f));
  std::string other = read_text(kFixtures / "olmo3.gguf", 100000);
  const std::string key = "olmo2.attention.sliding_window_pattern";
  other[other.find(key) + key.size() + 4 + 4 + 8] = 0;  // behind the types and the number of values
  write_text(directory.path() / "x.gguf", other);
  EXPECT_TRUE(
      fails_with<UserError>([&] { import_gguf(directory.path() / "x.gguf", directory.path() / "x", Existing::Refuse); },
                            "expected true for all layers but each 4th"));
}

// Granite 4's files have the number of key heads for each layer; those of Ministral 3 what queries grow by.
TEST(GgufConfig, KeysOfTheMistral3AndGranite4FilesAreRead) {
  const TempDirectory directory;
  const auto import = [&](std::string file, const std::string& name) {
    write_text(directory.path() / (name + ".gguf"), file);
    return import_gguf(directory.path() / (name + ".gguf"), directory.path() / name, Existing::Refuse);
  };
  const std::string granite = read_text(kFixtures / "granite4.gguf", 100000),
                    ministral = read_text(kFixtures / "ministral3.gguf", 100000);
  EXPECT_THAT(import(granite, "granite"),
              ElementsAre("tensors of 5 F32, 15 Q8_0: written in bf16", "not used: granite.ssm.conv_kernel"));
  EXPECT_EQ(read_model_config(directory.path() / "granite").spec.layers[1].heads.kv_heads, 1);
  std::string other = granite;
  const std::string key = "granite.attention.head_count_kv";
  other[other.find(key) + key.size() + 4 + 4 + 8 + 4] =
      2;  // the second layer's, behind the types, the count, the first
  EXPECT_TRUE(fails_with<UserError>([&] { import(other, "unlike"); }, "the same one for each of 2 layers"));
  import(ministral, "ministral");
  const RopeParameters rope = read_model_config(directory.path() / "ministral").spec.rope;
  EXPECT_EQ(rope.type, RopeType::Yarn);
  EXPECT_EQ(rope.query_growth, static_cast<double>(0.1f));
  EXPECT_EQ(rope.original_max_position, 32);
  EXPECT_EQ(rope.attention_factor, 1);
  other = ministral;
  other.replace(other.find("yarn", other.find("mistral3.rope.scaling.type")), 4, "none");
  EXPECT_TRUE(fails_with<UserError>([&] { import(other, "unscaled"); },
                                    "'mistral3.rope.scaling.type': found \"none\", expected \"yarn\" beside"));
}

TEST(GgufConfig, EachSixthOfGemma3sLayersSeesAll) {
  const TempDirectory directory;
  import_gguf(kFixtures / "gemma3.gguf", directory.path() / "m", Existing::Refuse);
  const ModelSpec spec = read_model_config(directory.path() / "m").spec;
  for (size_t layer = 0; layer < 7; ++layer) {
    EXPECT_EQ(spec.layers[layer].window, layer == 5 ? 0 : 7);
    EXPECT_EQ(spec.layers[layer].local_rope, layer != 5);
  }
  EXPECT_EQ(spec.layers[0].attention_scale, 0.25) << "of heads of 16";
}

TEST(GgufNotes, SayWhatIsNarrowedAndWhatIsNotUsed) {
  const TempDirectory directory;
  EXPECT_THAT(
      import_gguf(kFixtures / "mistral.gguf", directory.path() / "a", Existing::Refuse),
      ElementsAre("tensors of 3 F32, 8 Q5_1: written in bf16", "a mistral: 'llama.attention.sliding_window' is 7"));
  std::string other = read_text(kFixtures / "qwen3.gguf", 100000);
  other.replace(other.find("qwen3.attention.value_length"), 28, "qwen3.attention.temper_scale");
  write_text(directory.path() / "x.gguf", other);
  EXPECT_THAT(
      import_gguf(directory.path() / "x.gguf", directory.path() / "b", Existing::Refuse),
      ElementsAre("tensors of 5 F32, 5 Q5_0, 3 Q8_0: written in bf16", "not used: qwen3.attention.temper_scale"));
}

// Tokens that a SentencePiece file does not name are those that llama.cpp takes.
TEST(GgufTokens, UnnamedOnesOfSentencePieceAreTheFirstThree) {
  const TempDirectory directory;
  import_gguf(kFixtures / "mistral.gguf", directory.path() / "m", Existing::Refuse);
  const Json config = parse_json(read_text(directory.path() / "m/config.json", 10000), "config.json");
  EXPECT_EQ(config["bos_token_id"], 1);
  EXPECT_EQ(config["eos_token_id"], 2);
  const Tokenizer tokenizer = Tokenizer::parse({.tokenizer = read_text(directory.path() / "m/tokenizer.json", 100000)});
  EXPECT_TRUE(tokenizer.adds_bos());
  EXPECT_EQ(tokenizer.encode("the"), (std::vector<int32_t>{271}));                    // "▁the"
  EXPECT_EQ(tokenizer.encode("é"), (std::vector<int32_t>{259, 3 + 0xc3, 3 + 0xa9}));  // "▁", two bytes
}

// ---- Rotary frequencies ----

// Divisors of frequencies say no constants: those that are found have the same divisors.
TEST(GgufRopeFactors, AreThoseOfTheScalingThatIsFound) {
  const auto found = [](double positions, double low, double high, double factor, int64_t dim, double theta) {
    RopeParameters scaling{.theta = theta, .type = RopeType::Llama3};
    scaling.factor = factor;
    scaling.original_max_position = positions;
    scaling.low_freq_factor = low;
    scaling.high_freq_factor = high;
    const std::vector<double> wanted = llama3_rope_factors(scaling, dim);
    const std::vector<float> stored(wanted.begin(), wanted.end());
    const auto result = llama3_scaling_of(stored, theta);
    if (!result) return std::string("none");
    const std::vector<double> made = llama3_rope_factors(*result, dim);
    for (size_t i = 0; i < made.size(); ++i) EXPECT_NEAR(made[i], wanted[i], 1e-4 * wanted[i]) << i;
    return fmt::format("{:g} {:g} {:g} {:g}", result->original_max_position, result->low_freq_factor,
                       result->high_freq_factor, result->factor);
  };
  EXPECT_EQ(found(8192, 1, 4, 8, 128, 500000), "8192 1 4 8");
  EXPECT_EQ(found(4096, 1, 4, 32, 64, 500000), "4096 1 4 32");
  EXPECT_EQ(found(2048, 1, 8, 4, 128, 10000), "2048 1 8 4");
  EXPECT_EQ(found(1024, 2, 4, 8, 128, 500000), "512 1 2 8");
  EXPECT_EQ(found(8192, 0.5, 3.25, 8, 128, 500000), "16384 1 6.5 8");
  EXPECT_NE(found(32, 1, 4, 8, 16, 10000), "none");    // one pair between the borders
  EXPECT_NE(found(64, 1, 1.1, 8, 16, 10000), "none");  // none
  EXPECT_EQ(llama3_scaling_of(std::vector<float>{1, 3, 2, 8}, 10000), std::nullopt);
  EXPECT_EQ(llama3_scaling_of(std::vector<float>{1, std::nanf(""), 8}, 10000), std::nullopt);
  EXPECT_EQ(llama3_scaling_of(std::vector<float>{1, 0, INFINITY}, 1e300), std::nullopt);
  EXPECT_EQ(llama3_scaling_of(std::vector<float>{8, 1}, 10000), std::nullopt);
}

// ---- Several files ----

TEST(GgufParts, AreFoundByAnyOfTheirNames) {
  std::vector<fs::path> all;
  for (int i = 1; i <= 3; ++i) all.push_back(kFixtures / fmt::format("split-{:05}-of-00003.gguf", i));
  EXPECT_EQ(gguf_files(all[0]), all);
  EXPECT_EQ(gguf_files(all[2]), all);
  EXPECT_EQ(gguf_files("x-00004-of-00003.gguf"), (std::vector<fs::path>{"x-00004-of-00003.gguf"}));
  EXPECT_EQ(gguf_files("x-0001-of-0003.gguf"), (std::vector<fs::path>{"x-0001-of-0003.gguf"}));
  EXPECT_TRUE(fails_with<UserError>([&] { gguf_files(kFixtures / "split-00002-of-00004.gguf"); },
                                    "split-00001-of-00004.gguf: is not there, expected all 4 files of the model"));
}

TEST(GgufParts, ThatAreNotOfOneModelAreRefused) {
  const auto join = [](const std::vector<int>& numbers) {
    std::vector<GgufHeader> parts;
    for (const int number : numbers) {
      const fs::path path = kFixtures / fmt::format("split-{:05}-of-00003.gguf", number);
      const File file = File::open_read(path, IoMode::Buffered);
      parts.push_back(parse_gguf([&](uint64_t offset, std::span<std::byte> out) { file.read(offset, out); },
                                 file.size(), path.filename().string()));
    }
    return join_gguf_parts(std::move(parts));
  };
  EXPECT_EQ(join({1, 2, 3}).tensors().size(), 11u);
  EXPECT_TRUE(fails_with<UserError>([&] { join({1}); }, "key 'split.count': found 3, expected 1"));
  EXPECT_TRUE(fails_with<UserError>([&] { join({1, 3, 2}); }, "key 'split.no': found 2, expected 1, counted from 0"));
  EXPECT_TRUE(fails_with<UserError>([&] { join({2, 2, 3}); }, "key 'split.no': found 1, expected 0"));
}

// ---- Pre-tokenizers ----

TEST(GgufPreTokenizers, AreFoundAgainByWhatTheyStandFor) {
  for (const std::string_view name : {"smollm", "gpt-2", "llama-bpe", "smaug-bpe", "qwen2", "qwen35", "gpt-4o",
                                      "tekken", "deepseek-v3", "deepseek-coder"}) {
    const auto known = find_gguf_pre_tokenizer(name);
    ASSERT_TRUE(known) << name;
    EXPECT_EQ(gguf_pre_tokenizer_name(known->pre_tokenizer, known->whole_words, known->normalizes_nfc), name);
  }
  EXPECT_EQ(gguf_pre_tokenizer_name(find_gguf_pre_tokenizer("gpt-2")->pre_tokenizer, false, true), "olmo");
  EXPECT_EQ(find_gguf_pre_tokenizer("jais-2"), std::nullopt);
  EXPECT_EQ(gguf_pre_tokenizer_name(Json(), false, false), std::nullopt);
}

// llama.cpp maps these names to one cut (llama-vocab.cpp).
TEST(GgufPreTokenizers, NamesOfOneCutCutAlike) {
  const std::vector<std::vector<std::string_view>> alike = {
      {"smollm", "refact", "starcoder", "codeshell", "exaone", "minerva-7b", "mellum2", "command-r"},
      {"gpt-2", "phi-2", "olmo", "mpt", "jais", "trillion", "granite-docling", "exaone4", "mellum", "a.x-4.0"},
      {"llama-bpe", "pixtral", "lfm2", "falcon-h1", "midm-2.0", "glm4", "glm5", "chatglm-bpe", "dbrx", "smaug-bpe"},
      {"qwen2", "kormo", "megrez", "stablelm2", "solar-open", "grok-2", "hunyuan"},
      {"gpt-4o", "kanana2", "talkie", "minimax-m2"},
      {"deepseek-v3", "joyai-llm", "hy_v4"}};
  for (const auto& names : alike) {
    for (const std::string_view name : names) {
      const auto known = find_gguf_pre_tokenizer(name);
      ASSERT_TRUE(known) << name;
      EXPECT_EQ(known->pre_tokenizer, find_gguf_pre_tokenizer(names[0])->pre_tokenizer) << name;
    }
  }
  EXPECT_TRUE(find_gguf_pre_tokenizer("lfm2")->whole_words && find_gguf_pre_tokenizer("lfm2")->starts_with_bos);
  EXPECT_TRUE(find_gguf_pre_tokenizer("glm4")->whole_words);
  EXPECT_FALSE(find_gguf_pre_tokenizer("glm4")->starts_with_bos || find_gguf_pre_tokenizer("chatglm-bpe")->whole_words);
}

// llama.cpp's own cuts, of files that name none and of Falcon's: marks, then GPT-2's words, numbers, three digits.
TEST(GgufPreTokenizers, CutInSeveralStagesWhereLlamaCppDoes) {
  const auto words = [](std::string_view name, std::string_view text) {
    std::vector<std::string> out;
    const PreTokenizer pre = PreTokenizer::parse(find_gguf_pre_tokenizer(name)->pre_tokenizer, "it");
    pre.each_word(text, Before::Nothing, [&](std::string_view word) { out.emplace_back(word); });
    return out;
  };
  EXPECT_THAT(words("default", "Hello, w's 12345`"), ElementsAre("Hello", ",", " w", "'", "s", " ", "123", "45", "`"));
  EXPECT_THAT(words("falcon", "Hi 12345 a`b"), ElementsAre("Hi", " ", "123", "45", " a", "`", "b"));
}

// What is cut as models' own files say is what the tokenizers library cuts (fixtures of tokenizer_kinds).
TEST(GgufPreTokenizers, AreWhatTheModelsFilesHave) {
  const fs::path kinds = fs::path(SNUG_FIXTURES) / "tokenizer_kinds/kinds.json";
  const Json expected = parse_json(read_text(kinds, 1'000'000), "kinds.json");
  for (const auto& [kind, name] : {std::pair("gpt2", "gpt-2"),
                                   {"command_r", "smollm"},
                                   {"o200k", "gpt-4o"},
                                   {"tekken", "tekken"},
                                   {"deepseek_v3", "deepseek-v3"},
                                   {"qwen3_5", "qwen35"}}) {
    EXPECT_EQ(gguf_pre_tokenizer_name(expected[kind]["patch"]["pre_tokenizer"], kind == std::string_view("tekken"),
                                      kind == std::string_view("qwen3_5")),
              name);
  }
  // Of names that cut alike, files may have either.
  for (const auto& [kind, name] : {std::pair("hunyuan", "hunyuan"), {"hunyuan_dense", "hunyuan-dense"}}) {
    const Json wanted = expected[kind]["patch"]["pre_tokenizer"];
    const auto known = find_gguf_pre_tokenizer(name);
    ASSERT_TRUE(known) << name;
    EXPECT_EQ(known->pre_tokenizer, wanted) << name;
    EXPECT_FALSE(known->normalizes_nfc || known->whole_words || known->starts_with_bos) << name;
  }
}

}  // namespace
}  // namespace snug
