// Data sets as tokens: files of any shape in, flat arrays of token ids and labels out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/heartbeat.h"
#include "data/records.h"
#include "data/shapes.h"
#include "data/thinking.h"
#include "format/prompt_format.h"
#include "format/tokenizer.h"

namespace snug {

// What a data set needs of a tokenizer. Called from many threads at once.
struct TextEncoder {
  // Text to ids, special tokens in the text parsed, none added. UserError for broken UTF-8.
  std::function<std::vector<int32_t>(std::string_view)> encode;
  // The same of a text that goes on from what stands before it, of which Tokenizer::encode_next() tells. Where it is
  // not set, texts that go on are encoded as any others.
  std::function<std::vector<int32_t>(std::string_view, Before&)> encode_next{};
  std::optional<int32_t> bos_id, eos_id;
  bool adds_bos = false;  // the tokenizer's habit for plain text
  // What this habit puts before plain text where it is several tokens, and how they are spelt.
  std::vector<int32_t> prefix{};
  std::string prefix_text{};
  SpecialTexts special;  // how the two are spelt
};

// Refers to the tokenizer, which must outlive it.
TextEncoder encoder_of(const Tokenizer& tokenizer);

enum class TrainOn { Assistant, All };

struct DataOptions {
  std::vector<std::filesystem::path> files;  // read in this order
  std::optional<DataFormat> format;          // otherwise by the keys of each file's first record
  ShapeOptions shape;
  PromptFormat prompt_format;  // looked at only where there are conversations; a filled pattern is a user's turn
  TrainOn train_on = TrainOn::Assistant;
  Thinking thinking = Thinking::Keep;  // Last only where replies alone carry loss
  std::optional<int64_t> max_samples;  // the first so many records of each file
  TextSplit text_split = TextSplit::Document;
  int64_t vocabulary = 0;  // ids must lie below it
  Heartbeat heartbeat{};   // called for each lot of samples
  // Called before so many bytes more are taken to hold samples; throws where there is no room for them.
  std::function<void(uint64_t bytes)> take{};
  // Takes a line for each thing that was settled by looking at a file, or passed over in it or its records.
  std::function<void(const std::string&)> note{};
};

// One sample, as long as it comes: labels[i] is what is to be predicted at i from the tokens before it, kNoLabel for
// nothing. The first label is always kNoLabel, since nothing comes before it.
//   conversations  the rendered text of the chat template, encoded piece by piece; labels on replies with their
//                  end-of-turn token, or on all (train_on), as far as messages do not say so themselves. With template
//                  none BOS comes by the tokenizer's habit. With thinking `last` one may become several samples.
//   text           BOS by the tokenizer's habit, the text, EOS; labels on all, whatever train_on says
//   tokens         ids and labels as they are, whatever train_on says
// BOS, EOS and a reply's end-of-turn token are not added where the text has them already, white space aside; of several
// BOS at the beginning one is left, with a note that counts such records; of several at the end, also the tokenizer's
// EOS where the template ends turns by another, one end-of-turn is left, and a note counts such records. A record of
// weight 0 has no label.
using Sample = TokenSample;

// Of which kinds the records of the files are.
struct RecordKinds {
  bool conversations = false, texts = false;
  bool operator==(const RecordKinds&) const = default;
};

// Reads the files from front to end and calls visit(sample, place) for each sample in file order: a record is one, or,
// as token ids and with thinking `last`, several. At any time 4 MiB of
// text and the record that goes beyond are held, which may have 256 MiB itself, and their tokens. Records are encoded
// on the threads of parallel_for(), with the same result for any number of them. `encoder` may be null where every file
// is of tokens. UserError with file, line or element, key, what was found and what was expected; the earliest bad
// record is the one that is named. UserError for a file that holds none, for one none of whose records has a field
// that columns or the prompt name, and for a role that options name and no message of any file has.
RecordKinds for_each_sample(const DataOptions& options, const TextEncoder* encoder,
                            const std::function<void(const Sample&, const std::string& place)>& visit);

// All samples of a data set. Four bytes and a bit a token; labels that differ from their token, which only token files
// have, sixteen bytes more each.
class Dataset {
 public:
  // UserError if the sample has 2^32 tokens or more; `place` says for messages where it comes from.
  void add(const Sample& sample, std::string_view place = "data");
  // Bytes that the next add() takes while it grows what holds the samples; 0 where it grows nothing.
  uint64_t growth(const Sample& sample) const;

  const RecordKinds& kinds() const { return kinds_; }
  void set_kinds(RecordKinds kinds) { kinds_ = kinds; }
  int64_t samples() const { return static_cast<int64_t>(starts_.size()) - 1; }
  int64_t tokens() const { return static_cast<int64_t>(ids_.size()); }
  int64_t length(int64_t sample) const { return static_cast<int64_t>(ids(sample).size()); }
  std::span<const int32_t> ids(int64_t sample) const;
  // The labels of tokens [begin, begin + out.size()) of a sample.
  void labels(int64_t sample, int64_t begin, std::span<int32_t> out) const;
  // How many of the labels of tokens [begin, end) are there. Reads one bit a token.
  int64_t loss_tokens(int64_t sample, int64_t begin, int64_t end) const;
  bool operator==(const Dataset&) const = default;

 private:
  friend class DatasetFile;  // data/dataset_file.h

  std::vector<int32_t> ids_;
  std::vector<uint64_t> has_label_;  // a bit a token
  std::vector<uint64_t> starts_{0};  // of each sample in ids_, and the end of the last
  RecordKinds kinds_;
  std::vector<std::pair<uint64_t, int32_t>> other_labels_;  // by place in ids_: labels that are not the token itself
};

// for_each_sample() into a Dataset. UserError if there are no files.
Dataset load_dataset(const DataOptions& options, const TextEncoder* encoder);

// Which samples train and which are held out, both in file order.
struct HoldOut {
  std::vector<uint32_t> training, validation;
};

// Holds out `fraction` of the samples, rounded, at least one and never all, drawn by the seed alone. UserError unless
// 0 < fraction < 1 and there are two samples.
HoldOut hold_out(int64_t samples, double fraction, uint64_t seed);

// 0, 1, ... samples - 1.
std::vector<uint32_t> all_samples(int64_t samples);

}  // namespace snug
