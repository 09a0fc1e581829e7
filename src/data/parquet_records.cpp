// Reads rows of a .parquet file as JSON objects.
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/byte_source.h"
#include "data/record_format.h"
#include "format/parquet.h"

namespace snug {
namespace {

class ParquetRecords : public RecordFormat {
 public:
  ParquetRecords(const std::filesystem::path& path, RecordOptions options)
      : name_(path.string()),
        max_bytes_(options.max_record_bytes),
        reader_(checked(path), std::move(options.json_columns)) {}

  bool next(Record& record) override {
    if (!reader_.next(record.text, max_bytes_)) return false;
    record.line = 1;  // the text has no lines
    record.place = fmt::format("{}, row {}", name_, reader_.rows_read());
    return true;
  }

 private:
  // Refuses a file that is something else, by what it is.
  static const std::filesystem::path& checked(const std::filesystem::path& path) {
    std::vector<std::byte> head(512);
    head.resize(ByteSource::open(path, Compression::None)->read(head));
    refuse_foreign_bytes(head, path.string(), {FileKind::Parquet, Compression::None}, /*inner=*/false);
    return path;
  }

  std::string name_;
  uint64_t max_bytes_;
  ParquetReader reader_;
};

}  // namespace

std::unique_ptr<RecordFormat> parquet_records(const std::filesystem::path& path, RecordOptions options) {
  return std::make_unique<ParquetRecords>(path, std::move(options));
}

}  // namespace snug
