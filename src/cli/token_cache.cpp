#include "cli/token_cache.h"

#include <sys/stat.h>

#include <algorithm>
#include <optional>

#include "base/disk.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/say.h"
#include "cli/cache.h"
#include "cli/launch.h"
#include "data/data_files.h"
#include "data/dataset_file.h"
#include "data/dataset_key.h"
#include "format/side_files.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRoomLock = "room.lock";

// Returns whether keeping saves time. Hashing must cost less than encoding, which takes kCheaper times as long for a
// byte, or longer on few threads. If only the first records of a file are read, about kRecord bytes are encoded for
// each, and all bytes are hashed.
bool is_worth_keeping(const DataOptions& data, uint64_t least) {
  constexpr uint64_t kRecord = 1024, kCheaper = 32;
  uint64_t bytes = 0;
  for (const fs::path& file : data.files) {
    if (!is_file(file)) return false;  // the reader says what it is
    bytes += fs::file_size(file);
  }
  uint64_t encoded = bytes;
  if (data.max_samples)
    encoded = std::min(bytes, static_cast<uint64_t>(*data.max_samples) * kRecord * data.files.size());
  return encoded >= least && bytes / kCheaper <= encoded;
}

// Returns sizes and times of files, which change if a process writes to them.
std::string state_of(const std::vector<fs::path>& files) {
  std::string text;
  for (const fs::path& file : files)
    text += fmt::format("{} {}\n", fs::file_size(file), fs::last_write_time(file).time_since_epoch().count());
  return text;
}

// Returns the number of the file that has the name; 0 for none. A file that takes its place has another number.
uint64_t number_of(const fs::path& file) {
  struct stat status {};
  return ::stat(file.c_str(), &status) == 0 ? status.st_ino : 0;
}

// Replaces the name of a file at the beginning of a line by its number: equal bytes may have another name next time.
DatasetNote without_name(const std::string& line, const std::vector<fs::path>& files) {
  DatasetNote note{-1, line};
  size_t longest = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name = files[i].string() + ":";
    if (name.size() > longest && line.starts_with(name)) {
      longest = name.size();
      note = {static_cast<int32_t>(i), line.substr(name.size() - 1)};
    }
  }
  return note;
}

// Takes one data set's entry from its key to its samples.
class Entry {
 public:
  // `state` is that of the data's files before they were hashed.
  Entry(const Options& options, const DataOptions& data, std::string key, std::string state, const fs::path& cache)
      : options_(options),
        data_(data),
        key_(std::move(key)),
        state_(std::move(state)),
        directory_(cache / "tokens"),
        path_(directory_ / hex(hash_of(key_))) {}

  // Returns the entry's samples, or those that `encode` makes, which are then kept.
  Dataset load(const std::function<Dataset(const DataOptions&)>& encode) {
    const uint64_t before = number_of(path_);
    if (!options_.overwrite)
      if (std::optional<Dataset> found = read()) return std::move(*found);
    const EncodingLock alone = wait();
    if (number_of(path_) != before)  // another process has just made it
      if (std::optional<Dataset> found = read()) return std::move(*found);
    std::vector<DatasetNote> notes;
    DataOptions noted = data_;
    noted.note = [&](const std::string& line) {
      notes.push_back(without_name(line, data_.files));
      note(line);
    };
    Dataset dataset = encode(noted);
    const std::string refused = alone.lock.holds() ? keep(dataset, notes) : alone.refused;
    if (!refused.empty())
      note(fmt::format("{}: its token ids are not kept for later runs: {}", names_of_files(data_.files), refused));
    return dataset;
  }

 private:
  void note(const std::string& line) const {
    if (data_.note) data_.note(line);
  }
  static void remove(const fs::path& file) {
    std::error_code ignored;
    fs::remove(file, ignored);
  }

  // The process that encodes holds it, of those that want one entry. Its lock's file is removed with it.
  struct EncodingLock {
    FileLock lock{};
    fs::path file{};
    std::string refused{};  // why there is no lock
    ~EncodingLock() {
      if (lock.holds()) remove(file);
    }
  };

  EncodingLock wait() const {
    const fs::path file = path_.string() + ".lock";
    try {
      return {.lock = FileLock::alone(file, kOtherCache, data_.heartbeat, [&] { say_waiting(); }), .file = file};
    } catch (const UserError& error) {
      return {.refused = error.what()};
    }
  }

  void say_waiting() const {
    if (is_first_process())
      say(fmt::format("{}: another process encodes the same data to {}: waits for it\n", names_of_files(data_.files),
                      path_.string()));
  }

