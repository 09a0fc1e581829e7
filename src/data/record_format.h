// Declares what reads the records of one kind of file; RecordReader chooses among them.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "data/data_files.h"
#include "data/records.h"

namespace snug {

class RecordFormat {
 public:
  virtual ~RecordFormat() = default;
  // Reads the next record, as RecordReader::next() does.
  virtual bool next(Record& record) = 0;
  // Returns the note, as RecordReader::note() does.
  const std::string& note() const { return note_; }

 protected:
  std::string note_;
};

std::unique_ptr<RecordFormat> json_records(const std::filesystem::path& path, DataFileType type, RecordOptions options);
std::unique_ptr<RecordFormat> csv_records(const std::filesystem::path& path, DataFileType type, RecordOptions options);
std::unique_ptr<RecordFormat> parquet_records(const std::filesystem::path& path, RecordOptions options);
std::unique_ptr<RecordFormat> text_records(const std::filesystem::path& path, DataFileType type, RecordOptions options);

}  // namespace snug
