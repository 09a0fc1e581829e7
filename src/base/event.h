// Events of a run, for programs: docs/runs.md lists them with their fields.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace snug {

// An object whose first key is "event": its name.
using Event = nlohmann::ordered_json;

// Returns it as a line of JSON with its newline and, behind its name, the "time" in UTC: "2026-11-29T04:30:00.123Z".
// Text that is no UTF-8 is replaced.
std::string event_line(const Event& event);

}  // namespace snug
