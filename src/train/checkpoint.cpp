#include "train/checkpoint.h"

#include <algorithm>
#include <charconv>

#include "base/disk.h"
#include "base/file.h"
#include "base/file_lock.h"
#include "base/say.h"
#include "plan/lowering/fingerprint.h"

namespace snug {
namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kRemoved = ".old";  // follows the name of what is being removed
constexpr size_t kMostDifferences = 5;         // in a message

}  // namespace

std::optional<std::filesystem::path> Checkpoints::last() const {
  const std::vector<int64_t> all = steps();
  return all.empty() ? std::nullopt : std::optional(directory(all.back()));
}

std::filesystem::path Checkpoints::directory(int64_t step) const { return root_ / fmt::format("{}{}", kPrefix, step); }

std::vector<int64_t> Checkpoints::steps() const {
  std::vector<int64_t> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root_, error)) {
    const std::string name = entry.path().filename().string();
    int64_t step = 0;
    if (!name.starts_with(kPrefix)) continue;
    const auto [end, failed] = std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
    if (failed == std::errc() && end == name.data() + name.size()) found.push_back(step);
  }
  std::ranges::sort(found);
  return found;
}

// Rank 0 makes and publishes the directory; every rank writes its own file into it.
void Checkpoints::save(Session& session, const CheckpointState& state) {
  std::optional<PendingDirectory> pending;
  if (session.rank() == 0) {
    require_owned_();
    std::filesystem::create_directories(root_);
    pending.emplace(directory(state.step), Existing::Replace);
  }
  session.barrier({"the start of saving step", state.step});
  session.write(Task::Save, partial_name(directory(state.step)));
  session.barrier({"the end of saving step", state.step});
  if (pending) {
    write_text(pending->path() / "state.json", write_state(state));
    require_owned_();
    pending->publish();
    remove_old(state, session.heartbeat());
  }
  session.barrier({"the publishing of step", state.step});
}

void Checkpoints::save_state(Session& session, const CheckpointState& state) {
  if (session.rank() == 0) {
    require_owned_();
    write_text(directory(state.step) / "state.json", write_state(state));
    remove_old(state, session.heartbeat());
  }
  session.barrier({"the state of step", state.step});
}

// Removes old checkpoints. Each loses its name first, so that a reader finds it whole or not there. One that is being
// read waits for the next checkpoint. A directory may be in use otherwise, on NFS by a file that is still open; that
// ends no run.
void Checkpoints::remove_old(const CheckpointState& state, const Heartbeat& heartbeat) const {
  if (keep_ < 0) return;
  std::vector<int64_t> old = steps();
  std::erase(old, state.best_step);
  old.resize(old.size() - std::min(old.size(), static_cast<size_t>(keep_)));
  std::error_code error;
  for (const int64_t step : old) {
    if (FileLock::is_used(directory(step))) {
      say(fmt::format("{}: somebody reads it; the next checkpoint removes it\n", directory(step).string()));
      continue;
    }
    std::filesystem::path removed = directory(step);
    removed += kRemoved;
    std::filesystem::rename(directory(step), removed, error);
    if (error) say(fmt::format("{}: cannot be removed yet: {}\n", directory(step).string(), error.message()));
  }
  std::vector<std::filesystem::path> removed;
  for (const auto& entry : std::filesystem::directory_iterator(root_, error))
    if (const std::string name = entry.path().filename().string();
        name.starts_with(kPrefix) && name.ends_with(kRemoved))
      removed.push_back(entry.path());
  for (const std::filesystem::path& path : removed) try {
      remove_tree(path, heartbeat);
    } catch (const PeerError&) {
      throw;
    } catch (const DeviceError& refused) {
      say(fmt::format("{}; the next checkpoint tries it again\n", refused.what()));
    }
}

CheckpointState Checkpoints::last_state() const {
  const std::vector<int64_t> all = steps();
  const std::filesystem::path last = directory(all.back());
  return of_last([&] {
    const std::filesystem::path path = last / "state.json";
    const CheckpointState read = parse_state(read_text(path, kMaxStateFile), path.string());
    if (read.step != all.back())
      user_error("{}: found the state of step {}, expected that of step {}", last.string(), read.step, all.back());
    return read;
  });
}

CheckpointState Checkpoints::restore_last(Session& session, const CheckpointState& now) const {
  const std::filesystem::path directory = last().value();
  const CheckpointState state = last_state();
  refuse_other_fields(now.fields, state.fields, directory);
  of_last([&] { session.restore(directory); });
  return state;
}

Fields without_unsaid(Fields fields, const Fields& others) {
  std::erase_if(fields, [&](const Field& field) {
    const auto is_same = [&](const Field& other) { return other.group == field.group && other.name == field.name; };
    return field.name == kImagesField && std::ranges::none_of(others, is_same);
  });
  return fields;
}

void refuse_other_fields(const Fields& now, const Fields& saved, const std::filesystem::path& directory) {
  std::vector<std::string> words = differences(now, saved, kResultFields);
  const auto add = [&](const std::vector<std::string>& more) { words.insert(words.end(), more.begin(), more.end()); };
  add(differences(now, saved, {kBlockFields}));
  const std::vector<std::string> content =
      differences(without_unsaid(now, saved), without_unsaid(saved, now), {kContentFields});
  const std::vector<std::string> options = differences(now, saved, {kDataOptionFields});
  if (!content.empty() && !options.empty()) add(options);
  if (!content.empty() && options.empty())
    words.push_back(
        fmt::format("the content of the data has changed, or what the model's tokenizer and template make "
                    "of it ({})",
                    fmt::join(content, ", ")));
  if (words.empty()) return;
  const size_t more = words.size() - std::min(words.size(), kMostDifferences);
  words.resize(words.size() - more);
  user_error("{}: {}{}, as the run has it", directory.string(), fmt::join(words, "; "),
             more > 0 ? fmt::format("; and {} more", more) : "");
}

}  // namespace snug
