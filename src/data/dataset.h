// Holds data sets as tokens: files of any shape become flat arrays of token ids and labels.
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
#include "data/dataset_images.h"
#include "data/records.h"
#include "data/shapes.h"
#include "data/thinking.h"
#include "format/prompt_format.h"
#include "format/tokenizer.h"

namespace snug {

// Holds what a data set needs of a tokenizer. It is called from many threads at once.
struct TextEncoder {
  // Encodes text to ids; it parses special tokens in the text and adds none. Throws UserError for broken UTF-8.
  std::function<std::vector<int32_t>(std::string_view)> encode;
  // Encodes a text that continues the one before it, as Tokenizer::encode_next() describes. If it is not set, such
  // texts are encoded like any others.
  std::function<std::vector<int32_t>(std::string_view, Before&)> encode_next{};
  std::optional<int32_t> bos_id, eos_id;
  bool adds_bos = false;  // the tokenizer's habit for plain text
  // Hold the tokens that this habit puts before plain text, if they are several, and how they are spelt.
  std::vector<int32_t> prefix{};
  std::string prefix_text{};
  SpecialTexts special;  // how BOS and EOS are spelt
};

// Returns an encoder that refers to the tokenizer, which must outlive it.
TextEncoder encoder_of(const Tokenizer& tokenizer);

enum class TrainOn { Assistant, All };

// Says what becomes of a record that has a null field, as an empty cell of a table is, where its shape needs a value:
// an error, or it is left out, and a note counts such.
enum class EmptyRecords { Error, Skip };

struct DataOptions {
  std::vector<std::filesystem::path> files;  // read in this order
  std::optional<DataFormat> format;          // nothing: by the keys of each file's first record
  ShapeOptions shape;
  PromptFormat prompt_format;  // used only for conversations; a filled pattern is a user's turn
  TrainOn train_on = TrainOn::Assistant;
  Thinking thinking = Thinking::Keep;  // Last only where only replies carry loss
  std::optional<int64_t> max_samples;  // the most records read of each file, from its beginning, also empty ones
  EmptyRecords empty_records = EmptyRecords::Error;
  TextSplit text_split = TextSplit::Document;
  int64_t vocabulary = 0;              // ids must lie below it
  std::optional<ImageInput> images{};  // nothing: the model takes none, and records with images are refused
  std::filesystem::path image_dir{};   // where relative paths of images begin; empty: at the file's folder
  Heartbeat heartbeat{};               // called for each lot of samples
  // Called before this many more bytes are taken to hold samples; throws if there is no room for them.
  std::function<void(uint64_t bytes)> take{};
  // Called with a line for each thing that was settled by looking at a file, or passed over in it or its records.
  std::function<void(const std::string&)> note{};
};

// Holds one sample of any length: labels[i] is to be predicted at i from the tokens before it, kNoLabel for nothing.
// The first label is always kNoLabel, since nothing comes before it.
//   conversations  the rendered text of the chat template, encoded piece by piece; labels on replies with their
//                  end-of-turn token, or on all (train_on), unless messages say otherwise. With template none the
//                  tokenizer's habit decides on BOS. With thinking `last` one may become several samples.
//   text           BOS by the tokenizer's habit, the text, EOS; labels on all, whatever train_on says
//   tokens         ids and labels as they are, whatever train_on says
// BOS, EOS and a reply's end-of-turn token are not added where the text has them already, white space aside. Of several
// BOS at the beginning one is left, and a note counts such records; of several end-of-turn tokens at the end, where the
// tokenizer's EOS counts as one even if the template ends turns by another, one is left, and a note counts such
// records. A record or message of weight 0 has no label.
using Sample = TokenSample;

// Says of which kinds the records of the files are.
struct RecordKinds {
  bool conversations = false, texts = false;
  bool operator==(const RecordKinds&) const = default;
};

// Reads the files from front to end and calls visit(sample, place) for each sample in file order: a record is one or,
// as token ids and with thinking `last`, several. At any time it holds 4 MiB of text and the record that goes beyond
// them, which may have 256 MiB itself, and their tokens. Records are encoded on the threads of parallel_for(), with
// equal results for any number of them. `encoder` may be null if every file is of tokens. Throws UserError with file,
// line or element, key, what was found and what was expected; it names the earliest bad record. Throws UserError for a
// file without records, for one none of whose records has a field that columns or the prompt name, and for a role that
// options name and no message of any file has.
// `end_of_file` is called behind the samples of each file.
RecordKinds for_each_sample(const DataOptions& options, const TextEncoder* encoder,
                            const std::function<void(const Sample&, const std::string& place)>& visit,
                            const std::function<void()>& end_of_file = {});

// Holds all samples of a data set. A token takes four bytes and a bit; a label that differs from its token, which only
// token files have, sixteen bytes more. An image takes about as many as its path and its place in messages, and as its
// file if the record holds that.
class Dataset {
 public:
  // Adds a sample. Throws UserError if it has 2^32 tokens or more; `place` says for messages where it comes from.
  // Throws InternalError if some samples are pairs, or have a value, and others not.
  void add(const Sample& sample, std::string_view place = "data");
  // Returns the bytes that the next add() takes while it enlarges what holds the samples; 0 if it enlarges nothing.
  uint64_t growth(const Sample& sample) const;

