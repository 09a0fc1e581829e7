#include "train/rehearsal.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/disk.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

// Beside tensors: state.json, a checksum, entries of directories.
constexpr uint64_t kSmallFiles = 64 << 10;

uint64_t bytes_of(const OutputFiles& files) {
  uint64_t bytes = kSmallFiles;
  for (const SafetensorsLayout& layout : files.layouts)
    bytes += (layout.file_bytes + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
  return bytes;
}

uint64_t bytes_in(const fs::path& directory) {
  uint64_t bytes = 0;
  std::error_code error;
  for (auto entry = fs::recursive_directory_iterator(directory, error); !error && entry != fs::end(entry);
       entry.increment(error))
    if (const uint64_t size = entry->file_size(error); !error) bytes += size;
  return bytes;
}

// The file itself is what can be refused: by rights, a quota, a read-only or broken disk.
void write_and_remove(const fs::path& path) {
  static constexpr std::array<std::byte, kSmallFiles> kZeros{};
  PendingFile probe(path, IoMode::Direct);
  probe.file().allocate(kZeros.size());
  probe.file().write(0, kZeros);
  probe.file().sync();
}

dev_t device_of(const fs::path& path) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0)
    device_error("{}: cannot be looked at: {}", path.string(), std::generic_category().message(errno));
  return status.st_dev;
}

void require_free(const fs::path& directory, uint64_t needed, std::string_view for_what, std::string_view help) {
  const uint64_t free = free_bytes(directory);
  if (free < needed)
    device_error("{}: found {} bytes free, expected {} for {}; {}", directory.string(), free, needed, for_what, help);
}

}  // namespace

void rehearse_saving(Session& session, const SavingPlan& saving) {
  const Checkpoints checkpoints(saving.out, saving.keep);
  const fs::path root = checkpoints.root();
  if (session.rank() == 0) fs::create_directories(root);
  session.barrier();
  write_and_remove(root / fmt::format("rehearsal-{}", session.rank()));
  const uint64_t one = session.sum_over_ranks(bytes_of(session.compiled().saved));
  if (session.rank() == 0) {
    // The next one is written beside those that are there; all of them together replace what an earlier start left.
    const int64_t kept = saving.keep < 0 ? 1 : std::min(saving.keep, saving.saves - 1) + 1;
    const auto most = static_cast<uint64_t>(kept) + (saving.keeps_best ? 1 : 0);
    const uint64_t there = saving.keep < 0 && !saving.replaces ? 0 : bytes_in(root);
    const uint64_t saved = std::max(saving.replaces ? 0 : one, most * one - std::min(most * one, there));
    const uint64_t results = bytes_of(session.compiled().exported) + saving.beside_export;
    const uint64_t freed = saving.replaces ? bytes_in(saving.out / "adapter") + bytes_in(saving.out / "model") : 0;
    const uint64_t exported = results - std::min(results, freed);
    const uint64_t count = (saved + one - 1) / one;
    const std::string what = fmt::format("{} checkpoint{} of {} bytes", count, count == 1 ? "" : "s", one);
    constexpr std::string_view kHelp = "--out names another place, a lower --keep keeps fewer";
    if (device_of(root) == device_of(saving.out)) {
      require_free(saving.out, saved + exported, fmt::format("{} and an export of {}", what, exported), kHelp);
    } else {
      require_free(root, saved, what, kHelp);
      require_free(saving.out, exported, "the export", "--out names another place");
    }
  }
  session.barrier();
}

}  // namespace snug
