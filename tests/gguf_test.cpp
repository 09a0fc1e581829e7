#include "format/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "expect_error.h"
#include "format/gguf_import.h"
#include "format/json.h"
#include "format/safetensors.h"
#include "format/sentencepiece.h"
#include "format/tokenizer.h"
#include "model/model_config.h"
#include "same_tensors.h"
#include "temp_directory.h"

namespace snug {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

const fs::path kFixtures = fs::path(SNUG_FIXTURES) / "gguf";

GgufHeader parse(std::string_view bytes) {
  const auto read = [&](uint64_t offset, std::span<std::byte> out) {
    ASSERT_LE(offset + out.size(), bytes.size());
    std::memcpy(out.data(), bytes.data() + offset, out.size());
  };
  return parse_gguf(read, bytes.size(), "x.gguf");
}

// Builds a file by hand, in the format's own order.
struct Bytes {
  std::string text = "GGUF";
  template <class T>
  Bytes& number(T value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  Bytes& string(std::string_view value) {
    number<uint64_t>(value.size());
    text += value;
    return *this;
  }
  Bytes& start(uint32_t version, uint64_t tensors, uint64_t pairs) {
    return number(version).number(tensors).number(pairs);
  }
  Bytes& tensor(std::string_view name, std::vector<uint64_t> sizes, uint32_t type, uint64_t offset) {
    string(name).number(static_cast<uint32_t>(sizes.size()));
    for (const uint64_t size : sizes) number(size);
    return number(type).number(offset);
  }
  Bytes& data(size_t bytes) {
    text.resize((text.size() + 31) / 32 * 32 + bytes);
    return *this;
  }
};

testing::AssertionResult refused(const Bytes& bytes, std::string_view part) {
  return fails_with<UserError>([&] { parse(bytes.text); }, part);
}

TEST(Gguf, ReadsEveryTypeOfValue) {
  Bytes b;
  b.start(3, 0, 10);
  b.string("u8").number(0u).number<uint8_t>(200);
  b.string("i16").number(3u).number<int16_t>(-5);
  b.string("u64").number(10u).number<uint64_t>(1ull << 40);
  b.string("f32").number(6u).number(0.5f);
  b.string("f64").number(12u).number(0.1);
  b.string("nan").number(6u).number(std::nanf(""));
  b.string("yes").number(7u).number<uint8_t>(1);
  b.string("text").number(8u).string("caf\u00e9");
  b.string("ids").number(9u).number(5u).number<uint64_t>(2).number<int32_t>(-1).number<int32_t>(7);
  b.string("words").number(9u).number(8u).number<uint64_t>(2).string("a").string("");
  const GgufHeader header = parse(b.text);
  EXPECT_EQ(header.integer("u8", 0, 255), 200);
  EXPECT_EQ(header.integer("i16", -10, 0), -5);
  EXPECT_EQ(header.integer("u64", 0, INT64_MAX), int64_t{1} << 40);
  EXPECT_EQ(header.number("f32"), 0.5);
  EXPECT_EQ(header.number("f64"), 0.1);
  EXPECT_TRUE(header.boolean("yes"));
  EXPECT_EQ(header.string("text"), "caf\u00e9");
  EXPECT_THAT(header.integers("ids"), ElementsAre(-1, 7));
  EXPECT_THAT(header.strings("words"), ElementsAre("a", ""));
  EXPECT_EQ(header.integer("none", 0, 9, 4), 4);
  EXPECT_TRUE(fails_with<UserError>([&] { header.integer("u8", 0, 100); },
                                    "x.gguf, key 'u8': found 200, expected an integer from 0 to 100"));
  EXPECT_TRUE(fails_with<UserError>([&] { header.string("u8"); }, "key 'u8': found 200, expected a string"));
  EXPECT_TRUE(fails_with<UserError>([&] { header.number("nan"); }, "key 'nan': found nan, expected a finite number"));
  EXPECT_TRUE(fails_with<UserError>([&] { header.number("none"); }, "key 'none': found nothing"));
}

TEST(Gguf, PlacesTensorsWithRowsFirst) {
  Bytes b;
  b.start(2, 2, 0).tensor("b", {64, 3}, 3, 0).tensor("a", {4}, 0, 128).data(128 + 16);
  const GgufHeader header = parse(b.text);
  const GgufTensor& quantized = *header.find("b");
  EXPECT_THAT(quantized.shape, ElementsAre(3, 64));
  EXPECT_EQ(quantized.type, GgufType::Q4_1);
  EXPECT_EQ(quantized.bytes, 3u * 2 * 20);
  EXPECT_EQ(quantized.offset % 32, 0u);
  EXPECT_EQ(header.find("a")->offset, quantized.offset + 128);
  EXPECT_EQ(header.find("c"), nullptr);
}

TEST(Gguf, RefusesWhatBreaksTheFormat) {
  EXPECT_TRUE(refused({"GGML0000"}, "starts with 'GGUF'"));
  EXPECT_TRUE(refused(Bytes().number(1u), "found GGUF version 1, expected 2 or 3"));
  EXPECT_TRUE(refused(Bytes().number(0x03000000u), "big-endian"));
  EXPECT_TRUE(refused(Bytes().start(3, 1ull << 60, 0), "found 1152921504606846976 tensors"));
  EXPECT_TRUE(refused(Bytes().start(3, 0, 1ull << 60), "pairs of metadata"));
  EXPECT_TRUE(refused(Bytes().start(3, 0, 1).number<uint64_t>(1ull << 62), "found a string of"));
  EXPECT_TRUE(refused(Bytes().start(3, 0, 1).number<uint64_t>(10), "the file ends 10 bytes short"));
  EXPECT_TRUE(refused(Bytes().start(3, 0, 1).string("k").number(13u), "found value type 13"));
  EXPECT_TRUE(refused(Bytes().start(3, 0, 1).string("k").number(8u).string("\xff"), "not UTF-8"));
  EXPECT_TRUE(refused(Bytes().start(3, 0, 1).string("k").number(9u).number(8u).number(1ull << 60), "found a list of"));
  EXPECT_TRUE(refused(Bytes().start(3, 0, 1).string("k").number(9u).number(9u).number(1ull), "list of lists"));
  EXPECT_TRUE(refused(Bytes().start(3, 0, 1).string("k").number(10u).number(~0ull), "found the integer"));
  Bytes twice;
  twice.start(3, 0, 2).string("k").number(4u).number(1u).string("k").number(4u).number(1u);
  EXPECT_TRUE(refused(twice, "found key 'k' twice"));
  Bytes odd;
  odd.start(3, 0, 1).string("general.alignment").number(4u).number(48u);
  EXPECT_TRUE(refused(odd, "expected a power of two"));
}

TEST(Gguf, RefusesTensorsOutOfPlace) {
  const auto one = [](std::vector<uint64_t> sizes, uint32_t type, uint64_t offset) {
    Bytes b;
    b.start(3, 1, 0).tensor("t", sizes, type, offset).data(64);
    return b;
  };
  EXPECT_NO_THROW(parse(one({16}, 0, 0).text));
  EXPECT_TRUE(refused(one({16}, 12, 0), "tensor 't' of type Q4_K has rows of 16 values, expected a multiple of 256"));
  EXPECT_TRUE(refused(one({16}, 15, 0), "tensor 't' has type Q8_K, expected one of F32, F16, Q4_0, Q4_1,"));
  EXPECT_TRUE(refused(one({16}, 99, 0), "type number 99"));
  EXPECT_TRUE(refused(one({17}, 0, 0), "tensor 't': found 68 bytes at offset 0"));
  EXPECT_TRUE(refused(one({4}, 0, 64), "found 16 bytes at offset 64"));
  EXPECT_TRUE(refused(one({4}, 0, 4), "expected a multiple of 32"));
  EXPECT_TRUE(refused(one({4}, 0, ~0ull - 31), "tensor 't'"));
  EXPECT_TRUE(refused(one({16}, 8, 0), "rows of 16 values, expected a multiple of 32"));
  EXPECT_TRUE(refused(one({1ull << 40, 1ull << 40}, 0, 0), "too large"));
  EXPECT_TRUE(refused(one({1, 1, 1, 1, 1}, 0, 0), "has 5 dimensions"));
  Bytes overlap, twice;
  overlap.start(3, 2, 0).tensor("a", {16}, 0, 0).tensor("b", {8}, 0, 32).data(64);
  EXPECT_TRUE(refused(overlap, "tensors 'a' and 'b' overlap"));
  twice.start(3, 2, 0).tensor("a", {8}, 0, 0).tensor("a", {8}, 0, 32).data(64);
  EXPECT_TRUE(refused(twice, "found tensor 'a' twice"));
}

// A damaged or shortened file gives a UserError or another valid header, never anything else.
TEST(Gguf, SurvivesEveryCorruptedByteOfItsHeader) {
  const std::string whole = read_text(kFixtures / "smollm.gguf", 100000);
  const size_t header_bytes = parse(whole).tensors().size() * 40 + 2500;  // and some data
  for (size_t at = 0; at < header_bytes; ++at) {
    for (const int byte : {0, 9, 0xff}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(byte);
      try {
        const GgufHeader header = parse(damaged);
        gguf_model_config(header);
        gguf_tokenizer(header);
      } catch (const UserError&) {
      }
    }
    EXPECT_THROW(parse(std::string_view(whole).substr(0, at)), UserError) << at;
  }
}

TEST(Dequantize, Q8_0IsScaleTimesByte) {
  std::array<std::byte, 34> block{};
  block[1] = std::byte{0x38};  // 0.5 in fp16
  for (size_t i = 0; i < 32; ++i) block[2 + i] = static_cast<std::byte>(static_cast<int>(i) - 16);
  std::array<float, 32> out{};
  dequantize(GgufType::Q8_0, block, out);
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], 0.5f * (static_cast<float>(i) - 16));
}

