// Reads the part of Python's pickles that describes tensors: what torch.save writes of a dictionary of them. A pickle
// is a program, and a general one may call anything; here only dictionaries, lists, tuples, texts and numbers are
// built, only the globals by which torch names its storages and rebuilds tensors are known, and everything else is
// refused by name.
//
// Formats: https://github.com/python/cpython/blob/main/Lib/pickletools.py (opcodes, protocols 0 to 5),
// https://github.com/pytorch/pytorch/blob/main/torch/serialization.py (persistent ids), torch/_utils.py (rebuilding).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace snug {

// Holds a tensor as a pickle has it: a view of a storage, whose bytes are in another part of the file.
struct PickledTensor {
  std::string storage;            // its key
  uint64_t storage_elements = 0;  // of the storage's own type
  std::string storage_type;       // as safetensors spells it: "F32"; "U8" if the storage has no type
  std::string type;               // of the tensor
  uint64_t offset = 0;            // elements of the tensor from the storage's start
  std::vector<int64_t> shape;
};

// Holds the content of one pickle, in one of the forms that torch's files have.
struct Pickled {
  enum class Kind : uint8_t { Tensors, Texts, Number, Other } kind = Kind::Other;
  std::map<std::string, PickledTensor> tensors;  // a dictionary of tensors only
  std::vector<std::string> texts;                // a list
  std::string number;                            // bytes of an integer, little-endian as a pickle has them, at least 1
  bool big_endian = false;                       // for a dictionary with "little_endian": False
};

// Reads the pickle that begins at `at` of `bytes`, and moves `at` behind it. Throws UserError that names the opcode,
// the global or the key at fault for anything in a dictionary of tensors that is none: a dictionary within it, a tensor
// whose rows do not lie one behind the other, or reach beyond their storage.
Pickled read_pickle(std::string_view bytes, size_t& at, std::string_view source);

}  // namespace snug
