// Which files are data: kinds and compression by a name's ending, directories as the files in them, and foreign files
// refused by what they are.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace snug {

enum class FileKind { Json, JsonLines, Csv, Parquet, Text };
enum class Compression { None, Gzip, Zstd };

struct DataFileType {
  FileKind kind = FileKind::Json;
  Compression compression = Compression::None;
};

// The type that a name's ending says, in letters of either case: .json, .jsonl, .csv, .parquet or .txt, all but
// .parquet also with .gz or .zst behind it. Nothing for another ending.
std::optional<DataFileType> find_data_file_type(const std::filesystem::path& path);
// As above; UserError for another ending, with what to do about the ones that are often met.
DataFileType data_file_type(const std::filesystem::path& path);

// What `data` or `validation` named, as files.
struct DataFiles {
  std::vector<std::filesystem::path> files;
  // One line for each directory: how many files were found, and which names were passed over.
  std::vector<std::string> notes;
};

// Files stand for themselves, whether they exist or not. A directory stands for all files in it and below it whose
// ending says that they are data, in the order of their paths; names that begin with a dot are skipped, and so are
// descriptions of data sets (dataset_info.json and the like), empty files and links to nothing; a line names them.
// UserError for what is no path (a URL, an id of the hub), and for a directory that has none, or that was
// written by save_to_disk() of the datasets library.
DataFiles find_data_files(const std::vector<std::string>& paths);

// "a.jsonl", "a.jsonl and 2 more": of files, at least one.
std::string names_of_files(const std::vector<std::filesystem::path>& files);

// UserError if a file's first bytes show that it is something else than its name says: compressed or not, Parquet,
// Arrow, an archive, a Git LFS pointer, UTF-16. `bytes` are those after decompression where `inner` is true.
void refuse_foreign_bytes(std::span<const std::byte> bytes, const std::string& name, DataFileType type, bool inner);

}  // namespace snug
