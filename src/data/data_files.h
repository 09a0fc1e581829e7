// Says which files are data: their kinds and compression by their names' endings, directories as the files in them; it
// refuses foreign files by what they are.
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

// Returns the type given by a name's ending, in letters of either case: .json, .jsonl, .csv, .parquet or .txt, all but
// .parquet also with .gz or .zst behind it. Nothing for another ending.
std::optional<DataFileType> find_data_file_type(const std::filesystem::path& path);
// Returns the type as above. Throws UserError for another ending, with advice for the common ones.
DataFileType data_file_type(const std::filesystem::path& path);

// Holds the files that `data` or `validation` named.
struct DataFiles {
  std::vector<std::filesystem::path> files;
  // Holds one line for each directory, with how many files were found, and which names were passed over.
  std::vector<std::string> notes;
};

// Finds the files. A path of a file stands for it, whether it exists or not. A directory stands for all files in it and
// below it whose ending says that they are data, in the order of their paths. Names that begin with a dot are skipped,
// and so are descriptions of data sets (dataset_info.json and the like), empty files and links to nothing; a line names
// them. Throws UserError for what is no path (a URL, an id of the hub), for a directory without data, and for one that
// save_to_disk() of the datasets library has written.
DataFiles find_data_files(const std::vector<std::string>& paths);

// Returns "a.jsonl" or "a.jsonl and 2 more" for at least one file.
std::string names_of_files(const std::vector<std::filesystem::path>& files);

// Throws UserError if a file's first bytes show that it is something else than its name says: compressed or not,
// Parquet, Arrow, an archive, a Git LFS pointer, UTF-16. With `inner`, `bytes` are those after decompression.
void refuse_foreign_bytes(std::span<const std::byte> bytes, const std::string& name, DataFileType type, bool inner);

}  // namespace snug
