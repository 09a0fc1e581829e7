#include "data/dataset_file.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "base/error.h"

namespace snug {
namespace {

constexpr uint64_t kPiece = uint64_t{8} << 20;  // bytes between signs of life
constexpr size_t kColumnPiece = 4096;           // number of labels; their places and values are apart in the file
constexpr uint64_t kConversations = 1, kTexts = 2;
constexpr uint64_t kNoteHeader = sizeof(int32_t) + sizeof(uint64_t);

using OtherLabel = std::pair<uint64_t, int32_t>;
using Weight = std::pair<uint64_t, float>;

uint64_t words_of(uint64_t tokens) { return tokens / 64 + (tokens % 64 != 0); }

uint64_t bytes_of(const std::vector<DatasetNote>& notes) {
  uint64_t bytes = 0;
  for (const DatasetNote& note : notes) bytes += kNoteHeader + note.text.size();
  return bytes;
}

// Writes parts one after another, and the checksum behind all.
class Writer {
 public:
  Writer(File& file, const Heartbeat& heartbeat) : file_(file), heartbeat_(heartbeat) { file_.start_checksum(); }

  template <class T>
  void add(std::span<const T> values) {
    std::span<const std::byte> bytes = std::as_bytes(values);
    while (!bytes.empty()) {
      const std::span<const std::byte> piece = bytes.first(std::min<uint64_t>(bytes.size(), kPiece));
      file_.write(at_, piece);
      at_ += piece.size();
      bytes = bytes.subspan(piece.size());
      call(heartbeat_);
    }
  }
  template <class T>
  void add_one(const T& value) {
    add(std::span(&value, 1));
  }
  template <class Entry, class T>
  void add_column(const std::vector<Entry>& labels, T Entry::*member) {
    std::array<T, kColumnPiece> piece{};
    for (size_t begin = 0; begin < labels.size(); begin += kColumnPiece) {
      const std::span<T> values = std::span(piece).first(std::min(kColumnPiece, labels.size() - begin));
      for (size_t i = 0; i < values.size(); ++i) values[i] = labels[begin + i].*member;
      add(std::span<const T>(values));
    }
  }
  void add_checksum() { add_one(file_.checksum()); }

 private:
  File& file_;
  const Heartbeat& heartbeat_;
  uint64_t at_ = 0;
};

}  // namespace

// Reads parts one after another; it reads and takes no more than the checked header says.
class DatasetFile::Reader {
 public:
  Reader(const std::filesystem::path& path, const DataOptions& options)
      : file_(File::open_read(path, IoMode::Buffered)),
        options_(options),
        state_(XXH3_createState(), &XXH3_freeState),
        left_(file_.size()) {
    XXH3_64bits_reset(state_.get());
  }

  std::optional<Content> content(std::string_view key) {
    DatasetHeader header;
    require(left_ >= sizeof(header) + sizeof(uint64_t), "fewer bytes than a header has");
    read(std::span(&header, 1));
    require(header.magic == DatasetHeader::kMagic, "no header");
    if (header.format != DatasetHeader::kFormat) return std::nullopt;
    const uint64_t memory = memory_of(header);
    if (header.key_bytes != key.size()) return std::nullopt;
    std::string found(header.key_bytes, '\0');
    read(std::span(found));
    if (found != key) return std::nullopt;
    if (options_.take) options_.take(memory);
    Content content;
    content.notes = notes_of(header);
    read_arrays(header, content.dataset);
    const uint64_t sum = XXH3_64bits_digest(state_.get());
    uint64_t expected = 0;
    read(std::span(&expected, 1));
    require(sum == expected, "another checksum");
    require_samples(content.dataset);
    require_files(content.dataset);
    require_images(content.dataset);
    if (content.dataset.all_images().state() != header.image_state) return std::nullopt;
    return content;
  }

 private:
  void require(bool holds, std::string_view found) const {
    if (!holds) user_error("{}: found {}, expected a whole data set: it is damaged", file_.path().string(), found);
  }

  template <class T>
  void read(std::span<T> values) {
    std::span<std::byte> bytes = std::as_writable_bytes(values);
    while (!bytes.empty()) {
      const std::span<std::byte> piece = bytes.first(std::min<uint64_t>(bytes.size(), kPiece));
      file_.read(at_, piece);
      XXH3_64bits_update(state_.get(), piece.data(), piece.size());
      at_ += piece.size();
      bytes = bytes.subspan(piece.size());
      call(options_.heartbeat);
    }
  }

