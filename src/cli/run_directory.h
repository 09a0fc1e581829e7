// The directory that a run writes into.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>

#include "base/heartbeat.h"
#include "base/owner.h"
#include "cli/options.h"

namespace snug {

// Of a run's directory: where the files lie that stand beside the weights of what is made of its checkpoints.
inline constexpr const char* kRunFormat = "format";

// UserError, which names the option, unless a file can be made there, or replaced.
void require_file_can_be_made(const std::filesystem::path& file, std::string_view option);

// runs/<date>-<model>
std::string default_out(const Options& options);

// Holds --out for this process, from before anything in it is looked at to the end of the run. UserError where another
// process holds it, which is named, and where out is no directory that can be written to.
std::unique_ptr<DirectoryOwner> own_out(const Options& options);

// UserError before anything is planned: where --out holds a run already, or something that a run would replace and that
// is no run's; where --overwrite would remove what is read; where the trace cannot be written.
void refuse_out(const Options& options);

// UserError where a directory to be written is what some run writes and removes, or lies in that.
void refuse_runs_own(const std::filesystem::path& out);
// The same of a command that makes --out, and where --overwrite would replace what is no part of what such a command
// makes. `otherwise` says so: "which no export wrote".
void refuse_to_replace(const Options& options,
                       const std::function<bool(const std::filesystem::directory_entry&)>& is_part,
                       std::string_view otherwise);

// Removes the run that is there; what says that it is one goes last.
void clear_run(const std::string& out, const Heartbeat& heartbeat);

}  // namespace snug
