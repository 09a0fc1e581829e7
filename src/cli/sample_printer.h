// Shows samples as tokenize does.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include <nlohmann/json.hpp>

#include "api/options.h"
#include "data/dataset.h"
#include "format/tokenizer.h"

namespace snug {

// Shows samples on standard output: an object a line, or tokens a line with an empty line behind each sample, of which
// those of a view are one line.
class SamplePrinter {
 public:
  // `images` is what the model takes. The tokenizer must outlive it.
  SamplePrinter(const Tokenizer& tokenizer, const JobConfig& options, std::optional<ImageInput> images, bool json);

  // Shows ids of a bare text, all of which count, without an empty line behind them.
  void print_text(std::span<const int32_t> ids) const;
  void print(const Sample& sample) const;

 private:
  // Returns a document as JSON or, if JSON is not wanted, prints it under its name.
  nlohmann::ordered_json document(std::span<const int32_t> ids, std::span<const int32_t> labels,
                                  std::span<const DatasetView> views, std::string_view name) const;
  // Returns what a sample's images become: the size of the first view of each, and the tokens of all its views.
  nlohmann::ordered_json images_of(const Sample& sample) const;
  void end(const nlohmann::ordered_json& line) const;

  const Tokenizer& tokenizer_;
  ObjectiveKind objective_;
  std::optional<ImageInput> images_;
  bool json_;
};

}  // namespace snug
