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
#include "base/size_text.h"
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

// Returns what of the plan takes room: an export, checkpoints, what is offloaded. The next checkpoint is written beside
// those that are there; all of them together replace what an earlier start left.
std::vector<Part> parts_of(const SavingPlan& saving, uint64_t there, uint64_t freed) {
  const uint64_t one = saving.checkpoint_bytes, most = static_cast<uint64_t>(saving.most_checkpoints()) * one;
  const uint64_t saved = std::max(saving.replaces ? 0 : one, most - std::min(most, there));
  const uint64_t exported = saving.export_bytes - std::min(saving.export_bytes, freed);
  const uint64_t count = one > 0 ? ceil_div(saved, one) : 0;
  const std::string which = saved == most ? saving.which_checkpoints() : "";
  return {{existing_part(saving.out), exported, fmt::format("an export of {}", format_size(exported))},
          {existing_part(Checkpoints(saving.out, saving.keep).root()), saved,
           fmt::format("{} checkpoint{} of {}{}", count, count == 1 ? "" : "s", format_size(one), which)},
          {existing_part(saving.offload_directory), saving.offloaded_bytes,
           fmt::format("{} that are offloaded to the disk", format_size(saving.offloaded_bytes))}};
}

// Compares the parts that lie together with what is free for them.
std::optional<LackOfRoom> lack_of(const std::vector<const Part*>& parts, const std::string& where, uint64_t free,
                                  const SavingPlan& saving) {
  LackOfRoom lack{.free = free, .needed = 0, .words = ""};
  std::vector<std::string_view> what;
  for (const Part* part : parts)
    if (part->bytes > 0) {
      lack.needed += part->bytes;
      what.push_back(part->what);
    }
  if (lack.needed <= free) return std::nullopt;
  const std::string help = saving.what_keeps_fewer();
  lack.words = fmt::format("{}: found {} ({} bytes) free, expected {} ({} bytes) for {}; {} names another place{}{}",
                           where, format_size(free), free, format_size(lack.needed), lack.needed, fmt::join(what, ", "),
                           option_name("out"), help.empty() ? "" : ", ", help);
  return lack;
}

}  // namespace

int64_t SavingPlan::most_checkpoints() const {
  const int64_t kept = keep < 0 ? 1 : std::min(keep, saves - 1) + 1;
  return kept + (keeps_best ? 1 : 0);
}

std::string SavingPlan::which_checkpoints() const {
  if (keep < 0) return " (all are kept)";
  std::vector<std::string> which;
  if (const int64_t kept = std::min(keep, saves - 1); kept > 0) which.push_back(fmt::format("the last {}", kept));
  if (keeps_best) which.emplace_back("the best");
  if (which.empty()) return "";
  return fmt::format(" ({}, the one being written)", fmt::join(which, ", "));
}

std::string SavingPlan::what_keeps_fewer() const {
  return saves > 1 ? "a lower " + option_name("keep") + " keeps fewer, " + option_name("save_every") +
                         " 0 writes one alone, when the run ends"
                   : "";
}

std::optional<LackOfRoom> lack_of_room(const SavingPlan& saving, std::optional<uint64_t> elsewhere) {
  const auto pointers = [](const std::vector<Part>& parts, const auto& lies_there) {
    std::vector<const Part*> chosen;
    for (const Part& part : parts)
      if (lies_there(part)) chosen.push_back(&part);
    return chosen;
  };
  if (elsewhere)
    return lack_of(pointers(parts_of(saving, 0, 0), [](const Part&) { return true; }), "there", *elsewhere, saving);
  const uint64_t there =
      saving.keep < 0 && !saving.replaces ? 0 : bytes_in(Checkpoints(saving.out, saving.keep).root());
  const uint64_t freed = saving.replaces ? bytes_in(saving.out / "adapter") + bytes_in(saving.out / "model") : 0;
  const std::vector<Part> parts = parts_of(saving, there, freed);
  for (const Part& first : parts) {
    const auto beside_it = [&](const Part& part) { return device_of(part.directory) == device_of(first.directory); };
    if (auto lack = lack_of(pointers(parts, beside_it), first.directory.string(), free_bytes(first.directory), saving))
      return lack;
  }
  return std::nullopt;
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
  if (rank == 0)
    if (const auto lack = lack_of_room(saving)) device_error("{}", lack->words);
  if (comm) comm->barrier("the end of the rehearsal of saving");
}

}  // namespace snug
