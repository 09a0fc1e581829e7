// Token ids of data that was encoded before, kept under --cache-dir by all that decides them.
#pragma once

#include <cstdint>
#include <filesystem>

#include "cli/options.h"
#include "data/dataset.h"

namespace snug {

// Files of fewer bytes are encoded by every run: within half a second on one thread, at the 39 MB/s of SmolLM2's
// tokenizer (bench/dataset.cpp; hashing the same takes a hundredth of that).
inline constexpr uint64_t kLeastCachedBytes = uint64_t{16} << 20;

// load_dataset() of data whose tokenizer lies in a directory, or the same samples, kinds and notes without encoding
// anything, where an earlier run on the same bytes has kept them. A line of data.note says which it was.
//
// Entries are files in `tokens` of --cache-dir, named by the hash of their key: the program, the tokenizer's files, the
// bytes of the data's files in their order with the types that their names say, and every option of how they are read
// (data/dataset_key.h). An entry holds its whole key. Processes that encode the same data wait for the one that began.
// --overwrite has it encoded anew. Entries together take no more than --disk-memory, nor a quarter of what the disk
// would have free without them: those that were not used for longest are removed.
//
// What cannot be kept, or is found damaged, is said in a line; it never fails. Nothing is kept where there is
// no encoder, of files that have less than `least` bytes, and of those that are long for how few of their records are
// read.
Dataset load_dataset_cached(const Options& options, const DataOptions& data, const TextEncoder* encoder,
                            const std::filesystem::path& tokenizer, uint64_t least = kLeastCachedBytes);

// Of an entry that holds what load_dataset() makes, all that decides it, as text. UserError for a file that cannot be
// read.
std::string token_cache_key(const DataOptions& data, const TextEncoder& encoder,
                            const std::filesystem::path& tokenizer);

}  // namespace snug
