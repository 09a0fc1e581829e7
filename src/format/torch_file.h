// Reads files in which torch.save wrote a dictionary of tensors (pytorch_model.bin, adapter_model.bin): where each
// tensor's bytes lie, as with safetensors. The values themselves are not read.
//
//   since torch 1.6: a zip archive of stored entries: <top>/data.pkl, the pickle, and <top>/data/<key>, the storages
//   before:          five pickles (a magic number, 1001, facts of the machine, the tensors, the keys of the storages),
//                    then for each storage its number of elements (64 bits) and its values
//
// Formats: https://github.com/pytorch/pytorch/blob/main/torch/serialization.py and PKWARE's APPNOTE.TXT 6.3 (zip).
// Everything read is checked; a file that breaks a rule is a UserError that says what was found.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "format/load.h"
#include "format/safetensors.h"

namespace snug {

inline constexpr size_t kTorchFileHead = 16;  // bytes that is_torch_file() reads

// Returns whether a file that begins so is one of torch's; `head` may be shorter if the file is.
bool is_torch_file(std::string_view head);

// Returns the tensors of such a file of `file_bytes` bytes, in order of name, with SafetensorsEntry::file 0; `source`
// is the file's name for messages.
std::vector<SafetensorsEntry> parse_torch_file(const ReadAt& read, uint64_t file_bytes, std::string_view source);

}  // namespace snug