  // Returns the bytes that a data set with such a header takes. Throws UserError unless it is exactly as long as the
  // file.
  uint64_t memory_of(const DatasetHeader& header) {
    left_ -= sizeof(header) + sizeof(uint64_t);
    uint64_t memory = 0;
    const auto hold = [&](uint64_t count, uint64_t width, uint64_t width_in_memory) {
      require(count <= left_ / width, "sizes beyond the file's end");
      left_ -= count * width;
      memory += count * width_in_memory;
    };
    hold(header.key_bytes, 1, 1);
    hold(header.notes_bytes, 1, 1);
    hold(header.tokens, sizeof(int32_t), sizeof(int32_t));
    hold(words_of(header.tokens), sizeof(uint64_t), sizeof(uint64_t));
    hold(header.samples, sizeof(uint64_t), sizeof(uint64_t));
    hold(header.files, sizeof(uint64_t), sizeof(uint64_t));
    hold(header.seconds, sizeof(uint32_t), sizeof(uint32_t));
    hold(header.values, sizeof(float), sizeof(float));
    hold(header.other_labels, sizeof(uint64_t) + sizeof(int32_t), sizeof(OtherLabel));
    hold(header.weights, sizeof(uint64_t) + sizeof(float), sizeof(Weight));
    hold(header.samples_with_images, sizeof(DatasetImages::Owner), sizeof(DatasetImages::Owner));
    hold(header.images, sizeof(DatasetImage), sizeof(DatasetImage));
    hold(header.views, sizeof(DatasetView), sizeof(DatasetView));
    hold(header.image_text, 1, 1);
    require(left_ == 0, "more bytes than its sizes say");
    const auto all_or_none = [&](uint64_t count) { return count == 0 || count == header.samples; };
    require(header.samples > 0 && header.kinds <= (kConversations | kTexts) && all_or_none(header.seconds) &&
                all_or_none(header.values),
            "a header that no data set has");
    return memory;
  }

  std::vector<DatasetNote> notes_of(const DatasetHeader& header) {
    std::vector<DatasetNote> notes;
    uint64_t left = header.notes_bytes;
    for (uint64_t i = 0; i < header.notes; ++i) {
      require(left >= kNoteHeader, "notes beyond their end");
      DatasetNote& note = notes.emplace_back();
      uint64_t length = 0;
      read(std::span(&note.file, 1));
      read(std::span(&length, 1));
      left -= kNoteHeader;
      require(length <= left && note.file >= -1 && note.file < std::ssize(options_.files), "a note that is none");
      note.text.resize(length);
      read(std::span(note.text));
      left -= length;
    }
    require(left == 0, "more bytes of notes than notes");
    return notes;
  }

  void read_arrays(const DatasetHeader& header, Dataset& dataset) {
    dataset.kinds_ = {(header.kinds & kConversations) != 0, (header.kinds & kTexts) != 0};
    dataset.ids_.resize(header.tokens);
    read(std::span(dataset.ids_));
    dataset.has_label_.resize(words_of(header.tokens));
    read(std::span(dataset.has_label_));
    dataset.starts_.resize(header.samples + 1);
    read(std::span(dataset.starts_).subspan(1));
    dataset.file_ends_.resize(header.files);
    read(std::span(dataset.file_ends_));
    dataset.seconds_.resize(header.seconds);
    read(std::span(dataset.seconds_));
    dataset.values_.resize(header.values);
    read(std::span(dataset.values_));
    dataset.other_labels_.resize(header.other_labels);
    read_column(dataset.other_labels_, &OtherLabel::first);
    read_column(dataset.other_labels_, &OtherLabel::second);
    dataset.weights_.resize(header.weights);
    read_column(dataset.weights_, &Weight::first);
    read_column(dataset.weights_, &Weight::second);
    DatasetImages& images = dataset.images_;
    images.owners_.resize(header.samples_with_images);
    read(std::span(images.owners_));
    images.images_.resize(header.images);
    read(std::span(images.images_));
    images.views_.resize(header.views);
    read(std::span(images.views_));
    images.text_.resize(header.image_text);
    read(std::span(images.text_));
  }

  template <class Entry, class T>
  void read_column(std::vector<Entry>& labels, T Entry::*member) {
    std::array<T, kColumnPiece> piece{};
    for (size_t begin = 0; begin < labels.size(); begin += kColumnPiece) {
      const std::span<T> values = std::span(piece).first(std::min(kColumnPiece, labels.size() - begin));
      read(values);
      for (size_t i = 0; i < values.size(); ++i) labels[begin + i].*member = values[i];
    }
  }

