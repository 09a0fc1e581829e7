// Returns as one text what decides the tokens of a data set besides the contents of files.
#pragma once

#include <string>

#include "data/dataset.h"

namespace snug {

// Returns a line for each field of both (data/dataset_fields.h): its name, the length of its value and the value. Two
// texts are equal only if all fields are.
std::string dataset_key(const DataOptions& options, const TextEncoder& encoder);

// Returns as such a text what decides the rows of patches of an image besides its bytes.
std::string processor_key(const ImageProcessor& processor);

}  // namespace snug
