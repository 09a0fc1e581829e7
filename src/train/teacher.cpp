#include "train/teacher.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "base/hash.h"

namespace snug {
namespace {

struct Header {
  static constexpr uint64_t kMagic = 0x0a'68'63'74'67'75'6e'73;  // "snugtch\n"
  static constexpr uint64_t kFormat = 1;                         // a file with another number is another program's
  uint64_t magic = kMagic, format = kFormat, key = 0, top_k = 0, documents = 0, rows = 0;
  bool operator==(const Header&) const = default;
};

uint64_t row_bytes(int64_t top_k) {
  return static_cast<uint64_t>(top_k) * sizeof(int32_t) + static_cast<uint64_t>(top_k + 1) * sizeof(float);
}

uint64_t checksum_of(std::span<const int32_t> ids, std::span<const float> log_probs) {
  return std::max<uint64_t>(1, hash_of(log_probs, hash_of(ids)));
}

// Returns the header that a file has, unless it is too short for one.
std::optional<Header> header_of(const File& file) {
  Header header;
  if (file.size() < sizeof(header)) return std::nullopt;
  file.read(0, std::as_writable_bytes(std::span(&header, 1)));
  return header;
}

Header expected_header(std::string_view key, int64_t top_k, std::span<const TaughtDocuments> taught) {
  Header header;
  header.key = hash_of(key);
  header.top_k = static_cast<uint64_t>(top_k);
  for (const TaughtDocuments& of : taught) {
    header.documents += of.documents.size();
    for (const DocumentSpan& document : of.documents)
      header.rows += static_cast<uint64_t>(counted_labels(of.dataset, document));
  }
  return header;
}

uint64_t bytes_of(const Header& header) {
  return teacher_file_bytes(static_cast<int64_t>(header.documents), static_cast<int64_t>(header.rows),
                            static_cast<int64_t>(header.top_k));
}

[[noreturn]] void refuse(const std::filesystem::path& path, std::string_view found) {
  user_error(
      "{}: found {}, expected what a teacher says of this run's data: it is damaged; delete it, and the teacher "
      "is asked anew",
      path.string(), found);
}

void require_same(const File& file, const Header& expected) {
  if (header_of(file) != expected) refuse(file.path(), "another header");
  if (file.size() != bytes_of(expected))
    refuse(file.path(), fmt::format("{} bytes instead of {}", file.size(), bytes_of(expected)));
}

}  // namespace

uint64_t teacher_file_bytes(int64_t documents, int64_t loss_tokens, int64_t top_k) {
  return sizeof(Header) + static_cast<uint64_t>(documents) * sizeof(uint64_t) +
         static_cast<uint64_t>(loss_tokens) * row_bytes(top_k);
}

void TeacherFile::prepare(const std::filesystem::path& path, std::string_view key, int64_t top_k,
                          std::span<const TaughtDocuments> taught, const Heartbeat& heartbeat) {
  const Header header = expected_header(key, top_k, taught);
  if (is_file(path)) return require_same(File::open_read(path, IoMode::Buffered), header);
  std::filesystem::create_directories(path.parent_path());
  PendingFile pending(path, IoMode::Buffered);
  pending.file().allocate(bytes_of(header), heartbeat);  // zeros: nothing is known
  pending.file().write(0, std::as_bytes(std::span(&header, 1)));
  pending.publish();
}

TeacherFile::TeacherFile(const std::filesystem::path& path, std::string_view key, int64_t top_k,
                         std::span<const TaughtDocuments> taught)
    : file_(File::open_write(path, IoMode::Buffered)), top_k_(top_k), places_(places_of(taught)) {
  require_same(file_, expected_header(key, top_k, taught));
  checksums_.resize(places_.size());
  file_.read(sizeof(Header), std::as_writable_bytes(std::span(checksums_)));
}

bool TeacherFile::Place::operator<(const Place& other) const {
  const auto order = [](const Place& p) { return std::tuple(p.dataset, p.document.sample, p.document.begin); };
  return order(*this) < order(other);
}

std::vector<TeacherFile::Place> TeacherFile::places_of(std::span<const TaughtDocuments> taught) {
  std::vector<Place> places;
  int64_t row = 0;
  for (const TaughtDocuments& of : taught)
    for (const DocumentSpan& document : of.documents) {
      const int64_t rows = counted_labels(of.dataset, document);
      places.push_back({&of.dataset, document, std::ssize(places), row, rows});
      row += rows;
    }
  std::ranges::sort(places, std::less<>());
  return places;
}

const TeacherFile::Place& TeacherFile::place_of(const Dataset& dataset, const DocumentSpan& document) const {
  Place sought;
  sought.dataset = &dataset;
  sought.document = document;
  const auto found = std::ranges::lower_bound(places_, sought, std::less<>());
  check(found != places_.end() && found->dataset == &dataset && found->document == document,
        "a teacher was not asked of tokens {} to {} of sample {}", document.begin, document.begin + document.length,
        document.sample);
  return *found;
}

uint64_t TeacherFile::offset_of_rows(const Place& place) const {
  return teacher_file_bytes(documents(), place.first_row, top_k_);
}

bool TeacherFile::knew(const Dataset& dataset, const DocumentSpan& document) const {
  return checksums_[static_cast<size_t>(place_of(dataset, document).number)] != 0;
}

int64_t TeacherFile::known() const { return documents() - std::ranges::count(checksums_, uint64_t{0}); }

uint64_t TeacherFile::hash_of_known() const { return hash_of(std::span<const uint64_t>(checksums_)); }

void TeacherFile::write(const Dataset& dataset, const DocumentSpan& document, std::span<const int32_t> ids,
                        std::span<const float> log_probs) {
  const Place& place = place_of(dataset, document);
  check(std::ssize(ids) == place.rows * top_k_ && std::ssize(log_probs) == place.rows * (top_k_ + 1),
        "{} tokens of a teacher and {} log-probabilities for {} rows of {}", ids.size(), log_probs.size(), place.rows,
        top_k_);
  const uint64_t offset = offset_of_rows(place), sum = checksum_of(ids, log_probs);
  file_.write(offset, std::as_bytes(ids));
  file_.write(offset + ids.size_bytes(), std::as_bytes(log_probs));
  file_.write(sizeof(Header) + static_cast<uint64_t>(place.number) * sizeof(sum), std::as_bytes(std::span(&sum, 1)));
}

void TeacherFile::read(const Dataset& dataset, const DocumentSpan& document, std::span<int32_t> ids,
                       std::span<float> log_probs, int64_t vocabulary) const {
  const Place& place = place_of(dataset, document);
  check(std::ssize(ids) == place.rows * top_k_ && std::ssize(log_probs) == place.rows * (top_k_ + 1),
        "room for {} tokens of a teacher and {} log-probabilities of {} rows of {}", ids.size(), log_probs.size(),
        place.rows, top_k_);
  const uint64_t offset = offset_of_rows(place);
  uint64_t sum = 0;
  file_.read(sizeof(Header) + static_cast<uint64_t>(place.number) * sizeof(sum),
             std::as_writable_bytes(std::span(&sum, 1)));
  file_.read(offset, std::as_writable_bytes(ids));
  file_.read(offset + ids.size_bytes(), std::as_writable_bytes(log_probs));
  if (sum != checksum_of(ids, log_probs)) refuse(file_.path(), "rows of another checksum");
  if (std::ranges::any_of(ids, [=](int32_t id) { return id < 0 || id >= vocabulary; }))
    refuse(file_.path(), fmt::format("a token outside [0, {})", vocabulary));
}

}  // namespace snug
