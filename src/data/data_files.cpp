#include "data/data_files.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <utility>

#include "base/ascii.h"
#include "base/error.h"
#include "base/file.h"
#include "base/looked_at.h"
#include "base/option_name.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEndings =
    ".json, .jsonl, .csv, .parquet or .txt (.gz or .zst may follow, but for .parquet)";

constexpr std::array<std::pair<std::string_view, FileKind>, 5> kKinds = {{{".json", FileKind::Json},
                                                                          {".jsonl", FileKind::JsonLines},
                                                                          {".csv", FileKind::Csv},
                                                                          {".parquet", FileKind::Parquet},
                                                                          {".txt", FileKind::Text}}};

// Says what to do with files of other endings.
constexpr std::array<std::pair<std::string_view, std::string_view>, 16> kAdvice = {
    {{".arrow", "an Arrow file: write the data set with to_parquet() or to_json() of the datasets library"},
     {".feather", "an Arrow file: write it with to_parquet() of pandas"},
     {".xlsx", "a spreadsheet: save it as CSV in UTF-8"},
     {".xls", "a spreadsheet: save it as CSV in UTF-8"},
     {".ods", "a spreadsheet: save it as CSV in UTF-8"},
     {".tsv", "cells between tabs: write it with commas, as .csv"},
     {".ndjson", "JSON lines: name it .jsonl"},
     {".jsonlines", "JSON lines: name it .jsonl"},
     {".md", "text: name it .txt"},
     {".bz2", "compressed by bzip2: unpack it with bunzip2"},
     {".xz", "compressed by xz: unpack it with unxz"},
     {".lz4", "compressed by lz4: unpack it with unlz4"},
     {".zstd", "compressed by zstd: name it .zst"},
     {".tar", "an archive: unpack it, and name the files or their directory"},
     {".tgz", "an archive: unpack it, and name the files or their directory"},
     {".zip", "an archive: unpack it, and name the files or their directory"}}};

// Names files that lie beside data and describe it.
constexpr std::array<std::string_view, 4> kDescriptions = {"dataset_info.json", "dataset_infos.json",
                                                           "dataset_dict.json", "state.json"};

// Returns "a, b, c and 4 more".
std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  if (names.size() <= kShown) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{} and {} more", fmt::join(names.begin(), names.begin() + kShown, ", "), names.size() - kShown);
}

bool is_description(const fs::path& path) {
  const std::string name = path.filename().string();
  return std::find(kDescriptions.begin(), kDescriptions.end(), name) != kDescriptions.end();
}

// Holds names in a directory and below it, relative to it.
struct Names {
  std::vector<fs::path> seen, hidden;
};

// Lists the files. Everything in hidden directories is hidden, and not named.
Names files_below(const fs::path& directory) {
  std::vector<fs::path> found, passed;
  std::error_code error;
  for (auto it = fs::recursive_directory_iterator(directory, error); !error && it != fs::end(it); it.increment(error)) {
    const bool hidden = it->path().filename().string().starts_with('.');
    std::error_code unseen;
    if (hidden && it->is_directory(unseen)) it.disable_recursion_pending();
    // Links to directories are not followed, and so are named with what is passed over.
    if (!it->is_directory(unseen) || it->is_symlink(unseen))
      (hidden ? passed : found).push_back(it->path().lexically_relative(directory));
  }
  if (error) user_error("{}: the directory cannot be read: {}", directory.string(), error.message());
  std::sort(found.begin(), found.end());
  std::sort(passed.begin(), passed.end());
  return {std::move(found), std::move(passed)};
}

// Returns why a file of a directory is no data though its name says so; empty if it is. A file that is named by itself
// is refused for that reason.
std::string what_is_wrong(const fs::path& file) {
  std::error_code error;
  if (fs::is_symlink(file, error) && !fs::exists(file, error)) return "a link to nothing";
  if (fs::is_regular_file(file, error) && fs::file_size(file, error) == 0) return "an empty file";
  return "";
}

void add_directory(const fs::path& directory, DataFiles& out) {
  std::vector<std::string> data, others;
  bool arrow = false, described = false;
  const auto [seen, hidden] = files_below(directory);
  for (const fs::path& file : seen) {
    arrow = arrow || file.extension() == ".arrow";
    described = described || file.filename() == "state.json" || file.filename() == "dataset_dict.json";
    const auto type = find_data_file_type(file);
    const std::string wrong = type ? what_is_wrong(directory / file) : "";
    if (!wrong.empty())
      others.push_back(fmt::format("{} ({})", file.string(), wrong));
    else
      (type && !is_description(file) ? data : others).push_back(file.string());
  }
  // Of hidden names only those that would be data count: others are the system's, or an editor's.
  for (const fs::path& file : hidden)
    if (find_data_file_type(file)) others.push_back(fmt::format("{} (hidden)", file.string()));
  if (arrow && described) {
    user_error(
        "{}: found a data set written by save_to_disk() of the datasets library, expected files that end in {}; write "
        "it with to_parquet() or to_json()",
        directory.string(), kEndings);
  }
  if (data.empty()) {
    user_error("{}: found {}, expected files that end in {}", directory.string(),
               others.empty() ? "a directory without files" : "a directory with " + listed(others), kEndings);
  }
  for (const std::string& file : data) out.files.push_back(directory / file);
  out.notes.push_back(fmt::format("{}: {} data file{}: {}{}", directory.string(), data.size(),
                                  data.size() == 1 ? "" : "s", listed(data),
                                  others.empty() ? "" : "; passed over: " + listed(others)));
}

}  // namespace

