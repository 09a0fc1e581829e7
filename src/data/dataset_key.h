// What decides the tokens of a data set beside the contents of files, as one text.
#pragma once

#include <string>

#include "data/dataset.h"

namespace snug {

// A line for each field of both (data/dataset_fields.h): its name, the length of its value and the value. Two texts are
// equal only where all fields are.
std::string dataset_key(const DataOptions& options, const TextEncoder& encoder);

}  // namespace snug