//   byte i of 16: low half is value i, high half value i + 16
TEST(Dequantize, Q4_1IsScaleTimesHalfByteAndMinimum) {
  std::array<std::byte, 20> block{};
  block[1] = std::byte{0x40};  // 2
  block[3] = std::byte{0xbc};  // -1
  for (size_t i = 0; i < 16; ++i) block[4 + i] = static_cast<std::byte>(i | (15 - i) << 4);
  std::array<float, 32> out{};
  dequantize(GgufType::Q4_1, block, out);
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(out[i], 2.0f * static_cast<float>(i) - 1);
    EXPECT_EQ(out[16 + i], 2.0f * static_cast<float>(15 - i) - 1);
  }
}

// Merges as "a b", whichever of the two spellings a tokenizer.json has.
Json with_plain_merges(Json tokenizer) {
  for (Json& merge : tokenizer["model"]["merges"]) {
    if (merge.is_array()) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  }
  return tokenizer;
}

// The three models' tensors as transformers reads them, and their tokenizers as the tokenizers library writes them.
class GgufImport : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { import_gguf(kFixtures / (std::string(GetParam()) + ".gguf"), out_, Existing::Refuse); }
  TempDirectory directory_;
  fs::path out_ = directory_.path() / "model";
};
INSTANTIATE_TEST_SUITE_P(All, GgufImport, testing::Values("smollm", "llama3", "qwen2"));

