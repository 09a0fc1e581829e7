// The checkpoints of a run: out/checkpoints/step-N/, each whole or not there.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "train/checkpoint_state.h"
#include "train/session.h"

namespace snug {

// Groups of fields of the data, beside those of the job (plan/lowering/fingerprint.h).
inline constexpr std::string_view kBlockFields = "blocks";           // how samples become the blocks of steps
inline constexpr std::string_view kContentFields = "data";           // what samples hold, in tokens
inline constexpr std::string_view kDataOptionFields = "options";     // of which files and options that came
inline constexpr std::string_view kValidationFields = "validation";  // what held-out samples hold

// UserError that names what `now` has otherwise than the run's checkpoint in `directory`, by field and both values. The
// cut may differ, options of the data if their samples are equal, and held-out samples.
void refuse_other_fields(const Fields& now, const Fields& saved, const std::filesystem::path& directory);

class Checkpoints {
 public:
  // `keep`: how many besides the best; below 0 all. `require_owned` is called by rank 0 before each change there, and
  // throws where the directory is another's.
  Checkpoints(
      const std::filesystem::path& run_directory, int64_t keep, std::function<void()> require_owned = [] {})
      : root_(run_directory / "checkpoints"), keep_(keep), require_owned_(std::move(require_owned)) {}

  const std::filesystem::path& root() const { return root_; }
  // Where the checkpoint of a step lies, if there is one.
  std::filesystem::path directory(int64_t step) const;
  // Steps of the complete checkpoints, in order.
  std::vector<int64_t> steps() const;
  // The directory of the last one, if there is any.
  std::optional<std::filesystem::path> last() const;
  // What `use` makes of the last one's files. Where they are not good, the UserError says which is before, that may be.
  template <class Use>
  auto of_last(Use&& use) const {
    try {
      return use();
    } catch (const UserError& error) {
      const std::vector<int64_t> all = steps();
      if (all.size() < 2) throw;
      user_error("{}; without {} --resume would continue from step {}", error.what(), last()->string(),
                 all[all.size() - 2]);
    }
  }
  // Saves tensors and state under a temporary name, publishes them, and removes what need not be kept: what cannot be
  // removed is said and tried again with the next one. On all ranks.
  void save(Session& session, const CheckpointState& state);
  // The state of the last one.
  CheckpointState last_state() const;
  // Restores the last one. UserError if it was made under other fields than `now` has.
  CheckpointState restore_last(Session& session, const CheckpointState& now) const;

 private:
  void remove_old(const CheckpointState& state, const Heartbeat& heartbeat) const;

  std::filesystem::path root_;
  int64_t keep_;
  std::function<void()> require_owned_;
};

}  // namespace snug
