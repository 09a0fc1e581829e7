// Writes what stands beside the arrangement that a plan chose. Where rates are rough nothing of it names a time, as
// these tell which arrangement is faster, but not by how much.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "api/job.h"

namespace snug {

// Returns an arrangement beside the chosen one; "relative_time" is null where rates are rough.
nlohmann::ordered_json alternative_json(const Planned& planned, const Arrangement& other);

// Returns why it is this arrangement, if another that fits is forecast to be faster.
std::string choice_text(const Planned& planned);
// Returns what else fits, what less memory would cost and what more would gain: a line for each, of several that offer
// nearly the same.
std::string alternatives_text(const Planned& planned);
// Returns the changes of options with which a job fits that does not.
std::string changes_text(const Planned& planned);

}  // namespace snug
