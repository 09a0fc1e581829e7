// Keeps token ids of data that was encoded before, under --cache-dir by all that decides them.
#pragma once

#include <cstdint>
#include <filesystem>

#include "api/options.h"
#include "data/dataset.h"

namespace snug {

// Fewer bytes than this are encoded by every run: within half a second on one thread, at the 39 MB/s of SmolLM2's
// tokenizer (bench/dataset.cpp; hashing takes a hundredth of that time).
inline constexpr uint64_t kLeastCachedBytes = uint64_t{16} << 20;

// Returns what load_dataset() makes of data whose tokenizer lies in a directory, or equal samples, kinds and notes
// without encoding anything, if an earlier run on these bytes has kept them. A line of data.note says which it was.
//
// Entries are files in `tokens` of --cache-dir, named by the hash of their key: the program, the tokenizer's files, the
// bytes of the data's files in their order with the types that their names say, and every option of how they are read
// (data/dataset_key.h). An entry holds its whole key. Processes that encode the same data wait for the one that began.
// With --overwrite it is encoded anew. Entries together take no more than a quarter of --disk-memory, nor of what the
// disk would have free without them: those that were not used for longest are removed, also when one that is there is
// used. What they take then is no longer the plan's (FoundOfJob::disk_taken).
//
// A line reports what cannot be kept, or is found damaged; that never fails. Nothing is kept without an encoder, of
// files that have less than `least` bytes, or of files that are long for how few of their records are read.
struct CachedDataset {
  Dataset dataset;
  uint64_t cache_bytes = 0;  // of all entries; 0 where none is used or kept
};
CachedDataset load_dataset_cached(const JobConfig& options, const DataOptions& data, const TextEncoder* encoder,
                                  const std::filesystem::path& tokenizer, uint64_t least = kLeastCachedBytes);

// Returns all that decides an entry which holds what load_dataset() makes, as text. Throws UserError for a file that
// cannot be read.
std::string token_cache_key(const DataOptions& data, const TextEncoder& encoder,
                            const std::filesystem::path& tokenizer);

}  // namespace snug
