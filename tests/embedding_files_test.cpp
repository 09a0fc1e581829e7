// Files of what a tower makes of images: there and back, and files that are anything else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <numeric>

#include "base/error.h"
#include "data/embedding_files.h"
#include "temp_directory.h"

namespace snug {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr uint64_t kImage = 0x1234;
constexpr int64_t kRows = 3, kColumns = 5;

class EmbeddingFilesTest : public testing::Test {
 protected:
  EmbeddingFilesTest() : files_(directory_.path(), "a tower", DType::F32, kColumns) {
    std::iota(numbers_.begin(), numbers_.end(), 0.5f);
    files_.write(kImage, view(numbers_, kRows));
  }

  static TensorView view(std::vector<float>& numbers, int64_t rows) {
    return {reinterpret_cast<std::byte*>(numbers.data()), DType::F32, {rows, kColumns}, kColumns};
  }
  std::string bytes() const {
    std::ifstream in(files_.path_of(kImage), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void put(const std::string& bytes) const { std::ofstream(files_.path_of(kImage), std::ios::binary) << bytes; }
  void expect_refused(const std::string& found, int64_t rows = kRows) {
    std::vector<float> read(static_cast<size_t>(rows * kColumns));
    try {
      files_.read(kImage, view(read, rows));
      FAIL() << "was read";
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr(files_.path_of(kImage).string()));
      EXPECT_THAT(error.what(), HasSubstr("found " + found));
    }
  }

  TempDirectory directory_;
  EmbeddingFiles files_;
  std::vector<float> numbers_ = std::vector<float>(kRows * kColumns);
};

TEST_F(EmbeddingFilesTest, RowsComeBackAndTakeWhatIsSaid) {
  std::vector<float> read(numbers_.size());
  EXPECT_TRUE(files_.has(kImage, kRows));
  files_.read(kImage, view(read, kRows));
  EXPECT_EQ(read, numbers_);
  EXPECT_EQ(files_.bytes_of(kRows), bytes().size());
  EXPECT_EQ(bytes().size(), 64 + 4 * numbers_.size());
  EXPECT_EQ(std::distance(fs::directory_iterator(files_.directory()), {}), 1);  // nothing unfinished is left
}

TEST_F(EmbeddingFilesTest, AnotherImageAnotherTowerAndOtherRowsAreNotThere) {
  EXPECT_FALSE(files_.has(kImage + 1, kRows));
  EXPECT_FALSE(files_.has(kImage, kRows + 1));
  EXPECT_FALSE(EmbeddingFiles(directory_.path(), "another tower", DType::F32, kColumns).has(kImage, kRows));
  expect_refused("124 bytes", kRows + 1);
  fs::remove(files_.path_of(kImage));
  expect_refused("nothing");
  files_.read_ahead(kImage);  // hints say nothing
}

TEST_F(EmbeddingFilesTest, FilesThatAreCutOrLongerAreNotThere) {
  const std::string whole = bytes();
  for (const size_t length : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, whole.size() - 1, whole.size() + 1}) {
    std::string other = whole;
    other.resize(length);
    put(other);
    EXPECT_FALSE(files_.has(kImage, kRows)) << length;
    expect_refused(fmt::format("{} bytes", length));
  }
}

// Each number of a header is looked at, and each byte of the rows.
TEST_F(EmbeddingFilesTest, AFileWithAnotherByteIsRefused) {
  const std::string whole = bytes();
  for (size_t byte = 0; byte < whole.size(); byte++) {
    std::string other = whole;
    other[byte] = static_cast<char>(other[byte] ^ 0x10);
    put(other);
    EXPECT_EQ(files_.has(kImage, kRows), byte >= 56) << byte;  // the checksum and the rows are for read()
    expect_refused(byte < 56 ? "another header" : "another checksum");
  }
  files_.write(kImage, view(numbers_, kRows));
  EXPECT_EQ(bytes(), whole);
}

}  // namespace
}  // namespace snug