  // Checks what every reader of a data set relies on.
  void require_samples(const Dataset& dataset) const {
    const auto has_label = [&](uint64_t at) { return (dataset.has_label_[at / 64] >> (at % 64) & 1) != 0; };
    const auto is_id = [&](int32_t id) { return id >= 0 && id < options_.vocabulary; };
    const uint64_t tokens = dataset.ids_.size();
    const std::vector<uint64_t>& starts = dataset.starts_;
    require(starts.back() == tokens, "samples beyond the last token");
    for (size_t i = 0; i + 1 < starts.size(); ++i) {
      require(starts[i] < starts[i + 1] && starts[i + 1] <= tokens && starts[i + 1] - starts[i] <= UINT32_MAX,
              "samples that overlap");
      require(!has_label(starts[i]), "a label of a first token");
      if (!dataset.has_pairs()) continue;
      const uint64_t second = dataset.seconds_[i];
      require(second > 0 && second < starts[i + 1] - starts[i], "a pair without a second document");
      require(!has_label(starts[i] + second), "a label of a first token");
    }
    require(tokens % 64 == 0 || dataset.has_label_.back() >> (tokens % 64) == 0, "labels beyond the last token");
    require(std::all_of(dataset.ids_.begin(), dataset.ids_.end(), is_id), "ids beyond the vocabulary");
    require(std::ranges::all_of(dataset.values_, [](float value) { return std::isfinite(value); }),
            "a value that is not finite");
    uint64_t next = 0;
    for (const auto& [place, label] : dataset.other_labels_) {
      require(place >= next && place < tokens && has_label(place) && is_id(label), "a label without a place");
      next = place + 1;
    }
    next = 0;
    for (const auto& [place, weight] : dataset.weights_) {
      require(place >= next && place < tokens && has_label(place) && std::isfinite(weight) && weight != 0,
              "a weight without a label");
      next = place + 1;
    }
  }

  void require_files(const Dataset& dataset) const {
    const std::vector<uint64_t>& ends = dataset.file_ends_;
    require(ends.empty() || (ends.size() == options_.files.size() && std::ranges::is_sorted(ends) &&
                             ends.back() == static_cast<uint64_t>(dataset.samples())),
            "other files than the data has");
  }

  void require_images(const Dataset& dataset) const {
    const DatasetImages& images = dataset.images_;
    uint64_t text = 0;
    for (const DatasetImage& image : images.images_) {
      const uint64_t names = uint64_t{image.source_bytes} + image.path_bytes, left = images.text_.size() - text;
      require(image.text == text && names <= left && image.held_bytes <= left - names &&
                  (image.path_bytes == 0) == (image.held_bytes > 0) &&
                  (image.path_bytes > 0 || image.place_bytes == 0) && image.place_bytes <= kMaxRecordBytes,
              "an image without a place");
      text += names + image.held_bytes;
    }
    require(text == images.text_.size(), "more text than images have");
    uint64_t next_image = 0, next_view = 0, next_sample = 0;
    for (const DatasetImages::Owner& owner : images.owners_) {
      require(owner.sample >= next_sample && owner.sample < static_cast<uint64_t>(dataset.samples()) &&
                  owner.images == next_image && owner.views == next_view && owner.image_count > 0 &&
                  owner.image_count <= images.images_.size() - next_image &&
                  owner.view_count <= images.views_.size() - next_view && owner.unused == 0,
              "images of no sample");
      require_images(dataset, owner.sample);
      next_image += owner.image_count;
      next_view += owner.view_count;
      next_sample = uint64_t{owner.sample} + 1;
    }
    require(next_image == images.images_.size() && next_view == images.views_.size(), "images of no sample");
  }

  // Checks what is a video's of the image behind another, if there is one: a step follows the one before it, and is not
  // so late that its positions might be beyond those that a text of as many tokens has.
  void require_step(const Dataset& dataset, const DatasetImage* before, const DatasetImage& image) const {
    const auto files = std::ssize(dataset.images_.paths(image));
    if (image.step == 0) return require(image.time == 0 && files == 1, "a time without a video");
    const bool goes_on = image.step > 1;
    require(options_.images && options_.images->processor.takes_videos() && image.place_bytes == 0 &&
                image.held_bytes == 0 && files <= options_.images->processor.frames,
            "a video that is none");
    require(!goes_on || (before != nullptr && before->step + 1 == image.step && before->end == image.begin &&
                         image.time >= before->time),
            "a step of a video without the one before");
    require(image.time <= image.begin, "a step of a video beyond its sample");
  }