  std::optional<Dataset> read() const {
    if (!is_file(path_)) return std::nullopt;
    std::optional<DatasetFile::Content> found;
    try {
      found = DatasetFile::read(path_, key_, data_);
    } catch (const CapacityError&) {
      throw;
    } catch (const std::runtime_error& error) {
      note(fmt::format("{}; the data is encoded anew", error.what()));
    }
    if (!found) return std::nullopt;
    std::error_code ignored;
    fs::last_write_time(path_, fs::file_time_type::clock::now(),
                        ignored);  // make_room() reads this time as that of the last use
    for (const DatasetNote& line : found->notes)
      note(line.file < 0 ? line.text : data_.files[static_cast<size_t>(line.file)].string() + line.text);
    note(fmt::format("{}: its {} token ids are those that an earlier run has kept in {}", names_of_files(data_.files),
                     found->dataset.tokens(), path_.string()));
    return std::move(found->dataset);
  }

  // Keeps a data set. Returns why not, if it is not kept.
  std::string keep(const Dataset& dataset, const std::vector<DatasetNote>& notes) const {
    try {
      if (state_ != state_of(data_.files)) return "a file of them changed while it was read";
      const uint64_t bytes = DatasetFile::bytes(dataset, notes, key_);
      const FileLock room = FileLock::alone(directory_ / kRoomLock, kOtherCache, data_.heartbeat);
      make_room(bytes);
      PendingFile pending(path_, IoMode::Buffered);
      DatasetFile::write(dataset, notes, key_, pending.file(), data_.heartbeat);
      pending.publish();
      note(fmt::format("{}: its {} token ids are kept for later runs in {} ({})", names_of_files(data_.files),
                       dataset.tokens(), path_.string(), format_size(bytes)));
      return "";
    } catch (const std::runtime_error& error) {  // from snug, or from the file system's library
      return error.what();
    }
  }

  // Removes entries, first those that were not used for longest, until `bytes` more bytes are within bounds. Throws
  // UserError if they cannot be. The caller holds the lock for room.
  void make_room(uint64_t bytes) const {
    struct Other {
      fs::file_time_type used;
      fs::path path;
      uint64_t bytes;
    };
    std::vector<Other> others;
    uint64_t held = 0, replaced = 0;
    for (const auto& entry : fs::directory_iterator(directory_)) {
      if (!entry.is_regular_file()) continue;
      if (entry.path().extension() == ".partial") remove(entry.path());  // from a process that was killed
      if (entry.path() == path_) replaced = entry.file_size();
      if (entry.path() == path_ || entry.path().has_extension()) continue;
      others.push_back({entry.last_write_time(), entry.path(), entry.file_size()});
      held += others.back().bytes;
    }
    constexpr uint64_t kShare = 4;
    const uint64_t share = (free_bytes(directory_) + held + replaced) / kShare;
    const uint64_t most = std::min(share, options_.disk_memory.value_or(share));
    if (bytes > most)
      user_error("they take {}, and {}", format_size(bytes),
                 most < share ? "--disk-memory allows " + format_size(most)
                              : fmt::format("{} may hold {}, a quarter of what is free", directory_.string(),
                                            format_size(most)));
    std::ranges::sort(others, {}, &Other::used);
    for (const Other& other : others) {
      if (held + bytes <= most) break;
      remove(other.path);
      held -= other.bytes;
    }
  }

  const Options& options_;
  const DataOptions& data_;
  const std::string key_, state_;
  const fs::path directory_, path_;
};

}  // namespace

std::string token_cache_key(const DataOptions& data, const TextEncoder& encoder, const fs::path& tokenizer) {
  // Another version may encode otherwise.
  std::string key = fmt::format("program {}\n", hex(file_checksum("/proc/self/exe", data.heartbeat, IoMode::Buffered)));
  for (const std::string& name : tokenizer_files(tokenizer))
    key += fmt::format("{} {}\n", name, hex(file_checksum(tokenizer / name, data.heartbeat, IoMode::Buffered)));
  key += dataset_key(data, encoder);
  for (const fs::path& file : data.files) {
    const DataFileType type = data_file_type(file);
    // Reads through the page cache, from which the files are then read again.
    key += fmt::format("file {} {} {} {}\n", static_cast<int>(type.kind), static_cast<int>(type.compression),
                       fs::file_size(file), hex(file_checksum(file, data.heartbeat, IoMode::Buffered)));
  }
  return key;
}

Dataset load_dataset_cached(const Options& options, const DataOptions& data, const TextEncoder* encoder,
                            const fs::path& tokenizer, uint64_t least) {
  if (!encoder || data.files.empty() || !is_worth_keeping(data, least)) return load_dataset(data, encoder);
  std::optional<Entry> entry;
  std::string refused;
  try {
    const fs::path cache = cache_directory(options, names_of_files(data.files) + ": is encoded by every run");
    std::string state = state_of(data.files);
    entry.emplace(options, data, token_cache_key(data, *encoder, tokenizer), std::move(state), cache);
  } catch (const std::runtime_error& error) {  // from snug, or from the file system's library
    refused = error.what();
  }
  if (entry) return entry->load([&](const DataOptions& noted) { return load_dataset(noted, encoder); });
  Dataset dataset = load_dataset(data, encoder);
  if (data.note) data.note(refused + "; no token ids are kept for later runs");
  return dataset;
}

}  // namespace snug
