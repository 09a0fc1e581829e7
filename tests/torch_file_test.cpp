#include "format/torch_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "expect_error.h"
#include "format/pickle.h"
#include "temp_directory.h"

namespace snug {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

// Written by torch.save; values.safetensors holds the same tensors, by the safetensors library.
const fs::path kFixtures = fs::path(SNUG_FIXTURES) / "torch";

std::string bytes_of(const SafetensorsIndex& index, const SafetensorsEntry& entry) {
  std::string bytes(entry.bytes, '\0');
  File::open_read(index.files()[entry.file], IoMode::Buffered)
      .read(entry.offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

testing::AssertionResult refused(const char* fixture, std::string_view part) {
  return fails_with<UserError>([&] { SafetensorsIndex::open_file(kFixtures / fixture); }, part);
}

std::vector<SafetensorsEntry> parse(std::string_view file) {
  const auto read = [&](uint64_t offset, std::span<std::byte> out) {
    ASSERT_LE(offset, file.size());
    ASSERT_LE(out.size(), file.size() - offset);
    std::memcpy(out.data(), file.data() + offset, out.size());
  };
  return parse_torch_file(read, file.size(), "x.bin");
}

class TorchFormats : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, TorchFormats, testing::Values("zip.bin", "old.bin", "protocol_4.bin", "zip64.bin"));

TEST_P(TorchFormats, HoldTheTensorsThatSafetensorsHolds) {
  const SafetensorsIndex found = SafetensorsIndex::open_file(kFixtures / GetParam());
  const SafetensorsIndex expected = SafetensorsIndex::open_file(kFixtures / "values.safetensors");
  ASSERT_EQ(found.entries().size(), expected.entries().size());
  for (const SafetensorsEntry& entry : expected.entries()) {
    const SafetensorsEntry* const same = found.find(entry.name);
    ASSERT_TRUE(same) << entry.name;
    EXPECT_EQ(same->dtype_name, entry.dtype_name) << entry.name;
    EXPECT_EQ(same->dtype, entry.dtype) << entry.name;
    EXPECT_EQ(same->shape, entry.shape) << entry.name;
    EXPECT_EQ(bytes_of(found, *same), bytes_of(expected, entry)) << entry.name;
  }
}

// A byte less, or another one: a UserError or tensors within the file, never anything else.
TEST_P(TorchFormats, SurviveEveryCutAndEveryCorruptedByte) {
  const std::string whole = read_text(kFixtures / GetParam(), 100000);
  for (size_t bytes = 0; bytes < whole.size(); bytes++) {
    EXPECT_THROW(parse(whole.substr(0, bytes)), UserError) << bytes;
    for (const char byte : {'\0', '\x7f', '\xff', 'R', '.'}) {
      std::string damaged = whole;
      damaged[bytes] = byte;
      try {
        for (const SafetensorsEntry& entry : parse(damaged)) ASSERT_LE(entry.offset + entry.bytes, whole.size());
      } catch (const UserError&) {
      }
    }
  }
}

TEST(TorchFile, TiedTensorsAreOnePlace) {
  const SafetensorsIndex index = SafetensorsIndex::open_file(kFixtures / "zip.bin");
  EXPECT_EQ(index.find("tied")->offset, index.find("table")->offset);
  EXPECT_EQ(index.find("rows")->offset, index.find("table")->offset + 2 * 4 * 4);
}

TEST(TorchFile, TypesThatSnugDoesNotReadAreNamedWhenTheyAreAskedFor) {
  const SafetensorsIndex index = SafetensorsIndex::open_file(kFixtures / "eighth.bin");
  EXPECT_EQ(index.find("eighth")->bytes, 4u);
  EXPECT_TRUE(fails_with<UserError>([&] { index.require("eighth", {2, 2}, ""); }, "found dtype F8_E4M3"));
}

TEST(TorchFile, RefusesByNameWhatIsNoDictionaryOfTensors) {
  EXPECT_TRUE(refused("runs.bin", "the global 'posix.system'"));
  EXPECT_TRUE(refused("transposed.bin", "tensor 'x': found sizes [4, 6] with strides [1, 4]"));
  EXPECT_TRUE(refused("nested.bin", "found a dictionary under 'state_dict', expected a tensor"));
  EXPECT_TRUE(refused("packed.bin", "found compression method 8, expected 0"));
}

// Pickles by hand, in Python's own opcodes.
TEST(Pickle, RefusesOpcodesThatMakeObjects) {
  const auto fails = [](std::string_view pickle, std::string_view part) {
    return fails_with<UserError>(
        [&] {
          size_t at = 0;
          read_pickle(pickle, at, "x");
        },
        part);
  };
  EXPECT_TRUE(fails("cos\nsystem\n(S'true'\ntR.", "the global 'os.system'"));
  EXPECT_TRUE(fails("(ios\nsystem\n.", "opcode INST"));
  EXPECT_TRUE(fails("\x80\x02]\x81.", "opcode NEWOBJ"));
  EXPECT_TRUE(fails("\x80\x04\x8c\x02os\x8c\x06system\x93.", "the global 'os.system'"));
  EXPECT_TRUE(
      fails("\x80\x02"
            "ccollections\nOrderedDict\n(NtR.",
            "an ordered dictionary that is made of a list"));
  EXPECT_TRUE(fails("\x80\x02]Nb.", "opcode BUILD of a list"));
  EXPECT_TRUE(fails("\x80\x02}X\x01", "it is cut short"));
  EXPECT_TRUE(fails("\x80\x02h\x07.", "a reference to value 7"));
  EXPECT_TRUE(fails("\x80\x02.", "found 0 values on the stack"));
  EXPECT_TRUE(fails("\x80\x02}(NNu.", "found None as a key"));
}

// Each of these bytes takes many times its own of memory.
TEST(Pickle, WhatIsKeptOfAPickleIsBounded) {
  constexpr size_t kMany = (1 << 20) + 2;
  const auto fails = [](const std::string& pickle, std::string_view part) {
    return fails_with<UserError>(
        [&] {
          size_t at = 0;
          read_pickle(pickle, at, "x");
        },
        part);
  };
  EXPECT_TRUE(
      fails("\x80\x04]" + std::string(kMany, '\x94'), "more than 1048576 values that are stored to be referred"));
  EXPECT_TRUE(fails("\x80\x04" + std::string(kMany, '('), "more than 1048576 marks"));
  EXPECT_TRUE(fails("\x80\x04" + std::string(kMany, 'N'), "more than 1048576 values on the stack"));
  std::string recalled = "\x80\x04]\x94";
  for (size_t i = 0; i < kMany; i++) recalled += std::string("h\0", 2);
  EXPECT_TRUE(fails(recalled, "more than 1048576 values on the stack"));
}

TEST(SafetensorsIndex, PrefersSafetensorsToPickles) {
  const TempDirectory directory;
  fs::copy(kFixtures / "eighth.bin", directory.path() / "pytorch_model.bin");
  EXPECT_TRUE(SafetensorsIndex::open_model(directory.path()).find("eighth"));
  fs::copy(kFixtures / "values.safetensors", directory.path() / "model.safetensors");
  EXPECT_FALSE(SafetensorsIndex::open_model(directory.path()).find("eighth"));
  fs::copy(kFixtures / "eighth.bin", directory.path() / "adapter_model.bin");
  EXPECT_TRUE(SafetensorsIndex::open_adapter(directory.path()).find("eighth"));
  fs::copy(kFixtures / "values.safetensors", directory.path() / "adapter_model.safetensors");
  EXPECT_FALSE(SafetensorsIndex::open_adapter(directory.path()).find("eighth"));
}

TEST(SafetensorsIndex, NamesOfAWrapperAreNamedWhereAModelsAreMissing) {
  const TempDirectory directory;
  const fs::path file = directory.path() / "model.safetensors";
  const auto refused_as = [&](const std::string& before, std::string_view part) {
    const std::vector<SafetensorsTensor> tensors{{before + "model.norm.weight", DType::F32, Shape{}}};
    const SafetensorsLayout layout = layout_safetensors(tensors);
    write_text(file, layout.header + std::string(layout.file_bytes - layout.header.size(), '\0'));
    const SafetensorsIndex index = SafetensorsIndex::open_file(file);
    return fails_with<UserError>([&] { index.require("model.norm.weight", Shape{}, ""); }, part);
  };
  EXPECT_TRUE(refused_as("_orig_mod.",
                         "found tensor '_orig_mod.model.norm.weight', expected 'model.norm.weight': torch.compile's "
                         "wrapper of a model was saved, take '_orig_mod.' off the names of its tensors"));
  EXPECT_TRUE(refused_as("module.", "a data-parallel wrapper of a model was saved, take 'module.' off"));
  EXPECT_TRUE(refused_as("language_model.", "expected 'model.norm.weight': take 'language_model.' off"));
  EXPECT_TRUE(refused_as("other_", "tensor 'model.norm.weight' is missing"));
}

TEST(SafetensorsIndex, JoinsPickledShards) {
  const TempDirectory directory;
  for (const char* shard : {"eighth.bin", "zip.bin"}) fs::copy(kFixtures / shard, directory.path() / shard);
  write_text(directory.path() / "pytorch_model.bin.index.json",
             R"({"weight_map": {"eighth": "eighth.bin", "half": "zip.bin"}})");
  const SafetensorsIndex index = SafetensorsIndex::open_model(directory.path());
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : index.entries()) names.push_back(entry.name);
  EXPECT_THAT(names, ElementsAre("eighth", "half"));
}

}  // namespace
}  // namespace snug