  const RecordKinds& kinds() const { return kinds_; }
  void set_kinds(RecordKinds kinds) { kinds_ = kinds; }
  // Notes that a file's samples end here.
  void end_file() { file_ends_.push_back(static_cast<uint64_t>(samples())); }
  // Returns by file of the data where its samples end; empty where that was not noted.
  const std::vector<uint64_t>& file_ends() const { return file_ends_; }
  int64_t samples() const { return static_cast<int64_t>(starts_.size()) - 1; }
  int64_t tokens() const { return static_cast<int64_t>(ids_.size()); }
  int64_t length(int64_t sample) const { return static_cast<int64_t>(ids(sample).size()); }
  std::span<const int32_t> ids(int64_t sample) const;
  // Writes the labels of tokens [begin, begin + out.size()) of a sample.
  void labels(int64_t sample, int64_t begin, std::span<int32_t> out) const;
  // Writes by what the losses of labels [begin, begin + out.size()) of a sample are multiplied.
  void weights(int64_t sample, int64_t begin, std::span<float> out) const;
  bool has_weights() const { return !weights_.empty(); }
  // Returns how many of the tokens [begin, end) have a label. Reads one bit a token.
  int64_t loss_tokens(int64_t sample, int64_t begin, int64_t end) const;
  bool has_images() const { return !images_.empty(); }
  // Return those of a sample, in the order of its tokens.
  std::span<const DatasetImage> images(int64_t sample) const { return images_.images(sample); }
  std::span<const DatasetView> views(int64_t sample) const { return images_.views(sample); }
  // Returns how many patches the views within the tokens [begin, end) of a sample have.
  int64_t patches(int64_t sample, int64_t begin, int64_t end) const;
  // Returns the end of tokens of a sample that are to end at `end`: that, or, if an image lies on both sides of it,
  // where that image begins.
  int64_t end_before_image(int64_t sample, int64_t end) const;
  // Returns what all images are called and where their files are.
  const DatasetImages& all_images() const { return images_; }
  void look_up_image_sizes(const Heartbeat& heartbeat = {}) { images_.look_up_sizes(heartbeat); }
  // Returns whether every sample is two documents.
  bool has_pairs() const { return !seconds_.empty(); }
  // Returns where the second document of a pair begins; 0 if samples are one document.
  uint32_t second(int64_t sample) const { return has_pairs() ? seconds_[static_cast<size_t>(sample)] : 0; }
  // Returns TokenSample::value; 0 if samples have none.
  float value(int64_t sample) const { return values_.empty() ? 0 : values_[static_cast<size_t>(sample)]; }
  bool operator==(const Dataset&) const = default;

 private:
  friend class DatasetFile;  // data/dataset_file.h

  std::vector<int32_t> ids_;
  std::vector<uint64_t> has_label_;  // a bit a token
  std::vector<uint64_t> starts_{0};  // of each sample in ids_, and the end of the last
  std::vector<uint32_t> seconds_;    // by sample: where its second document begins; empty: samples are one document
  std::vector<float> values_;        // by sample; empty: they have none
  std::vector<uint64_t> file_ends_;  // by file, in samples
  RecordKinds kinds_;
  DatasetImages images_;
  std::vector<std::pair<uint64_t, int32_t>> other_labels_;  // by place in ids_: labels that are not the token itself
  std::vector<std::pair<uint64_t, float>> weights_;         // by place in ids_, of labels: those that are not 1
};

// Returns the selected samples, each with a second document: its prompt, and the reply of the next selected one in
// order (round and round) whose prompt is another; of several samples in a row with one prompt the second has the one
// after that, and so on, so that others' replies are not the first ones alone. Returns them without second documents if
// there is only one prompt. A prompt is what stands before the first label.
Dataset with_other_replies(const Dataset& judged, std::span<const uint32_t> selection);

// Collects for_each_sample() in a Dataset. Throws UserError if there are no files.
Dataset load_dataset(const DataOptions& options, const TextEncoder* encoder);

// Returns where samples, by rising numbers, stand in the files that load_dataset() made the data set of: "a.jsonl, line
// 12". It reads files of 256 MiB at most again; of a larger one, one that has changed, and one whose records are not a
// sample each, it says "a.jsonl, sample 12", counted from 1; and "sample 12" where samples are not in the files' order.
std::vector<std::string> places_of(const Dataset& dataset, const DataOptions& options,
                                   std::span<const uint32_t> samples);

// Says which samples train and which are held out, both in file order.
struct HoldOut {
  std::vector<uint32_t> training, validation;
};

// Holds out `fraction` of the samples, rounded, at least one and never all, drawn by the seed alone. Throws UserError
// unless 0 < fraction < 1 and there are two samples.
HoldOut hold_out(int64_t samples, double fraction, uint64_t seed);

// Returns 0, 1, ... samples - 1.
std::vector<uint32_t> all_samples(int64_t samples);

}  // namespace snug
