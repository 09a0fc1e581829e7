// Translates the options of other programs into a job file of snug's, and says of every one what became of it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "translate/settings.h"

namespace snug {

struct TranslateRequest {
  // A file of options with key=value behind it, a shell script, or a command.
  std::vector<std::string> words;
  std::optional<Dialect> program;  // where the words do not say it
  std::optional<int64_t> ranks;
  bool pin = false;  // what snug decides is written too
};

struct ReportLine {
  char mark = '=';
  std::string option, value, origin, text;  // origin: empty for what stands on the command line
  bool is_default = false;                  // nobody gave it
};

struct TranslatedJob {
  std::string program;             // whose options they are
  std::string job;                 // the job file
  std::vector<ReportLine> report;  // a line an option, in the order in which they were read
  std::vector<std::string> remarks;
  bool changes = false;  // something that changes what is trained is not in the job
  std::string report_text() const;
};

// Reads a file that the words name; nothing if it is not there.
using FileReader = std::function<std::optional<std::string>(const std::string& path)>;

// Throws UserError for words that start no known program and files that are not read.
TranslatedJob translate(const TranslateRequest& request, const FileReader& read);

}  // namespace snug
