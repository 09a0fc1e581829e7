// Keeps the checkpoints of a run: out/checkpoints/step-N/, each whole or not there.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/option_name.h"
#include "train/checkpoint_state.h"
#include "train/session.h"

namespace snug {

// Name the groups of fields of the data, beside those of the job (plan/lowering/fingerprint.h).
inline constexpr std::string_view kBlockFields = "blocks";           // how samples become the blocks of steps
inline constexpr std::string_view kContentFields = "data";           // what samples hold, in tokens
inline constexpr std::string_view kDataOptionFields = "options";     // the files and options that gave those samples
inline constexpr std::string_view kValidationFields = "validation";  // what held-out samples hold
// Names the field, of data and of validation, of a hash of the bytes of their images.
inline constexpr std::string_view kImagesField = "images";

// Returns fields without those of images' bytes that the others lack: a checkpoint of an earlier version does not say
// them, nor does a run that goes on behind a damaged image.
Fields without_unsaid(Fields fields, const Fields& others);

// Throws UserError that names what differs between `now` and the run's checkpoint in `directory`, by field and both
// values. The cut may differ, and so may options of the data if their samples are equal, and held-out samples.
void refuse_other_fields(const Fields& now, const Fields& saved, const std::filesystem::path& directory);

class Checkpoints {
 public:
  // `keep` is how many are kept besides the best; below 0 all are. Rank 0 calls `require_owned` before each change
  // there; it throws where the directory belongs to another process.
  Checkpoints(
      const std::filesystem::path& run_directory, int64_t keep, std::function<void()> require_owned = [] {})
      : root_(run_directory / "checkpoints"), keep_(keep), require_owned_(std::move(require_owned)) {}

  const std::filesystem::path& root() const { return root_; }
  // Returns where the checkpoint of a step lies, if there is one.
  std::filesystem::path directory(int64_t step) const;
  // Returns the steps of the complete checkpoints, in order.
  std::vector<int64_t> steps() const;
  // Returns the directory of the last one, if there is any.
  std::optional<std::filesystem::path> last() const;
  // Returns what `use` makes of the last one's files. Where they are damaged, the UserError says which checkpoint is
  // before it, if there is one.
  template <class Use>
  auto of_last(Use&& use) const {
    try {
      return use();
    } catch (const UserError& error) {
      const std::vector<int64_t> all = steps();
      if (all.size() < 2) throw;
      user_error("{}; without {} {} would continue from step {}", error.what(), last()->string(), option_name("resume"),
                 all[all.size() - 2]);
    }
  }
  // Saves tensors and state under a temporary name, publishes them, and removes what need not be kept; what cannot be
  // removed is reported and tried again with the next one. All ranks call it.
  void save(Session& session, const CheckpointState& state);
  // Replaces the state of the step that was saved last, and removes what by it need not be kept. All ranks call it.
  void save_state(Session& session, const CheckpointState& state);
  // Returns the state of the last one.
  CheckpointState last_state() const;
  // Restores the last one. Throws UserError if it was made under other fields than `now` has.
  CheckpointState restore_last(Session& session, const CheckpointState& now) const;

 private:
  void remove_old(const CheckpointState& state, const Heartbeat& heartbeat) const;

  std::filesystem::path root_;
  int64_t keep_;
  std::function<void()> require_owned_;
};

}  // namespace snug
