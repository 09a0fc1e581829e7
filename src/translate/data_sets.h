// Makes files, shapes and columns of data sets as programs name them.
#pragma once

#include <string>
#include <string_view>

namespace snug {

class Translator;

// Held-out sets of LLaMA-Factory have this added to their numbers, to be told from those that are trained on.
inline constexpr int64_t kHeldOut = 1000;

// Returns whether a text names a file or directory and no data set of a hub.
bool names_file(std::string_view text);

void finish_data_sets(Translator& t);

}  // namespace snug
