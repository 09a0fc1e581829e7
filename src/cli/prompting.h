// How to ask and where to stop, as it is written with what is trained or merged.
#pragma once

#include "cli/corpus.h"
#include "train/export.h"

namespace snug {

// Writes what a run taught: the template where it saw conversations, the end tokens where it saw text, beside what an
// adapter that it continued was trained with. Whatever it did not teach stays as the base has it. Reads the base now.
WriteExtraFiles write_prompt_format(const Options& options, const Corpus& corpus, const JobSpec& spec);

// Writes into a merged model how its adapter was trained, or what --template names.
WriteExtraFiles write_adapters_format(const Options& options);

// A line that says how conversations are rendered and what ends a reply; empty where there are none.
std::string how_asked(const Options& options, const Corpus& corpus);

}  // namespace snug
