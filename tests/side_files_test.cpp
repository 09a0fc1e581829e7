// Which files beside a model's weights go with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "format/side_files.h"
#include "temp_directory.h"

namespace snug {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(SideFiles, ProcessorsOfImagesAndVideosAreAmongThem) {
  const TempDirectory directory;
  for (const char* name : {"config.json", "preprocessor_config.json", "processor_config.json",
                           "video_preprocessor_config.json", "optimizer.pt", "notes.txt"})
    write_text(directory.path() / name, "{}");
  EXPECT_THAT(side_files(directory.path()), ElementsAre("config.json", "preprocessor_config.json",
                                                        "processor_config.json", "video_preprocessor_config.json"));
}

// A model's own modules import others, so that all go with it. Without an auto_map scripts are somebody's.
TEST(SideFiles, CodeThatAModelNamesIsAmongThem) {
  const TempDirectory directory;
  const auto put = [&](const char* name, const std::string& text) { write_text(directory.path() / name, text); };
  put("modeling_a.py", "import helper");
  put("helper.py", "");
  put("config.json", "{}");
  EXPECT_THAT(side_files(directory.path()), ElementsAre("config.json"));
  put("config.json", R"({"auto_map": {"AutoModel": "modeling_a.A", "AutoConfig": "other/repo--configuration_b.B"}})");
  EXPECT_THAT(side_files(directory.path()), ElementsAre("config.json", "helper.py", "modeling_a.py"));
  EXPECT_THAT(missing_code(directory.path()), IsEmpty());
  put("tokenizer_config.json", R"({"auto_map": {"AutoTokenizer": ["tokenization_a.T", null]}})");
  EXPECT_THAT(missing_code(directory.path()), HasSubstr("auto_map names tokenization_a.py, found no file of at most"));
  put("tokenization_a.py", std::string(kMaxCodeBytes + 1, '#'));
  EXPECT_THAT(missing_code(directory.path()), HasSubstr("tokenization_a.py"));
  put("tokenization_a.py", "");
  EXPECT_THAT(missing_code(directory.path()), IsEmpty());
}

}  // namespace
}  // namespace snug
