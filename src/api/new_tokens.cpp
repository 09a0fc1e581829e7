#include "api/new_tokens.h"

#include <algorithm>

#include "api/cache.h"
#include "api/text.h"
#include "base/error.h"
#include "base/file.h"
#include "base/file_lock.h"
#include "base/hash.h"
#include "base/option_name.h"
#include "format/new_tokens.h"
#include "format/side_files.h"
#include "format/unicode.h"
#include "model/model_config.h"
#include "train/initial_rows.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

void require_text(const std::string& option, const std::string& text) {
  constexpr size_t kMost = 1024;
  if (text.empty() || text.size() > kMost || find_invalid_utf8(text))
    user_error("{}: found a text of {} bytes, expected UTF-8 of 1 to {}", option, text.size(), kMost);
}

std::string shown(const std::vector<AddedToken>& tokens) {
  std::string text;
  for (const AddedToken& token : tokens)
    text += fmt::format("{}'{}' ({})", text.empty() ? "" : ", ", token.content, token.id);
  return text;
}

}  // namespace

void find_new_tokens(JobConfig& options) {
  std::vector<AddedToken> wanted;
  const auto add = [&](const std::string& option, const std::vector<std::string>& texts, bool special) {
    for (const std::string& text : texts) {
      require_text(option, text);
      wanted.push_back({.content = text, .special = special});
    }
  };
  add("add_tokens", options.add_tokens, false);
  add("add_special_tokens", options.add_special_tokens, true);
  if (wanted.empty()) return;
  if (!options.adapter.empty())
    user_error(
        "add_tokens: found '{}' beside {} {}, expected nothing: its tokenizer is continued as it is; merge makes a "
        "model of it to begin from",
        wanted[0].content, option_name("adapter"), options.adapter);
  options.found.new_tokens = number_tokens(Tokenizer::load(options.model), wanted);
}

NewRows new_rows(const JobConfig& options) {
  if (options.found.new_tokens.empty()) return {};
  const int64_t stored = read_model_config(options.model, options.family).spec.vocabulary;
  NewRows rows{stored};
  const Tokenizer before = Tokenizer::load(options.model);
  if (before.next_id() > stored)
    user_error("{}: found {} rows of the embedding, expected as many as the tokenizer has tokens, {}", options.model,
               stored, before.next_id());
  for (const AddedToken& token : options.found.new_tokens) {
    rows.rows.push_back({token.id, before.encode(token.content)});
    if (rows.rows.back().mean_of.empty())
      user_error("add_tokens: '{}' is no token of the model as it is, expected a text that it can read", token.content);
  }
  return rows;
}

void place_new_rows(JobSpec& spec, const JobConfig& options) {
  if (options.found.new_tokens.empty() && options.add_tokens.empty() && options.add_special_tokens.empty()) return;
  std::vector<std::string>& notes = spec.sources.notes;
  if (const size_t wanted = options.add_tokens.size() + options.add_special_tokens.size();
      wanted > options.found.new_tokens.size())
    notes.push_back(fmt::format("add_tokens: {} of {} are the tokenizer's own, or named twice, and stay as they are",
                                wanted - options.found.new_tokens.size(), wanted));
  if (options.found.new_tokens.empty()) return;
  for (const ParamId id : {spec.table.embedding, spec.table.head})
    if (spec.purpose == Purpose::Train && spec.table.has_row_per_token(id) && !spec.table[id].trainable)
      user_error("add_tokens: '{}' is not trained, expected it to be: new tokens' rows would stay as they begin",
                 spec.table[id].name);
  notes.push_back(fmt::format("new tokens: {}; their rows begin as the mean of those that their texts were before",
                              shown(options.found.new_tokens)));
  if (!spec.sources.rows_file || spec.sources.assumed) return;
  const auto counts = [&](size_t id) { return spec.table.has_row_per_token(static_cast<ParamId>(id)); };
  std::string key = hex(hash_of_files(spec.sources, {}, counts));
  for (const NewRow& row : spec.sources.new_rows.rows)
    key += fmt::format(" {}={}", row.row, fmt::join(row.mean_of, ","));
  const fs::path cache = cache_directory(options, "add_tokens: rows are computed once of the model's");
  spec.sources.files[*spec.sources.rows_file] = cache / fmt::format("rows-{:016x}.safetensors", hash_of(key));
}

void make_new_rows(const JobSpec& spec) {
  if (!spec.sources.rows_file) return;
  const fs::path& file = spec.sources.files[*spec.sources.rows_file];
  const FileLock held = lock_in_cache(file);
  if (!is_file(file)) write_initial_rows(spec, file);
}

bool writes_tokenizer(const JobConfig& options) {
  return tokenizer_directory(options) != fs::path(options.model) ||
         (options.method == "lora" && !options.found.new_tokens.empty());
}

void write_tokenizer(const JobConfig& options, const fs::path& directory) {
  const fs::path from = tokenizer_directory(options);
  if (writes_tokenizer(options))
    for (const std::string& name : tokenizer_files(from))
      fs::copy_file(from / name, directory / name, fs::copy_options::overwrite_existing);
  if (!options.found.new_tokens.empty()) write_new_tokens(directory, options.found.new_tokens);
}

}  // namespace snug
