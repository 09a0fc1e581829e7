// Reads what the words of a translation name: files, scripts, commands, and the files that these name in turn.
#pragma once

#include "translate/translate.h"

namespace snug {

struct Gathered {
  Dialect program = Dialect::Trainer;
  std::string command, starts_by;
  std::vector<Setting> settings;  // in the order in which they count: later ones win
};

Gathered gather(const TranslateRequest& request, const FileReader& read);

}  // namespace snug
