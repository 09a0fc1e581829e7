#include "api/token_cache.h"

#include <sys/stat.h>

#include <algorithm>
#include <optional>

#include "api/cache.h"
#include "api/launch.h"
#include "base/disk.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/option_name.h"
#include "base/say.h"
#include "base/size_text.h"
#include "data/data_files.h"
#include "data/dataset_file.h"
#include "data/dataset_key.h"
#include "format/side_files.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRoomLock = "room.lock";
constexpr uint64_t kShare = 4;  // a quarter

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
  Entry(const JobConfig& options, const DataOptions& data, std::string key, std::string state, const fs::path& cache)
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
      if (std::optional<Dataset> found = used()) return std::move(*found);
    const EncodingLock alone = wait();
    if (number_of(path_) != before)  // another process has just made it
      if (std::optional<Dataset> found = used()) return std::move(*found);
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

  // Returns what all entries take.
  uint64_t bytes() const { return held().bytes; }

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
      return {.lock = FileLock::alone(file, other_cache(), data_.heartbeat, [&] { say_waiting(); }), .file = file};
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

  // Reads the entry. Others may have been made where more was allowed.
  std::optional<Dataset> used() const {
    std::optional<Dataset> found = read();
    if (!found || !options_.disk_memory) return found;
    try {
      const FileLock room = FileLock::alone(directory_ / kRoomLock, other_cache(), data_.heartbeat);
      remove_others(fs::file_size(path_), most_bytes());
    } catch (const std::runtime_error& error) {  // from snug, or from the file system's library
      note(fmt::format("{}: entries of other data stay, beyond {}: {}", directory_.string(), option_name("disk_memory"),
                       error.what()));
    }
    return found;
  }

  // Keeps a data set. Returns why not, if it is not kept.
  std::string keep(const Dataset& dataset, const std::vector<DatasetNote>& notes) const {
    try {
      if (state_ != state_of(data_.files)) return "a file of them changed while it was read";
      const uint64_t bytes = DatasetFile::bytes(dataset, notes, key_);
      const FileLock room = FileLock::alone(directory_ / kRoomLock, other_cache(), data_.heartbeat);
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

  struct Other {
    fs::file_time_type used;
    fs::path path;
    uint64_t bytes;
  };
  struct Held {
    uint64_t bytes = 0;         // with the entry itself
    std::vector<Other> others;  // those that were not used for longest first
  };
  Held held() const {
    Held held;
    std::error_code gone;  // processes remove entries at any time
    for (const auto& entry : fs::directory_iterator(directory_, gone)) {
      if (entry.path() != path_ && entry.path().has_extension()) continue;
      const uint64_t bytes = entry.is_regular_file(gone) ? entry.file_size(gone) : 0;
      const fs::file_time_type used = gone ? fs::file_time_type() : entry.last_write_time(gone);
      if (gone || bytes == 0) continue;
      held.bytes += bytes;
      if (entry.path() != path_) held.others.push_back({used, entry.path(), bytes});
    }
    std::ranges::sort(held.others, {}, &Other::used);
    return held;
  }

  // Returns what entries may take together.
  uint64_t most_bytes() const {
    const uint64_t share = (free_bytes(directory_) + held().bytes) / kShare;
    return options_.disk_memory ? std::min(share, *options_.disk_memory / kShare) : share;
  }

  // Removes other entries until `bytes` more are within `most`, or none is left. The caller holds the lock for room.
  void remove_others(uint64_t bytes, uint64_t most) const {
    const Held now = held();
    for (const Other& other : now.others) bytes += other.bytes;
    for (const Other& other : now.others) {
      if (bytes <= most) break;
      remove(other.path);
      bytes -= other.bytes;
    }
  }

  // Makes room for an entry of so many bytes. Throws UserError if there is none. The caller holds the lock for room.
  void make_room(uint64_t bytes) const {
    for (const auto& entry : fs::directory_iterator(directory_))
      if (entry.path().extension() == ".partial") remove(entry.path());  // from a process that was killed
    const uint64_t most = most_bytes();
    if (bytes > most)
      user_error(
          "they take {}, and {}", format_size(bytes),
          options_.disk_memory && most == *options_.disk_memory / kShare
              ? fmt::format("a quarter of {} is {}", option_name("disk_memory"), format_size(most))
              : fmt::format("{} may hold {}, a quarter of what is free", directory_.string(), format_size(most)));
    remove_others(bytes, most);
  }

  const JobConfig& options_;
  const DataOptions& data_;
  const std::string key_, state_;
  const fs::path directory_, path_;
};

std::string written_tokens(const JobConfig& options) {
  std::string text;
  for (const AddedToken& token : options.found.new_tokens)
    text += fmt::format("token {} {} {}\n", token.id, token.special, token.content);
  return text;
}

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

CachedDataset load_dataset_cached(const JobConfig& options, const DataOptions& data, const TextEncoder* encoder,
                                  const fs::path& tokenizer, uint64_t least) {
  if (!encoder || data.files.empty() || !is_worth_keeping(data, least)) return {load_dataset(data, encoder)};
  std::optional<Entry> entry;
  std::string refused;
  try {
    const fs::path cache = cache_directory(options, names_of_files(data.files) + ": is encoded by every run");
    std::string state = state_of(data.files);
    entry.emplace(options, data, token_cache_key(data, *encoder, tokenizer) + written_tokens(options), std::move(state),
                  cache);
  } catch (const std::runtime_error& error) {  // from snug, or from the file system's library
    refused = error.what();
  }
  if (entry) {
    Dataset dataset = entry->load([&](const DataOptions& noted) { return load_dataset(noted, encoder); });
    return {std::move(dataset), entry->bytes()};
  }
  CachedDataset loaded{load_dataset(data, encoder)};
  if (data.note) data.note(refused + "; no token ids are kept for later runs");
  return loaded;
}

}  // namespace snug
