#include "train/checkpoint.h"

#include <algorithm>
#include <charconv>

#include "base/disk.h"
#include "base/file.h"
#include "base/hash.h"

namespace snug {
namespace {

constexpr std::string_view kPrefix = "step-";
constexpr uint64_t kMaxStateFile = 1 << 16;

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

// Rank 0 makes and publishes the directory, every rank writes its own file into it.
void Checkpoints::save(Session& session, const CheckpointState& state) {
  std::optional<PendingDirectory> pending;
  if (session.rank() == 0) {
    std::filesystem::create_directories(root_);
    pending.emplace(directory(state.step), Existing::Replace);
  }
  session.barrier({"the start of saving step", state.step});
  session.write(Task::Save, partial_name(directory(state.step)));
  session.barrier({"the end of saving step", state.step});
  if (pending) {
    write_text(pending->path() / "state.json", write_state(state));
    pending->publish();
    remove_old(state, session.alive());
  }
  session.barrier({"the publishing of step", state.step});
}

void Checkpoints::remove_old(const CheckpointState& state, const Alive& alive) const {
  if (keep_ < 0) return;
  std::vector<int64_t> old = steps();
  std::erase(old, state.best_step);
  old.resize(old.size() - std::min(old.size(), static_cast<size_t>(keep_)));
  for (const int64_t step : old) remove_tree(directory(step), alive);
}

CheckpointState Checkpoints::restore_last(Session& session, const CheckpointState& now) const {
  const std::vector<int64_t> all = steps();
  const std::filesystem::path last = directory(all.back());
  const CheckpointState state = of_last([&] {
    const std::filesystem::path path = last / "state.json";
    const CheckpointState read = parse_state(read_text(path, kMaxStateFile), path.string());
    if (read.step != all.back())
      user_error("{}: found the state of step {}, expected that of step {}", last.string(), read.step, all.back());
    return read;
  });
  auto expect = [&](uint64_t found, uint64_t expected, std::string_view what) {
    if (found != expected)
      user_error("{}: made under {} (found {}, expected {}); resume with the options of the run's job.yaml",
                 last.string(), what, hex(found), hex(expected));
  };
  expect(state.numerics_hash, now.numerics_hash, "other numerics");
  expect(state.data_order, now.data_order, "other data, or data in another order");
  of_last([&] { session.restore(last); });
  return state;
}

}  // namespace snug
