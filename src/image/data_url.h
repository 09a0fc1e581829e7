// Takes the bytes of an image out of a data URL (RFC 2397), as records of the OpenAI kind hold them.
#pragma once

#include <string>
#include <string_view>

#include "base/ascii.h"

namespace snug {

inline bool is_data_url(std::string_view text) { return lower_case(text.substr(0, 5)) == "data:"; }

// Returns whether a text is the base64 of an image, without what a data URL has before it.
bool is_bare_base64(std::string_view text);

// Returns the bytes of "data:image/png;base64,...". What type it names does not matter: the bytes say what they are.
// Throws UserError, named by `source`, for one that is not in base64 or whose base64 (RFC 4648) is damaged; line ends
// inside it are passed over.
std::string bytes_of_data_url(std::string_view url, std::string_view source);

}  // namespace snug
