// Gives tokenizer and model the tokens that options name (add_tokens, add_special_tokens).
#pragma once

#include <filesystem>

#include "api/options.h"
#include "plan/lowering/compile.h"

namespace snug {

// Sets FoundOfJob::new_tokens. UserError for texts that are no tokens, without a tokenizer, and beside an adapter.
void find_new_tokens(JobConfig& options);

// Returns the rows of the new tokens: they begin as the mean of the rows of those that their texts were before.
NewRows new_rows(const JobConfig& options);

// Sets the path of the file of these rows, and checks that they are trained. Adds notes.
void place_new_rows(JobSpec& spec, const JobConfig& options);
// Writes that file, once.
void make_new_rows(const JobSpec& spec);

// Returns whether an adapter of the options is written with a tokenizer, which is not the model's own.
bool writes_tokenizer(const JobConfig& options);
// Makes the tokenizer in `directory` the one of load_tokenizer(), where that is not the model's own.
void write_tokenizer(const JobConfig& options, const std::filesystem::path& directory);

}  // namespace snug
