// What tests of the shapes of records share: files of records, read as samples that are shown as text.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "byte_encoder.h"
#include "data/dataset.h"
#include "expect_error.h"
#include "temp_directory.h"

namespace snug {

// Bytes as themselves, the special tokens as <, > and ^, stretches with loss between bars; behind "//" what is
// rejected, behind "=" a margin or a label.
inline std::string shown(const Sample& sample) {
  std::string out;
  bool loss = false;
  for (size_t i = 0; i < sample.ids.size(); ++i) {
    if (i > 0 && i == sample.second) {
      if (loss) out += '|';
      loss = false;
      out += " // ";
    }
    const int32_t id = sample.ids[i], label = sample.labels[i];
    if ((label != kNoLabel) != loss) out += '|';
    loss = label != kNoLabel;
    out += id == kStart ? '<' : id == kEnd ? '>' : id == kBos ? '^' : static_cast<char>(id);
  }
  if (loss) out += '|';
  return sample.value ? fmt::format("{} = {}", out, *sample.value) : out;
}

class Shapes : public testing::Test {
 protected:
  // The samples of a file of records; what is said of it goes to notes_.
  std::vector<std::string> read(const std::vector<std::string>& records) {
    std::string text;
    for (const std::string& record : records) text += record + "\n";
    return read_files({{"a.jsonl", text}});
  }
  // The same of files, by name and text.
  std::vector<std::string> read_files(const std::vector<std::pair<std::string, std::string>>& files) {
    options_.files.clear();
    for (const auto& [name, text] : files) {
      options_.files.push_back(directory_.path() / name);
      std::ofstream(options_.files.back()) << text;
    }
    options_.note = [&](const std::string& note) { notes_.push_back(note); };
    notes_.clear();
    std::vector<std::string> out;
    for_each_sample(options_, &encoder_,
                    [&](const Sample& sample, const std::string&) { out.push_back(shown(sample)); });
    return out;
  }
  std::vector<std::string> read(const Json& record) { return read(std::vector{record.dump()}); }
  std::vector<std::string> read(const char* record) { return read(std::vector<std::string>{record}); }
  template <class Record>
  testing::AssertionResult refused(const Record& record, std::string_view part) {
    return fails_with<UserError>([&] { read(record); }, part);
  }

  TempDirectory directory_;
  TextEncoder encoder_ = byte_encoder();
  DataOptions options_ = [] {
    DataOptions options;
    options.prompt_format.chat = ChatTemplate::choose("chatml", "", byte_encoder().special);
    options.vocabulary = 259;
    return options;
  }();
  std::vector<std::string> notes_;
};

}  // namespace snug
