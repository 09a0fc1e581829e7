// Finds the control groups (cgroups) around this process.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace snug {

// Calls `look` with the folder of this process's group and of every group around it: of version 2, and of those of
// version 1 that have the controller, "memory" or "cpu". A folder that a container does not show is passed all the
// same.
void each_control_group(std::string_view controller, const std::function<void(const std::string& folder)>& look);

}  // namespace snug