TEST_P(GgufImport, TensorsAreBitIdenticalToTransformers) {
  const auto expected = SafetensorsIndex::open_file(kFixtures / (std::string(GetParam()) + ".expected.safetensors"));
  expect_same_tensors(SafetensorsIndex::open_model(out_), expected);
}

TEST_P(GgufImport, TokenizerIsTheOneTheLibraryWrites) {
  const fs::path path = kFixtures / (std::string(GetParam()) + ".tokenizer.json");
  const Json expected = with_plain_merges(parse_json(read_text(path, 100000), "expected"));
  const Json found = with_plain_merges(parse_json(read_text(out_ / "tokenizer.json", 100000), "found"));
  EXPECT_EQ(found, expected) << Json::diff(found, expected);
}

TEST_P(GgufImport, ConfigIsRead) {
  const ModelConfig config = read_model_config(out_);
  const auto json = parse_json(read_text(out_ / "config.json", 10000), "config.json");
  const std::string_view model = GetParam();
  EXPECT_EQ(config.spec.architecture, model == "qwen2" ? "Qwen2ForCausalLM" : "LlamaForCausalLM");
  EXPECT_EQ(config.spec.tied, model == "smollm");
  EXPECT_EQ(config.spec.rope.factor, model == "llama3" ? 8 : 1);
  EXPECT_EQ(config.spec.layers[0].heads.dim, 16);
  EXPECT_EQ(json["bos_token_id"], 1);
  EXPECT_THAT(config.end_tokens, ElementsAre(2));
  EXPECT_EQ(config.dtype, DType::BF16);
}

TEST_P(GgufImport, TokenizerConfigKeepsTemplateAndSpecialTokens) {
  const Json config = parse_json(read_text(out_ / "tokenizer_config.json", 10000), "tokenizer_config.json");
  EXPECT_EQ(config["chat_template"], "{{ messages }}");
  EXPECT_EQ(config["bos_token"], "<|bos|>");
  EXPECT_EQ(config["eos_token"], "<|eos|>");
  EXPECT_EQ(config["pad_token"], nullptr);
  EXPECT_EQ(config["add_bos_token"], std::string_view(GetParam()) == "llama3");
}

