// Writes how to ask a model and where to stop, beside what is trained or merged.
#pragma once

#include "api/corpus.h"
#include "train/export.h"

namespace snug {

// Returns a function that writes what a run taught: the template if it saw conversations, the end tokens if it saw
// text, beside what an adapter that it continued was trained with. What it did not teach stays as in the base, which is
// read now.
WriteExtraFiles write_prompt_format(const JobConfig& options, const Corpus& corpus, const JobSpec& spec);

// Returns a function that writes into a merged model how its adapter was trained, or what --template names.
WriteExtraFiles write_adapters_format(const JobConfig& options);

// Returns a line that says how conversations are rendered and what ends a reply; empty if there are none.
std::string how_asked(const JobConfig& options, const Corpus& corpus);

}  // namespace snug
