// Turns the records of a data file into samples.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"
#include "data/sample_images.h"
#include "data/seen_keys.h"

namespace snug {

// Refers to its arguments, which must outlive it.
class SampleMaker {
 public:
  SampleMaker(const DataOptions& options, const TextEncoder* encoder);

  // Settles, by the first record of a file, what the others must be. The JSON of plain text is not examined. Throws
  // NullFieldError (data/null_fields.h) for a record that does not say, as a field that it needs is null.
  void look_at(const std::filesystem::path& file, const Record& first, bool json);
  // Returns what a record becomes. It is called from many threads at once. Throws NullFieldError for a null field that
  // it needs, unless such records are left out.
  Made make(const Record& record) const;
  // Says what make() would refuse a record for: a field that is null, or that all of them are. Other faults are None.
  enum class Nulls { None, Some, All };
  Nulls nulls_of(const Record& record) const;

  const RecordKinds& kinds() const { return kinds_; }
  const std::vector<NamedField>& named() const { return named_; }
  const std::vector<std::string>& roles() const { return roles_; }
  const std::string& keys() const { return keys_; }  // of the file's first record, for messages

 private:
  void finish(Sample& sample) const;
  void append(const std::vector<int32_t>& ids, bool loss, Sample& sample) const;
  void append_habitual_bos(std::string_view text, Sample& sample) const;
  void take_ends(std::string& text, std::string_view end, Made& made) const;
  Sample encode(std::string& text, Made& made) const;
  Sample encode(Conversation& conversation, std::span<const jinja::Value> tools, Made& made,
                std::span<const PlannedImage> images = {}) const;
  void refuse_images(const Answers& answers) const;
  std::vector<Sample> encode(Answers& answers, std::span<const jinja::Value> tools, Made& made) const;
  std::vector<Sample> encode(Answers::Texts& texts, Made& made) const;
  void require_format() const;

  const DataOptions& options_;
  const TextEncoder* encoder_;
  ShapeOptions shape_;
  std::vector<NamedField> named_;
  std::vector<std::string> roles_;  // those that options name
  std::string keys_;
  bool json_ = true;
  DataFormat format_ = DataFormat::Text;
  size_t answers_ = 0;  // which kind of replies the file's first record of preferences has: Answers::replies
  const ChatTemplate* template_ = nullptr;
  std::filesystem::path file_, image_folder_;
  std::optional<SampleImages> images_;  // of a model that takes some
  RecordKinds kinds_;
};

}  // namespace snug
