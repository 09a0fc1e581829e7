// Guards the directory into which a run writes.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>

#include "api/options.h"
#include "base/heartbeat.h"
#include "base/owner.h"

namespace snug {

// Names the folder of a run with the files that go beside the weights of what is made of its checkpoints.
inline constexpr const char* kRunFormat = "format";

// Throws UserError, which names the option, unless a file can be made or replaced there.
void require_writable_file(const std::filesystem::path& file, std::string_view option);

// Returns runs/<date>-<model>.
std::string default_out(const JobConfig& options);

// Holds --out for this process, from before anything in it is read to the end of the run. Throws UserError if another
// process holds it, which is named, and if --out is no directory that can be written to.
std::unique_ptr<DirectoryOwner> own_out(const JobConfig& options);

// Throws UserError before anything is planned: if --out holds a run already, or something that a run would replace and
// that belongs to no run; if --overwrite would remove an input; if the trace cannot be written.
void refuse_out(const JobConfig& options);

// Throws UserError if a directory to be written is one that a run writes and removes, or lies in one.
void refuse_runs_own(const std::filesystem::path& out);
// Throws UserError for a command that makes --out as refuse_runs_own() does, and if --overwrite would replace something
// other than parts of what such a command makes. `otherwise` says that: "which no export wrote".
void refuse_to_replace(const JobConfig& options,
                       const std::function<bool(const std::filesystem::directory_entry&)>& is_part,
                       std::string_view otherwise);

// Removes the run that is there, but for the file `spared` of its references, if that lies among them; the files by
// which the run is recognised go last.
void clear_run(const std::string& out, const std::filesystem::path& spared, const Heartbeat& heartbeat);

}  // namespace snug