std::optional<DataFileType> find_data_file_type(const fs::path& path) {
  fs::path name = lower_case(path.filename().string());
  DataFileType type;
  if (name.extension() == ".gz") type.compression = Compression::Gzip;
  if (name.extension() == ".zst") type.compression = Compression::Zstd;
  const bool compressed = type.compression != Compression::None;
  if (compressed) name = name.stem();
  for (const auto& [ending, kind] : kKinds) {
    if (name.extension() != ending || (compressed && kind == FileKind::Parquet)) continue;
    type.kind = kind;
    return type;
  }
  return std::nullopt;
}

DataFileType data_file_type(const fs::path& path) {
  if (const auto type = find_data_file_type(path)) return *type;
  fs::path name = lower_case(path.filename().string());
  if (name.extension() == ".gz" || name.extension() == ".zst") {
    if (name.stem().extension() == ".parquet") {
      user_error("{}: found a Parquet file compressed as a whole, expected .parquet alone: unpack it", path.string());
    }
    name = name.stem();
  }
  const std::string ending = name.extension().string();
  for (const auto& [known, advice] : kAdvice) {
    if (ending == known) user_error("{}: found {}; expected a file that ends in {}", path.string(), advice, kEndings);
  }
  File::open_read(path, IoMode::Buffered);  // refuses a file that does not exist
  user_error("{}: found {}, expected a file that ends in {}", path.string(),
             ending.empty() ? "no ending" : fmt::format("the ending {}", ending), kEndings);
}

namespace {

// Refuses what is on another machine.
void refuse_elsewhere(const std::string& path) {
  std::error_code error;
  if (path.find("://") != path.npos)
    user_error("data: found '{}', expected a file or a directory here: fetch it first", path);
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  };
  const size_t slash = path.find('/');
  const bool id = slash != path.npos && slash > 0 && slash + 1 < path.size() && path[0] != '.' &&
                  path.find('/', slash + 1) == path.npos &&
                  std::all_of(path.begin(), path.end(), [&](char c) { return c == '/' || plain(c); });
  if (id && !find_data_file_type(path) && !fs::exists(fs::path(path).parent_path(), error) && !fs::exists(path, error))
    user_error(
        "data: found no '{}' here{}, expected a file or a directory; where that is a data set of the hub, 'hf download "
        "{} --repo-type dataset --local-dir DIR' fetches it, and {} DIR takes it",
        path, looked_at(path), path, option_name("data"));
}

}  // namespace

DataFiles find_data_files(const std::vector<std::string>& paths) {
  DataFiles out;
  for (const std::string& path : paths) {
    refuse_elsewhere(path);
    std::error_code error;
    if (fs::is_directory(path, error)) {
      add_directory(path, out);
    } else {
      out.files.emplace_back(path);
    }
  }
  return out;
}

std::string names_of_files(const std::vector<fs::path>& files) {
  return files[0].string() + (files.size() > 1 ? fmt::format(" and {} more", files.size() - 1) : "");
}

void refuse_foreign_bytes(std::span<const std::byte> bytes, const std::string& name, DataFileType type, bool inner) {
  using namespace std::string_view_literals;
  constexpr std::string_view kGzipMagic = "\x1f\x8b", kZstdMagic = "\x28\xb5\x2f\xfd";
  constexpr size_t kMagicBytes = 4;  // a shorter file is left to its reader
  const std::string_view head(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto begins = [&](std::string_view magic) { return head.starts_with(magic); };
  const auto refuse = [&](std::string_view found, std::string_view advice) {
    user_error("{}: found {}{}; {}", name, inner ? "compressed, " : "", found, advice);
  };
  if (begins("version https://git-lfs.github.com/spec")) {
    refuse("a Git LFS pointer, not the file that it stands for", "fetch it with 'git lfs pull'");
  }
  if (begins(kGzipMagic) && (inner || type.compression != Compression::Gzip)) {
    refuse("bytes compressed by gzip", inner ? "unpack it once" : "name it so: .gz behind its ending");
  }
  if (begins(kZstdMagic) && (inner || type.compression != Compression::Zstd)) {
    refuse("bytes compressed by zstd", inner ? "unpack it once" : "name it so: .zst behind its ending");
  }
  if (begins("PAR1") && type.kind != FileKind::Parquet) refuse("a Parquet file", "name it .parquet");
  if (begins("ARROW1")) refuse("an Arrow file", "write it as Parquet or JSON lines");
  if (begins("PK\3\4")) refuse("a zip archive or a spreadsheet", "unpack it, or save the sheet as CSV in UTF-8");
  if (begins("BZh") && type.kind != FileKind::Text) refuse("bytes compressed by bzip2", "unpack it with bunzip2");
  if (begins("\xfd"
             "7zXZ\0"sv))
    refuse("bytes compressed by xz", "unpack it with unxz");
  if (head.size() > 262 && head.substr(257, 5) == "ustar") refuse("a tar archive", "unpack it");
  if (begins("\xff\xfe") || begins("\xfe\xff"))
    refuse("text in UTF-16", "write it in UTF-8 (iconv -f UTF-16 -t UTF-8)");
  if (inner || type.compression == Compression::None || head.size() < kMagicBytes) return;
  // A frame that zstd skips begins with one of sixteen bytes.
  const bool skippable = (bytes[0] & std::byte{0xf0}) == std::byte{0x50} && head.substr(1).starts_with("\x2a\x4d\x18");
  const bool gzip = type.compression == Compression::Gzip;
  if (gzip ? !begins(kGzipMagic) : !begins(kZstdMagic) && !skippable)
    user_error("{}: found bytes that {} did not write, expected what its name says: without {} it is read as it lies",
               name, gzip ? "gzip" : "zstd", fs::path(name).extension().string());
}

}  // namespace snug
