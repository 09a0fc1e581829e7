#include "format/torch_file.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "format/pickle.h"

namespace snug {
namespace {

constexpr uint64_t kMaxPickleBytes = 64u << 20;
constexpr uint64_t kMaxDirectoryBytes = 256u << 20;
// This is the magic number of files from before torch 1.6, as an opcode (LONG1 of 10 bytes) and its value.
constexpr std::string_view kMagic("\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 10);

std::string read_range(const ReadAt& read, uint64_t offset, uint64_t bytes) {
  std::string text(bytes, '\0');
  read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

// Returns a value at an offset of a text that is long enough.
template <class T>
T value_at(std::string_view text, size_t offset) {
  return load<T>(std::as_bytes(std::span(text)).data() + offset);
}

// Says where the storages' bytes are, by key.
struct Range {
  uint64_t offset = 0, bytes = 0;
};

uint64_t element_bytes_of(std::string_view type) { return find_stored_type(type)->bits / 8; }

// Returns a tensor's place in the file; `storage` holds what the pickle says that it does.
SafetensorsEntry place(const std::string& name, const PickledTensor& tensor, const Range& storage,
                       std::string_view source) {
  SafetensorsEntry entry{
      .name = name, .dtype_name = tensor.type, .dtype = find_stored_type(tensor.type)->dtype, .shape = tensor.shape};
  const uint64_t size = element_bytes_of(tensor.type);
  uint64_t bytes = size, begin = 0, stored = 0, end = 0;
  bool overflows = __builtin_mul_overflow(tensor.offset, size, &begin) ||
                   __builtin_mul_overflow(tensor.storage_elements, element_bytes_of(tensor.storage_type), &stored);
  for (const int64_t dimension : tensor.shape)
    overflows |= __builtin_mul_overflow(bytes, static_cast<uint64_t>(dimension), &bytes);
  overflows |= __builtin_add_overflow(begin, bytes, &end);
  if (overflows || stored > storage.bytes)
    user_error("{}, tensor '{}': found a storage of {} bytes, expected {} elements of {}", source, name, storage.bytes,
               tensor.storage_elements, tensor.storage_type);
  if (end > stored)
    user_error("{}, tensor '{}': found {} [{}] at element {}, expected it within its storage of {} bytes", source, name,
               tensor.type, fmt::join(tensor.shape, ", "), tensor.offset, stored);
  entry.offset = storage.offset + begin;
  entry.bytes = bytes;
  return entry;
}

// ---- Zip ------------------------------------------------------------------------------------------------------------

struct ZipEntry {
  uint64_t header = 0, bytes = 0;  // offset of its local header; size of its data
};

class ZipArchive {
 public:
  ZipArchive(const ReadAt& read, uint64_t file_bytes, std::string_view source)
      : read_(read), file_bytes_(file_bytes), source_(source) {
    read_directory();
  }

  const std::map<std::string, ZipEntry, std::less<>>& entries() const { return entries_; }

  // Returns where an entry's data lie: behind its local header, which has lengths of its own.
  Range range_of(std::string_view name, const ZipEntry& entry) const {
    constexpr uint64_t kLocalBytes = 30;
    if (entry.header > directory_ || directory_ - entry.header < kLocalBytes) fail(name, "a header beyond the archive");
    const std::string local = read_range(read_, entry.header, kLocalBytes);
    if (value_at<uint32_t>(local, 0) != 0x04034b50) fail(name, "no header where its directory says");
    const uint64_t begin = entry.header + kLocalBytes + value_at<uint16_t>(local, 26) + value_at<uint16_t>(local, 28);
    if (begin > directory_ || entry.bytes > directory_ - begin) fail(name, "data beyond the archive");
    return {begin, entry.bytes};
  }

 private:
  [[noreturn]] void fail(std::string_view entry, std::string_view found) const {
    user_error("{}, zip entry '{}': found {}: a damaged file, or one cut short", source_, entry, found);
  }

  void read_directory() {
    constexpr uint64_t kEndBytes = 22, kMaxComment = 65535;
    const uint64_t tail_bytes = std::min(file_bytes_, kEndBytes + kMaxComment), tail_begin = file_bytes_ - tail_bytes;
    const std::string tail = read_range(read_, tail_begin, tail_bytes);
    const size_t end = tail.size() < kEndBytes ? tail.npos : tail.rfind("PK\x05\x06", tail.size() - kEndBytes);
    if (end == tail.npos)
      user_error("{}: found no end of its zip archive in {} bytes: a damaged file, or one cut short", source_,
                 file_bytes_);
    uint64_t count = value_at<uint16_t>(tail, end + 10), bytes = value_at<uint32_t>(tail, end + 12);
    directory_ = value_at<uint32_t>(tail, end + 16);
    if (count == 0xffff || bytes == 0xffffffff || directory_ == 0xffffffff)
      read_zip64_end(tail_begin + end, count, bytes);
    if (bytes > kMaxDirectoryBytes || directory_ > file_bytes_ || bytes > file_bytes_ - directory_)
      fail("", fmt::format("a directory of {} bytes at {}", bytes, directory_));
    const std::string directory = read_range(read_, directory_, bytes);
    size_t at = 0;
    for (uint64_t i = 0; i < count; i++) at = read_entry(directory, at);
  }

  // Reads the 64-bit end. Its locator stands just before the end that has no room for 64 bits.
  void read_zip64_end(uint64_t end, uint64_t& count, uint64_t& bytes) {
    constexpr uint64_t kLocatorBytes = 20, kEndBytes = 56;
    const std::string locator = end < kLocatorBytes ? "" : read_range(read_, end - kLocatorBytes, kLocatorBytes);
    if (locator.empty() || value_at<uint32_t>(locator, 0) != 0x07064b50) return;  // as large as it says
    const auto begin = value_at<uint64_t>(locator, 8);
    if (begin > file_bytes_ || file_bytes_ - begin < kEndBytes) fail("", "an end beyond the archive");
    const std::string record = read_range(read_, begin, kEndBytes);
    if (value_at<uint32_t>(record, 0) != 0x06064b50) fail("", "no end where its locator says");
    count = value_at<uint64_t>(record, 32);
    bytes = value_at<uint64_t>(record, 40);
    directory_ = value_at<uint64_t>(record, 48);
  }

  // Reads an entry, and returns where the next one begins.
  size_t read_entry(std::string_view directory, size_t at) {
    constexpr size_t kEntryBytes = 46;
    if (directory.size() - at < kEntryBytes || value_at<uint32_t>(directory, at) != 0x02014b50)
      fail("", "fewer entries than its directory counts");
    const auto flags = value_at<uint16_t>(directory, at + 8), method = value_at<uint16_t>(directory, at + 10);
    const size_t name_bytes = value_at<uint16_t>(directory, at + 28),
                 extra_bytes = value_at<uint16_t>(directory, at + 30),
                 comment_bytes = value_at<uint16_t>(directory, at + 32);
    if (directory.size() - at - kEntryBytes < name_bytes + extra_bytes + comment_bytes) fail("", "half an entry");
    const std::string_view name = directory.substr(at + kEntryBytes, name_bytes);
    uint64_t packed = value_at<uint32_t>(directory, at + 20);
    ZipEntry entry{value_at<uint32_t>(directory, at + 42), value_at<uint32_t>(directory, at + 24)};
    read_extra(name, directory.substr(at + kEntryBytes + name_bytes, extra_bytes), entry, packed);
    if (flags & 1) fail(name, "encryption");
    if (method != 0)
      user_error("{}, zip entry '{}': found compression method {}, expected 0: stored as it is, as torch.save does",
                 source_, name, method);
    if (packed != entry.bytes)
      user_error("{}, zip entry '{}': found {} stored bytes of {}, expected as many", source_, name, packed,
                 entry.bytes);
    entries_.emplace(name, entry);
    return at + kEntryBytes + name_bytes + extra_bytes + comment_bytes;
  }

  // Reads sizes of 64 bits, if those of 32 are full.
  void read_extra(std::string_view name, std::string_view extra, ZipEntry& entry, uint64_t& packed) const {
    while (extra.size() >= 4) {
      const auto kind = value_at<uint16_t>(extra, 0), bytes = value_at<uint16_t>(extra, 2);
      if (bytes > extra.size() - 4) fail(name, "half an extra field");
      std::string_view field = extra.substr(4, bytes);
      extra.remove_prefix(4u + bytes);
      if (kind != 1) continue;
      for (uint64_t* const value : {&entry.bytes, &packed, &entry.header}) {
        if (*value != 0xffffffff) continue;
        if (field.size() < 8) fail(name, "half a size of 64 bits");
        *value = value_at<uint64_t>(field, 0);
        field.remove_prefix(8);
      }
    }
  }

  const ReadAt& read_;
  uint64_t file_bytes_;
  std::string_view source_;
  uint64_t directory_ = 0;  // offset of the directory; the data lie before it
  std::map<std::string, ZipEntry, std::less<>> entries_;
};

std::vector<SafetensorsEntry> parse_zip(const ReadAt& read, uint64_t file_bytes, std::string_view source) {
  constexpr std::string_view kPickle = "/data.pkl";
  const ZipArchive archive(read, file_bytes, source);
  const auto pickle =
      std::ranges::find_if(archive.entries(), [&](const auto& e) { return e.first.ends_with(kPickle); });
  if (pickle == archive.entries().end())
    user_error("{}: found a zip archive without data.pkl, expected one that torch.save wrote", source);
  const std::string top = pickle->first.substr(0, pickle->first.size() - kPickle.size());
  if (const auto order = archive.entries().find(top + "/byteorder"); order != archive.entries().end()) {
    const Range range = archive.range_of(order->first, order->second);
    if (range.bytes != 6 || read_range(read, range.offset, range.bytes) != "little")
      user_error("{}, '{}': found another order of bytes than 'little', expected that", source, order->first);
  }
  const Range range = archive.range_of(pickle->first, pickle->second);
  if (range.bytes > kMaxPickleBytes)
    user_error("{}, '{}': found {} bytes, expected at most {}", source, pickle->first, range.bytes, kMaxPickleBytes);
  const std::string bytes = read_range(read, range.offset, range.bytes);
  size_t at = 0;
  const Pickled pickled = read_pickle(bytes, at, source);
  if (pickled.kind != Pickled::Kind::Tensors)
    user_error("{}, '{}': found no dictionary, expected one of tensors", source, pickle->first);
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : pickled.tensors) {
    const auto storage = archive.entries().find(fmt::format("{}/data/{}", top, tensor.storage));
    if (storage == archive.entries().end())
      user_error("{}, tensor '{}': its storage '{}/data/{}' is missing", source, name, top, tensor.storage);
    entries.push_back(place(name, tensor, archive.range_of(storage->first, storage->second), source));
  }
  return entries;
}

// ---- Before torch 1.6 -----------------------------------------------------------------------------------------------

std::vector<SafetensorsEntry> parse_legacy(const ReadAt& read, uint64_t file_bytes, std::string_view source) {
  const std::string head = read_range(read, 0, std::min(file_bytes, kMaxPickleBytes));
  size_t at = 0;
  const auto next = [&] { return read_pickle(head, at, source); };
  next();  // the magic number, which is_torch_file() has seen
  next();  // 1001, the version
  if (next().big_endian) user_error("{}: found values of a big-endian machine, expected little-endian", source);
  const Pickled pickled = next(), keys = next();
  if (pickled.kind != Pickled::Kind::Tensors || keys.kind != Pickled::Kind::Texts)
    user_error("{}: found other pickles than a dictionary of tensors and the keys of their storages", source);
  std::map<std::string_view, uint64_t> element_bytes;
  for (const auto& [name, tensor] : pickled.tensors)
    element_bytes[tensor.storage] = element_bytes_of(tensor.storage_type);
  std::map<std::string_view, Range> storages;
  uint64_t begin = at;
  for (const std::string& key : keys.texts) {
    const auto size = element_bytes.find(key);
    uint64_t bytes = 0;
    if (file_bytes - begin < sizeof(uint64_t) || size == element_bytes.end() ||
        __builtin_mul_overflow(value_at<uint64_t>(read_range(read, begin, sizeof(uint64_t)), 0), size->second,
                               &bytes) ||
        bytes > file_bytes - begin - sizeof(uint64_t))
      user_error("{}: storage '{}' at byte {} is cut short, or belongs to no tensor", source, key, begin);
    begin += sizeof(uint64_t);
    storages[key] = {begin, bytes};
    begin += bytes;
  }
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : pickled.tensors) {
    const auto storage = storages.find(tensor.storage);
    if (storage == storages.end())
      user_error("{}, tensor '{}': its storage '{}' is missing", source, name, tensor.storage);
    entries.push_back(place(name, tensor, storage->second, source));
  }
  return entries;
}

// Returns whether a file begins with \x80 PROTO, then \x8a LONG1 of the magic number.
bool is_legacy(std::string_view head) {
  return head.size() >= 4 + kMagic.size() && head[0] == '\x80' && head[2] == '\x8a' && head[3] == '\x0a' &&
         head.substr(4, kMagic.size()) == kMagic;
}

bool is_zip(std::string_view head) {
  // These eight bytes may also be the length of a safetensors header, after which comes '{'.
  return head.starts_with("PK\x03\x04") && !(head.size() > 8 && head[8] == '{');
}

}  // namespace

bool is_torch_file(std::string_view head) { return is_zip(head) || is_legacy(head); }

std::vector<SafetensorsEntry> parse_torch_file(const ReadAt& read, uint64_t file_bytes, std::string_view source) {
  const std::string head = read_range(read, 0, std::min<uint64_t>(file_bytes, kTorchFileHead));
  if (is_zip(head)) return parse_zip(read, file_bytes, source);
  if (is_legacy(head)) return parse_legacy(read, file_bytes, source);
  user_error("{}: found neither a zip archive nor torch's older format, expected a file that torch.save wrote", source);
}

}  // namespace snug
