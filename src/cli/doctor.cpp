// Implements snug doctor: measures this machine into a profile.
#include "cli/doctor.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "api/job.h"
#include "api/run_directory.h"
#include "api/target.h"
#include "api/text.h"
#include "base/file.h"
#include "base/kernel_log.h"
#include "base/say.h"
#include "base/size_text.h"
#include "cli/commands.h"
#include "measure/measure.h"

namespace snug {
namespace {

double gigabytes(double bytes_per_second) { return bytes_per_second / 1e9; }

// Returns the rate of a product; 0 if products of these sizes were not measured.
double product_flops(const Rates& rates, DType dtype, const std::vector<int64_t>& sizes, int64_t m, int64_t n,
                     int64_t k) {
  for (const int64_t size : {m, n, k})
    if (std::ranges::count(sizes, size) == 0) return 0;
  auto place = [&](int64_t size) { return static_cast<size_t>(std::ranges::find(sizes, size) - sizes.begin()); };
  for (const ProductRates& table : rates.products)
    if (table.dtype == dtype && table.transpose_b && !table.addend)
      return table.flops[(place(m) * sizes.size() + place(n)) * sizes.size() + place(k)];
  return 0;
}

constexpr int64_t kShownHead = 64;

// Returns the rate of attention; 0 if documents of this length were not measured.
double attention_flops(const Rates& rates, DType dtype, bool backward, double length) {
  for (const AttentionRates& table : rates.attention) {
    if (table.dtype != dtype || table.backward != backward || table.head_dim != kShownHead) continue;
    const auto found = std::ranges::find(table.flops.sizes, length);
    if (found != table.flops.sizes.end())
      return table.flops.rates[static_cast<size_t>(found - table.flops.sizes.begin())];
  }
  return 0;
}

// Returns the longest documents with which attention was measured, of teams and of cards; the longer first.
std::set<double, std::greater<>> attention_lengths(const Machine& machine) {
  std::set<double, std::greater<>> lengths;
  const auto take = [&](const Rates& rates) {
    if (!rates.attention.empty()) lengths.insert(rates.attention[0].flops.sizes.back());
  };
  for (const TeamRates& team : machine.teams) take(team);
  if (machine.cards) take(machine.cards->rates);
  return lengths;
}

std::string row(std::string_view what, const Machine& machine, const std::function<std::string(const Rates&)>& cell,
                std::string_view scale = "") {
  std::string text = fmt::format("  {:<34}", what);
  for (const TeamRates& team : machine.teams) text += fmt::format("{:>16}", cell(team));
  if (machine.cards) text += fmt::format("{:>16}", cell(machine.cards->rates));
  return text + (scale.empty() ? "" : fmt::format("   {}", scale)) + "\n";
}

std::string flops_text(double flops) { return flops > 0 ? fmt::format("{:.0f} GFLOP/s", flops / 1e9) : ""; }
std::string bytes_text(double bytes) { return fmt::format("{:.1f} GB/s", gigabytes(bytes)); }

std::string memory_text(const Machine& machine) {
  std::string text = fmt::format("{:<13} {}, {} core{}\n", "processor", machine.processor, machine.cores,
                                 machine.cores == 1 ? "" : "s");
  text += fmt::format("{:<13} {}, {} free for this process\n", "memory", format_size(machine.memory_bytes),
                      format_size(machine.free_bytes));
  if (machine.group_limit_bytes)
    text += fmt::format("{:<13} a control group allows {}: beyond it the kernel ends the process; plans stay below\n",
                        "limit", format_size(*machine.group_limit_bytes));
  const Machine::Disk& disk = machine.disk;
  text += fmt::format("{:<13} {}: reads {}, writes {} (one NVMe disk: 3 to 7), {} free\n", "disk", disk.directory,
                      bytes_text(disk.read), bytes_text(disk.write), format_size(disk.free_bytes));
  text += fmt::format("{:<13} {}\n", "direct I/O",
                      disk.direct ? "granted: files do not pass through memory"
                                  : "REFUSED by this file system: files pass through the page cache, which is dropped "
                                    "behind; rates are those of the cache");
  if (const auto& cards = machine.cards) {
    text +=
        fmt::format("{:<13} {} x {}: {}, {} free; context and libraries take {}\n", "GPUs", cards->count, cards->name,
                    format_size(cards->memory_bytes), format_size(cards->free_bytes), format_size(cards->driver_bytes));
    text += fmt::format("{:<13} {}: the first GPU, right after it was measured\n", "condition",
                        cards->condition.empty() ? "not told by its driver" : cards->condition);
    if (cards->count > 1)
      for (const auto& [name, link] : {std::pair("link", cards->copies), std::pair("NCCL", cards->nccl)})
        text += fmt::format("{:<13} {} to each GPU from the others, all at once; takes {} of each{}\n", name,
                            bytes_text(link.rate), format_size(link.bytes),
                            link.blocks > 0 ? fmt::format(" and up to {} blocks of threads", link.blocks) : "");
    text +=
        fmt::format("{:<13} {} to each GPU from other nodes, {:.0f} us for each: said by the makers, not measured\n",
                    "network", bytes_text(cards->node_link), 1e6 * cards->node_latency);
    text += fmt::format("{:<13} {} to a GPU, {} back, both at once (PCIe 4: 25, PCIe 5: 51)\n", "bus",
                        bytes_text(cards->bus.to_device), bytes_text(cards->bus.from_device));
    if (cards->count > 1)
      text += fmt::format("{:<13} {} to each GPU, {} back, all of them at once\n", "bus, shared",
                          bytes_text(cards->shared_bus.to_device), bytes_text(cards->shared_bus.from_device));
  }
  return text;
}

std::string rates_text(const Machine& machine) {
  std::string text = fmt::format("{:<36}", "rates");
  for (const TeamRates& team : machine.teams)
    text += fmt::format("{:>16}", fmt::format("{} thread{}", team.threads, team.threads == 1 ? "" : "s"));
  if (machine.cards) text += fmt::format("{:>16}", "a GPU");
  text += "   for scale\n";
  const std::vector<int64_t>& sizes = machine.product_sizes;
  text += row(
      "memory, copied (read + written)", machine, [](const Rates& t) { return bytes_text(t.copy.rates.back()); },
      "DDR5, a channel: 38; A100: 1,555");
  for (const DType dtype : {DType::BF16, DType::F32}) {
    auto product = [&](int64_t m, int64_t n, int64_t k) {
      return [&, m, n, k](const Rates& t) { return flops_text(product_flops(t, dtype, sizes, m, n, k)); };
    };
    for (const int64_t size : machine.cards ? std::vector<int64_t>{4096, 1024} : std::vector<int64_t>{1024})
      text += row(
          fmt::format("product, {}, {} x {} x {}", name(dtype), size, size, size), machine, product(size, size, size),
          dtype == DType::BF16 ? "A100: 312,000; a core with AMX: 1,500" : "A100: 19,500; a core with AVX-512: 100");
    text += row(fmt::format("product, {}, 1024 x 16 x 1024", name(dtype)), machine, product(1024, 16, 1024),
                "an adapter's");
    for (const bool backward : {false, true})
      for (const double length : attention_lengths(machine))
        text += row(
            fmt::format("attention{}, {}, {}", backward ? " backward" : "", name(dtype), length), machine,
            [&](const Rates& t) { return flops_text(attention_flops(t, dtype, backward, length)); },
            fmt::format("documents of {} tokens, heads of {}", length, kShownHead));
  }
  if (machine.cards && machine.cards->rates.fp8_flops > 0)
    text += row(
        "product, fp8, 4096 x 4096 x 4096", machine,
        [&](const Rates& t) { return flops_text(product_flops(t, DType::U8, sizes, 4096, 4096, 4096)); },
        "H100: 1,979,000");
  for (const std::string_view kind : {"rms_norm", "swiglu", "cross_entropy", "adamw"})
    text += row(fmt::format("{}, bf16", kind), machine, [&](const Rates& t) {
      const auto found =
          std::ranges::find_if(t.kinds, [&](const KindRates& k) { return k.kind == kind && k.dtype == DType::BF16; });
      return found == t.kinds.end() ? std::string() : bytes_text(found->bytes.rates.back());
    });
  text += row("an op, before it does anything", machine,
              [](const Rates& t) { return fmt::format("{:.1f} us", 1e6 * t.op_seconds); });
  return text;
}

}  // namespace

std::string machine_text(const Machine& machine) { return memory_text(machine) + rates_text(machine); }

namespace {

std::string unused_text() {
  const std::string unused = unused_cards();
  return unused.empty() ? "" : fmt::format("{:<13} {}\n", "GPUs", unused);
}

std::string libraries_text() {
  std::string text;
  for (const std::string& library : card_libraries())
    text += fmt::format("{:<13} {}\n", text.empty() ? "GPU libraries" : "", library);
  return text;
}

// Returns a line for each of the last processes that the kernel killed for memory, and faults of GPUs.
std::string kernel_text() {
  constexpr size_t kMost = 8;
  const std::optional<std::vector<KernelEvent>> events = read_kernel_log();
  if (!events)
    return fmt::format(
        "{:<13} this user may not read it: 'sudo dmesg' has what was killed for memory, and GPUs' faults\n",
        "kernel's log");
  std::string text;
  for (size_t i = events->size() - std::min(events->size(), kMost); i < events->size(); i++)
    text += fmt::format("{:<13} {}\n", text.empty() ? "kernel's log" : "", words_of((*events)[i]));
  return text.empty() ? fmt::format("{:<13} nothing was killed for memory, and no GPU had a fault\n", "kernel's log")
                      : text;
}

}  // namespace

int doctor_command(const JobConfig& options, const CommandFlags& flags) {
  MeasureOptions what;
  what.threads = thread_count(options);
  what.disk_directory = flags.disk_directory;
  if (!std::filesystem::is_directory(what.disk_directory))
    user_error("--disk-dir: found '{}', expected a directory", flags.disk_directory);
  const std::string out = options.out.empty() ? "machine.json" : options.out;
  require_writable_file(out, "--out");
  what.progress = [](const std::string& text) { say(fmt::format("measuring {}\n", text)); };
  Machine machine = measure_machine(what);
  if (std::optional<Cards> cards = cards_here()) {
    what.progress(fmt::format("GPU: {}", cards->name));
    measure_cards_here(*cards, machine.product_sizes);
    if (cards->count > 1) {
      const auto [link, by_nccl] = measure_links_here(*cards);
      for (size_t i = 0; i < link.sizes.size(); i++)
        what.progress(fmt::format("link of {} GPUs: {} in messages of {}", cards->count, bytes_text(link.rates[i]),
                                  format_size(static_cast<uint64_t>(link.sizes[i]))));
      for (const CardLink& nccl : by_nccl)
        what.progress(fmt::format("link of {} GPUs by NCCL with {} blocks of threads: {}, takes {}", cards->count,
                                  nccl.blocks, bytes_text(nccl.rate), format_size(nccl.bytes)));
    }
    machine.cards = std::move(cards);
  }
  const std::string json = write_machine(machine);
  write_text(out, json);
  if (flags.json)
    fmt::print("{}", json);
  else
    fmt::print("{}{}{}{}{}{}: prices steps with --machine {}\n", machine_text(machine),
               limits_text(what.disk_directory), unused_text(), libraries_text(), kernel_text(), out, out);
  return 0;
}

}  // namespace snug
