// Makes options of each kind of value, for the table in options.cpp. What reads a text throws UserError that names the
// key, what was found and what is expected.
#pragma once

#include "api/options.h"

namespace snug {

// ---- Reading and writing values -------------------------------------------------------------------------------------

int64_t parse_integer(const std::string& text, const std::string& key, int64_t least, int64_t most = INT64_MAX);
double parse_number(const std::string& text, const std::string& key, double least, double most);

// Reads a boolean, also in the words of YAML 1.1, which many files use.
bool parse_bool(const std::string& text, const std::string& key);

// Returns the items between commas; a comma or backslash within an item stands behind a backslash.
std::vector<std::string> split_list(const std::string& text);

// Splits a number from its unit: "30min" -> "30", "min".
std::pair<std::string, std::string> split_unit(const std::string& text);
Cadence parse_cadence(const std::string& text, const std::string& key);
std::string write_cadence(const Cadence& cadence);
std::string parse_word(const std::string& text, const std::string& key, const std::vector<std::string>& words);

// Returns the type of whole numbers from least to most.
ValueType integer_type(int64_t least, int64_t most);

// ---- Kinds of options -----------------------------------------------------------------------------------------------

constexpr int64_t kMaxOpenCount = 1 << 30;

// Return an option that is kept in `field`. One that is open may be left unsaid.
OptionSpec text_option(std::string key, std::string JobConfig::*field, std::string help);
OptionSpec word_option(const std::string& key, std::string JobConfig::*field, std::vector<std::string> words,
                       const std::string& help);
OptionSpec integer_option(const std::string& key, int64_t JobConfig::*field, int64_t least, std::string help,
                          int64_t most = kMaxCount);
OptionSpec open_integer_option(const std::string& key, std::optional<int64_t> JobConfig::*field, std::string help,
                               int64_t most = kMaxOpenCount, int64_t least = 1);
OptionSpec number_option(const std::string& key, double JobConfig::*field, double least, double most, std::string help);
OptionSpec open_number_option(const std::string& key, std::optional<double> JobConfig::*field, double most,
                              std::string help);
OptionSpec bool_option(const std::string& key, bool JobConfig::*field, std::string help);
OptionSpec size_option(const std::string& key, std::optional<uint64_t> JobConfig::*field, std::string help);
OptionSpec list_option(std::string key, std::vector<std::string> JobConfig::*field, std::string help);
OptionSpec cadence_option(const std::string& key, Cadence JobConfig::*field, std::string help);
OptionSpec map_option(const std::string& key, std::map<std::string, std::string> JobConfig::*field, std::string item,
                      std::string help);
OptionSpec targets_option();
OptionSpec metrics_format_option();
OptionSpec keep_option();
OptionSpec base_format_option();

// Takes a backslash and an n for a new line, as shells and YAML's plain text cannot spell it otherwise.
OptionSpec prompt_option();

}  // namespace snug
