#include "data/records.h"

#include <utility>

#include "base/error.h"
#include "data/record_format.h"

namespace snug {
namespace {

std::unique_ptr<RecordFormat> open_records(const std::filesystem::path& path, RecordOptions options) {
  const DataFileType type = data_file_type(path);
  switch (type.kind) {
    case FileKind::Json:
    case FileKind::JsonLines:
      return json_records(path, type, std::move(options));
    case FileKind::Csv:
      return csv_records(path, type, std::move(options));
    case FileKind::Parquet:
      return parquet_records(path, std::move(options));
    case FileKind::Text:
      break;
  }
  return text_records(path, type, std::move(options));
}

}  // namespace

TextSplit text_split_from_name(std::string_view name) {
  if (name == "document") return TextSplit::Document;
  if (name == "paragraph") return TextSplit::Paragraph;
  if (name == "line") return TextSplit::Line;
  user_error("text_split: found '{}', expected document, paragraph or line", name);
}

RecordReader::RecordReader(const std::filesystem::path& path, RecordOptions options)
    : json_(data_file_type(path).kind != FileKind::Text), format_(open_records(path, std::move(options))) {}

RecordReader::~RecordReader() = default;

bool RecordReader::next(Record& record) {
  record.text.clear();
  return format_->next(record);
}

const std::string& RecordReader::note() const { return format_->note(); }

}  // namespace snug
