// Reads generation_config.json, which says where a model's replies end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace snug {

// Returns the end tokens that generation_config.json names; nothing if it names none below `vocabulary`. Adds a note
// for each id that is not below it.
std::optional<std::vector<int64_t>> parse_generation_config(std::string_view json, std::string_view source,
                                                            int64_t vocabulary, std::vector<std::string>& notes);

}  // namespace snug
