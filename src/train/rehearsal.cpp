#include "train/rehearsal.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <random>

#include "base/disk.h"
#include "base/option_name.h"
#include "base/rounding.h"
#include "train/checkpoint.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kProbe = 64 << 10;

// Writes a file, as that is what can be refused: by permissions, a quota, a read-only or broken disk, a limit on file
// sizes.
void write_and_remove(const fs::path& path, uint64_t longest) {
  static constexpr std::array<std::byte, kProbe> kZeros{};
  PendingFile probe(path, IoMode::Direct);
  probe.file().resize(longest);
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

// Says what will lie in an existing directory.
struct Part {
  fs::path directory;
  uint64_t bytes = 0;
  std::string what;
};

// Requires free room for the parts, with those on one file system together. `help` names what reduces them.
void require_free(const std::vector<Part>& parts, std::string_view help) {
  for (const Part& first : parts) {
    uint64_t needed = 0;
    std::vector<std::string> what;
    for (const Part& part : parts)
      if (part.bytes > 0 && device_of(part.directory) == device_of(first.directory)) {
        needed += part.bytes;
        what.push_back(part.what);
      }
    if (const uint64_t free = free_bytes(first.directory); free < needed)
      device_error("{}: found {} bytes free, expected {} for {}; {} names another place{}{}", first.directory.string(),
                   free, needed, fmt::join(what, ", "), option_name("out"), help.empty() ? "" : ", ", help);
  }
}

}  // namespace

int64_t SavingPlan::most_checkpoints() const {
  const int64_t kept = keep < 0 ? 1 : std::min(keep, saves - 1) + 1;
  return kept + (keeps_best ? 1 : 0);
}

std::string SavingPlan::what_keeps_fewer() const {
  return saves > 1 ? "a lower " + option_name("keep") + " keeps fewer, " + option_name("save_every") +
                         " 0 writes one alone, when the run ends"
                   : "";
}

void rehearse_saving(const SavingPlan& saving, Comm* comm, const std::function<void(const std::string&)>& log,
                     double longest_unseen) {
  const int rank = comm ? comm->topology().rank : 0;
  const fs::path root = Checkpoints(saving.out, saving.keep).root();
  std::optional<PendingDirectory> sign;  // of a new name: a rank that sees it has this directory
  const auto sign_of = [&](uint64_t word) { return root / fmt::format("sign-{:08x}", word); };
  const uint64_t word = std::random_device()();
  if (rank == 0) {
    fs::create_directories(root);
    if (comm) sign.emplace(sign_of(word), Existing::Refuse);
  }
  if (comm) {
    const uint64_t sign = comm->allgather_host(word, "the start of the rehearsal of saving")[0];
    const auto sees_it_within = [&](double seconds) {
      return is_directory_within(seconds, partial_name(sign_of(sign)), heartbeat_of(comm));
    };
    const double soon = longest_unseen / 20;
    if (!sees_it_within(soon)) {
      if (log)
        log(fmt::format("{}: rank {} does not see there yet what rank 0 has put there, and waits for up to {:g} s",
                        root.string(), rank, longest_unseen));
      if (!sees_it_within(longest_unseen - soon))
        user_error("{}: what rank 0 has put there rank {} does not find within {} s: {} is one for all processes",
                   root.string(), rank, longest_unseen, option_name("out"));
    }
  }
  write_and_remove(root / fmt::format("rehearsal-{}", rank), saving.largest_file);
  if (rank == 0) {
    // The next checkpoint is written beside those that are there; all of them together replace what an earlier start
    // left.
    const uint64_t one = saving.checkpoint_bytes, most = static_cast<uint64_t>(saving.most_checkpoints()) * one;
    const uint64_t there = saving.keep < 0 && !saving.replaces ? 0 : bytes_in(root);
    const uint64_t saved = std::max(saving.replaces ? 0 : one, most - std::min(most, there));
    const uint64_t freed = saving.replaces ? bytes_in(saving.out / "adapter") + bytes_in(saving.out / "model") : 0;
    const uint64_t exported = saving.export_bytes - std::min(saving.export_bytes, freed);
    const uint64_t count = ceil_div(saved, one);
    require_free({{saving.out, exported, fmt::format("an export of {} bytes", exported)},
                  {root, saved, fmt::format("{} checkpoint{} of {} bytes", count, count == 1 ? "" : "s", one)},
                  {existing_part(saving.offload_directory), saving.offloaded_bytes,
                   fmt::format("{} bytes that are offloaded to the disk", saving.offloaded_bytes)}},
                 count > 1 ? saving.what_keeps_fewer() : "");
  }
  if (comm) comm->barrier("the end of the rehearsal of saving");
}

}  // namespace snug