// A SentencePiece model as a GGUF file has it, as the same model's own file.
TEST(GgufTokenizer, SentencePiecesEncodeAsTheModelTheyComeFrom) {
  for (const bool prefix : {true, false}) {
    const fs::path fixtures = fs::path(SNUG_FIXTURES) / "sentencepiece";
    const std::string model = read_text(fixtures / (prefix ? "llama.model" : "gemma.model"), 1'000'000);
    const SentencePieces pieces = parse_sentencepiece(model, "tokenizer.model");
    Bytes b;
    b.start(3, 0, 8).string("tokenizer.ggml.model").number(8u).string("llama");
    b.string("tokenizer.ggml.tokens").number(9u).number(8u).number<uint64_t>(pieces.pieces.size());
    for (const auto& piece : pieces.pieces) b.string(piece.text);
    b.string("tokenizer.ggml.scores").number(9u).number(6u).number<uint64_t>(pieces.pieces.size());
    for (const auto& piece : pieces.pieces) b.number(piece.score);
    b.string("tokenizer.ggml.token_type").number(9u).number(5u).number<uint64_t>(pieces.pieces.size());
    for (const auto& piece : pieces.pieces) b.number(static_cast<int32_t>(piece.type));
    b.string("tokenizer.ggml.add_space_prefix").number(7u).number(prefix);
    b.string("tokenizer.ggml.unknown_token_id").number(4u).number(static_cast<uint32_t>(*pieces.unknown));
    b.string("tokenizer.ggml.bos_token_id").number(4u).number(static_cast<uint32_t>(*pieces.bos));
    b.string("tokenizer.ggml.add_bos_token").number(7u).number(prefix);
    const Tokenizer expected = Tokenizer::parse({.sentencepiece = model});
    const Tokenizer found = Tokenizer::parse({.tokenizer = gguf_tokenizer(parse(b.data(0).text))});
    EXPECT_EQ(found.adds_bos(), prefix);
    std::ifstream cases(fixtures / "cases.jsonl");
    size_t compared = 0;
    for (std::string line; std::getline(cases, line); ++compared) {
      const std::string text = Json::parse(line)["text"];
      ASSERT_EQ(found.encode(text), expected.encode(text)) << line;
      ASSERT_EQ(found.decode(found.encode(text), true), expected.decode(expected.encode(text), true)) << line;
    }
    EXPECT_GE(compared, 100u);
  }
}

TEST(GgufImportErrors, TokensLieWithinTheEmbedding) {
  const auto with_end_of_turn = [](uint32_t id) {
    Bytes b;
    b.start(3, 1, 2).string("tokenizer.ggml.eos_token_id").number(4u).number(1u);
    b.string("tokenizer.ggml.eot_token_id").number(4u).number(id);
    return b.tensor("token_embd.weight", {2, 3}, 0, 0).data(24).text;
  };
  EXPECT_EQ(parse_json(gguf_generation_config(parse(with_end_of_turn(2))), "x")["eos_token_id"], (Json{1, 2}));
  EXPECT_TRUE(fails_with<UserError>([&] { gguf_generation_config(parse(with_end_of_turn(3))); },
                                    "key 'tokenizer.ggml.eot_token_id': found 3, expected an integer from 0 to 2"));
  Bytes vector;
  vector.start(3, 1, 0).tensor("token_embd.weight", {2}, 0, 0).data(8);
  EXPECT_TRUE(fails_with<UserError>([&] { gguf_generation_config(parse(vector.text)); },
                                    "x.gguf, tensor 'token_embd.weight': found [2], expected a matrix"));
}

// What the fixtures' files lack, changed in place to a word of the same length.
TEST(GgufImportErrors, NameWhatIsNotSupported) {
  const std::string whole = read_text(kFixtures / "smollm.gguf", 100000);
  const TempDirectory directory;
  const struct {
    std::string_view from, to, message;
  } cases[] = {
      {"gpt2", "bert", "key 'tokenizer.ggml.model': found \"bert\", expected \"gpt2\", byte-level BPE, or \"llama\""},
      {"smollm", "jais-2", "key 'tokenizer.ggml.pre': found \"jais-2\", expected one of \"smollm\","},
      {"attn_v.weight", "attn_w.weight", "tensor 'blk.0.attn_v.weight' is missing, expected ["},
      {"llama.embedding_length", "llama.embedding_longer", "'llama.embedding_length': found nothing"},
      {"ab c", "ab d", "pairs of tokens that join to a token, not 'ab d'"},
  };
  for (const auto& c : cases) {
    std::string changed = whole;
    const size_t at = changed.rfind(c.from);
    ASSERT_NE(at, std::string::npos) << c.from;
    changed.replace(at, c.from.size(), c.to);
    write_text(directory.path() / "x.gguf", changed);
    EXPECT_TRUE(fails_with<UserError>(
        [&] { import_gguf(directory.path() / "x.gguf", directory.path() / "out", Existing::Refuse); }, c.message));
    EXPECT_FALSE(fs::exists(directory.path() / "out"));
    EXPECT_FALSE(fs::exists(directory.path() / "out.partial"));
  }
  Bytes other;
  other.start(3, 0, 1).string("general.architecture").number(8u).string("mamba2");
  EXPECT_TRUE(
      fails_with<UserError>([&] { gguf_model_config(parse(other.text)); },
                            "key 'general.architecture': found \"mamba2\", expected one of \"llama\", \"mistral3\", "));
}

}  // namespace
}  // namespace snug
