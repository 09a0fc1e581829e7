#include "train/references.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"

namespace snug {
namespace {

struct Header {
  static constexpr uint64_t kMagic = 0x0a'66'65'72'67'75'6e'73;  // "snugref\n"
  static constexpr uint64_t kFormat = 1;                         // a file with another number is another program's
  uint64_t magic = kMagic, format = kFormat, key = 0, entries = 0;
};

struct Entry {
  uint64_t hash = 0;
  double log_probability = 0;
};

template <class T>
std::string_view bytes_of(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

// Returns the entries of a file; nothing if it is of another key or program.
std::vector<Entry> entries_of(const std::filesystem::path& path, std::string_view key) {
  const auto require = [&](bool holds, std::string_view found) {
    if (!holds)
      user_error("{}: found {}, expected the references of a run: it is damaged; delete it, and they are computed anew",
                 path.string(), found);
  };
  const File file = File::open_read(path, IoMode::Buffered);
  const uint64_t size = file.size();
  Header header;
  require(size >= sizeof(header) + sizeof(uint64_t), "fewer bytes than a header has");
  file.read(0, std::as_writable_bytes(std::span(&header, 1)));
  require(header.magic == Header::kMagic, "no header");
  if (header.format != Header::kFormat || header.key != hash_of(key)) return {};
  const uint64_t left = size - sizeof(header) - sizeof(uint64_t);
  require(left % sizeof(Entry) == 0 && header.entries == left / sizeof(Entry), "other sizes than its header says");
  std::vector<Entry> entries(header.entries);
  file.read(sizeof(header), std::as_writable_bytes(std::span(entries)));
  uint64_t sum = 0;
  file.read(size - sizeof(sum), std::as_writable_bytes(std::span(&sum, 1)));
  require(sum == hash_of(std::span<const Entry>(entries), hash_of(std::span<const Header>(&header, 1))),
          "another checksum");
  for (size_t i = 0; i < entries.size(); i++)
    require(std::isfinite(entries[i].log_probability) && (i == 0 || entries[i - 1].hash < entries[i].hash),
            "entries out of order, or without a value");
  return entries;
}

}  // namespace

uint64_t hash_of_reply(const Dataset& dataset, const DocumentSpan& span) {
  std::vector<int32_t> labels(span.length);
  dataset.labels(span.sample, span.begin, labels);
  labels[0] = kNoLabel;
  return hash_of(std::span<const int32_t>(labels), hash_of(dataset.ids(span.sample).subspan(span.begin, span.length)));
}

void read_references(const std::filesystem::path& path, std::string_view key, std::span<const Referenced> all) {
  if (!is_file(path)) return;
  const std::vector<Entry> entries = entries_of(path, key);
  for (const Referenced& of : all)
    for (const DocumentSpan& span : of.documents) {
      const uint64_t hash = hash_of_reply(of.dataset, span);
      const auto found = std::ranges::lower_bound(entries, hash, {}, &Entry::hash);
      if (found != entries.end() && found->hash == hash)
        of.references.set(span.sample, half_of(of.dataset, span), found->log_probability);
    }
}

void write_references(const std::filesystem::path& path, std::string_view key, std::span<const Referenced> all) {
  std::map<uint64_t, double> by_hash;
  if (is_file(path)) try {  // what other runs have put there stays; what is damaged is replaced
      for (const Entry& entry : entries_of(path, key)) by_hash[entry.hash] = entry.log_probability;
    } catch (const UserError&) {
      by_hash.clear();
    }
  for (const Referenced& of : all)
    for (const DocumentSpan& span : of.documents)
      if (of.references.knows(span.sample))
        by_hash[hash_of_reply(of.dataset, span)] = of.references.of(span.sample)[half_of(of.dataset, span)];
  std::vector<Entry> entries;
  for (const auto& [hash, log_probability] : by_hash) entries.push_back({hash, log_probability});
  Header header;
  header.key = hash_of(key);
  header.entries = entries.size();
  const uint64_t sum = hash_of(std::span<const Entry>(entries), hash_of(std::span<const Header>(&header, 1)));
  std::string bytes(bytes_of(std::span<const Header>(&header, 1)));
  bytes += bytes_of(std::span<const Entry>(entries));
  bytes += bytes_of(std::span<const uint64_t>(&sum, 1));
  std::filesystem::create_directories(path.parent_path());
  write_text(path, bytes);
}

}  // namespace snug