  // Checks the images of one sample: they follow each other within its tokens, and their views within theirs.
  void require_images(const Dataset& dataset, int64_t sample) const {
    constexpr uint32_t kMostSide = uint32_t{1} << 24;  // patches
    const std::span<const DatasetImage> images = dataset.images(sample);
    uint64_t next = 0;
    const DatasetImage* before = nullptr;
    for (const DatasetImage& image : images) {
      require_step(dataset, before, image);
      before = &image;
      require(image.begin >= next && image.begin < image.end &&
                  image.end <= static_cast<uint64_t>(dataset.length(sample)) && image.width > 0 && image.height > 0,
              "an image beyond its sample");
      next = image.end;
    }
    next = 0;
    uint32_t last = 0;
    for (const DatasetView& view : dataset.views(sample)) {
      require(view.image < images.size() && view.image >= last && view.begin >= next &&
                  view.begin >= images[view.image].begin && view.tokens > 0 &&
                  uint64_t{view.begin} + view.tokens <= images[view.image].end && view.rows > 0 && view.columns > 0 &&
                  view.rows < kMostSide && view.columns < kMostSide,
              "a view beyond its image");
      last = view.image;
      next = uint64_t{view.begin} + view.tokens;
    }
  }

  File file_;
  const DataOptions& options_;
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
  uint64_t at_ = 0, left_;
};

uint64_t DatasetFile::bytes(const Dataset& dataset, const std::vector<DatasetNote>& notes, std::string_view key) {
  const DatasetImages& images = dataset.images_;
  return sizeof(DatasetHeader) + key.size() + bytes_of(notes) + dataset.ids_.size() * sizeof(int32_t) +
         (dataset.has_label_.size() + dataset.starts_.size() - 1 + dataset.file_ends_.size()) * sizeof(uint64_t) +
         dataset.seconds_.size() * sizeof(uint32_t) + dataset.values_.size() * sizeof(float) +
         dataset.other_labels_.size() * (sizeof(uint64_t) + sizeof(int32_t)) +
         dataset.weights_.size() * (sizeof(uint64_t) + sizeof(float)) +
         images.owners_.size() * sizeof(DatasetImages::Owner) + images.images_.size() * sizeof(DatasetImage) +
         images.views_.size() * sizeof(DatasetView) + images.text_.size() + sizeof(uint64_t);
}

void DatasetFile::write(const Dataset& dataset, const std::vector<DatasetNote>& notes, std::string_view key, File& file,
                        const Heartbeat& heartbeat) {
  Writer out(file, heartbeat);
  DatasetHeader header;
  header.key_bytes = key.size();
  header.notes = notes.size();
  header.notes_bytes = bytes_of(notes);
  header.kinds = (dataset.kinds_.conversations ? kConversations : 0) | (dataset.kinds_.texts ? kTexts : 0);
  header.tokens = dataset.ids_.size();
  header.samples = static_cast<uint64_t>(dataset.samples());
  header.files = dataset.file_ends_.size();
  header.other_labels = dataset.other_labels_.size();
  header.weights = dataset.weights_.size();
  header.seconds = dataset.seconds_.size();
  header.values = dataset.values_.size();
  const DatasetImages& images = dataset.images_;
  header.samples_with_images = images.owners_.size();
  header.images = images.images_.size();
  header.views = images.views_.size();
  header.image_text = images.text_.size();
  header.image_state = images.state();
  out.add_one(header);
  out.add(std::span(key));
  for (const DatasetNote& note : notes) {
    out.add_one(note.file);
    out.add_one(static_cast<uint64_t>(note.text.size()));
    out.add(std::span<const char>(note.text));
  }
  out.add(std::span(dataset.ids_));
  out.add(std::span(dataset.has_label_));
  out.add(std::span(dataset.starts_).subspan(1));
  out.add(std::span(dataset.file_ends_));
  out.add(std::span(dataset.seconds_));
  out.add(std::span(dataset.values_));
  out.add_column(dataset.other_labels_, &OtherLabel::first);
  out.add_column(dataset.other_labels_, &OtherLabel::second);
  out.add_column(dataset.weights_, &Weight::first);
  out.add_column(dataset.weights_, &Weight::second);
  out.add(std::span(images.owners_));
  out.add(std::span(images.images_));
  out.add(std::span(images.views_));
  out.add(std::span(images.text_));
  out.add_checksum();
}

std::optional<DatasetFile::Content> DatasetFile::read(const std::filesystem::path& path, std::string_view key,
                                                      const DataOptions& options) {
  return Reader(path, options).content(key);
}

}  // namespace snug
