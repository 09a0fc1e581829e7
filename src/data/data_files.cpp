#include "data/data_files.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/ascii.h"
#include "base/error.h"
#include "base/file.h"

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

// What to do with files of other endings.
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

// Files that lie beside data and describe it.
constexpr std::array<std::string_view, 4> kDescriptions = {"dataset_info.json", "dataset_infos.json",
                                                           "dataset_dict.json", "state.json"};

// "a, b, c and 4 more"
std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  if (names.size() <= kShown) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{} and {} more", fmt::join(names.begin(), names.begin() + kShown, ", "), names.size() - kShown);
}

bool is_description(const fs::path& path) {
  const std::string name = path.filename().string();
  return std::find(kDescriptions.begin(), kDescriptions.end(), name) != kDescriptions.end();
}

// The names in a directory and below it, relative to it, hidden ones left out.
std::vector<fs::path> files_below(const fs::path& directory) {
  std::vector<fs::path> found;
  std::error_code error;
  for (auto it = fs::recursive_directory_iterator(directory, error); !error && it != fs::end(it); it.increment(error)) {
    const bool hidden = it->path().filename().string().starts_with('.');
    std::error_code unseen;
    if (hidden && it->is_directory(unseen)) it.disable_recursion_pending();
    // Links to directories are not followed, and so are named with what is passed over.
    if (!hidden && (!it->is_directory(unseen) || it->is_symlink(unseen)))
      found.push_back(it->path().lexically_relative(directory));
  }
  if (error) user_error("{}: the directory cannot be read: {}", directory.string(), error.message());
  std::sort(found.begin(), found.end());
  return found;
}

void add_directory(const fs::path& directory, DataFiles& out) {
  std::vector<std::string> data, others;
  bool arrow = false, described = false;
  for (const fs::path& file : files_below(directory)) {
    arrow = arrow || file.extension() == ".arrow";
    described = described || file.filename() == "state.json" || file.filename() == "dataset_dict.json";
    const bool known = find_data_file_type(file) && !is_description(file);
    (known ? data : others).push_back(file.string());
  }
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
  File::open_read(path, IoMode::Buffered);  // what is not there is refused for that
  user_error("{}: found {}, expected a file that ends in {}", path.string(),
             ending.empty() ? "no ending" : fmt::format("the ending {}", ending), kEndings);
}

DataFiles find_data_files(const std::vector<std::string>& paths) {
  DataFiles out;
  for (const std::string& path : paths) {
    std::error_code error;
    if (fs::is_directory(path, error)) {
      add_directory(path, out);
    } else {
      out.files.emplace_back(path);
    }
  }
  return out;
}

void refuse_foreign_bytes(std::span<const std::byte> bytes, const std::string& name, DataFileType type, bool inner) {
  using namespace std::string_view_literals;
  const std::string_view head(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto begins = [&](std::string_view magic) { return head.starts_with(magic); };
  const auto refuse = [&](std::string_view found, std::string_view advice) {
    user_error("{}: found {}{}; {}", name, inner ? "compressed, " : "", found, advice);
  };
  if (begins("version https://git-lfs.github.com/spec")) {
    refuse("a Git LFS pointer, not the file that it stands for", "fetch it with 'git lfs pull'");
  }
  if (begins("\x1f\x8b") && (inner || type.compression != Compression::Gzip)) {
    refuse("bytes compressed by gzip", inner ? "unpack it once" : "name it so: .gz behind its ending");
  }
  if (begins("\x28\xb5\x2f\xfd") && (inner || type.compression != Compression::Zstd)) {
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
}

}  // namespace snug
