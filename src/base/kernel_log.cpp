#include "base/kernel_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <ctime>

#include "base/clock.h"

namespace snug {
namespace {

constexpr size_t kMostEvents = 1000, kNameBytes = 64;

// Takes text up to `end` off the front, and what follows it; nothing if it is not there.
std::optional<std::string_view> take_to(std::string_view& text, std::string_view end) {
  const size_t at = text.find(end);
  if (at == text.npos) return std::nullopt;
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(at + end.size());
  return part;
}

template <class T>
std::optional<T> number(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

// Takes the time off a line of either kind.
std::optional<double> take_time(std::string_view& line) {
  if (line.starts_with('[')) {
    line.remove_prefix(1);
    const auto time = take_to(line, "]");
    return time ? number<double>(*time) : std::nullopt;
  }
  auto head = take_to(line, ";");
  if (!head || !take_to(*head, ",") || !take_to(*head, ",")) return std::nullopt;
  const auto microseconds = number<uint64_t>(head->substr(0, head->find(',')));
  return microseconds ? std::optional(static_cast<double>(*microseconds) * 1e-6) : std::nullopt;
}

std::string plain_name(std::string_view text) {
  std::string name(text.substr(0, kNameBytes));
  for (char& c : name)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  return name;
}

// Returns the kilobytes behind a key such as "anon-rss:".
uint64_t kilobytes(std::string_view text, std::string_view key) {
  const size_t at = text.find(key);
  if (at == text.npos) return 0;
  text.remove_prefix(at + key.size());
  const auto value = number<uint64_t>(text.substr(0, text.find_first_not_of("0123456789")));
  return value.value_or(0);
}

std::optional<KernelEvent> killed(std::string_view text, double seconds) {
  const std::string_view before = text;
  if (!take_to(text, "Killed process ")) return std::nullopt;
  const auto process = take_to(text, " (");
  const auto name = take_to(text, ")");
  if (!process || !name) return std::nullopt;
  KernelEvent event{.seconds = seconds, .name = plain_name(*name)};
  event.process = number<int64_t>(*process).value_or(0);
  event.resident = kilobytes(text, "anon-rss:") * 1024;
  event.of_group = before.starts_with("Memory cgroup");
  return event;
}

std::optional<KernelEvent> fault(std::string_view text, double seconds) {
  if (!take_to(text, "NVRM: Xid (")) return std::nullopt;
  const auto device = take_to(text, "): ");
  if (!device) return std::nullopt;
  const auto xid = number<int>(text.substr(0, text.find_first_not_of("0123456789")));
  if (!xid) return std::nullopt;
  KernelEvent event{.seconds = seconds, .xid = *xid, .device = plain_name(*device)};
  if (take_to(text, "pid="))
    event.process = number<int64_t>(text.substr(0, text.find_first_not_of("0123456789"))).value_or(0);
  if (take_to(text, "name=")) event.name = plain_name(text.substr(0, text.find(',')));
  return event;
}

// Says what the faults are that people meet, and what helps (NVIDIA, "XID Errors").
std::string_view meaning(int xid) {
  struct Meaning {
    int xid;
    std::string_view words;
  };
  static constexpr std::array<Meaning, 18> kMeanings{{
      {13, "a kernel did what it may not, often an address out of bounds"},
      {31, "a kernel read or wrote an address that is not mapped"},
      {32, "the driver was sent a broken command"},
      {43, "a program's own fault stopped its work; the GPU is sound"},
      {45, "a program's work was cleared away, as after another fault or when it is killed"},
      {46, "the GPU no longer answered in time"},
      {48, "two bits of its memory were wrong at once; it must be reset, and replaced if that comes again"},
      {62, "its own controller stopped; it must be reset"},
      {63, "a row of its memory was found bad and is replaced at the next reset"},
      {64, "a bad row of its memory could not be replaced; it must be reset, and looked at"},
      {74, "an NVLink failed; cable, bridge or the GPU at its end is to be looked at"},
      {79, "it fell off the bus: power, heat or its seat; the machine must be restarted"},
      {92, "many single bits of its memory were wrong; they were mended"},
      {94, "memory was wrong, and that stayed within one program, which ended"},
      {95, "memory was wrong, and that did not stay within one program; it must be reset"},
      {109, "work on it was ended, as a switch between programs took too long"},
      {119, "its own processor no longer answered the driver; it must be reset"},
      {154, "the driver says what it needs to go on: a reset, or a restart of the machine"},
  }};
  for (const Meaning& one : kMeanings)
    if (one.xid == xid) return one.words;
  return "NVIDIA's list of Xid errors says what it means";
}

}  // namespace

std::vector<KernelEvent> parse_kernel_log(std::string_view text) {
  std::vector<KernelEvent> events;
  while (!text.empty() && events.size() < kMostEvents) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const auto seconds = take_time(line);
    if (!seconds) continue;
    while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
    if (auto event = killed(line, *seconds))
      events.push_back(std::move(*event));
    else if (auto other = fault(line, *seconds))
      events.push_back(std::move(*other));
  }
  return events;
}

std::optional<std::vector<KernelEvent>> read_kernel_log() {
  constexpr size_t kMostBytes = size_t{16} << 20;
  const int log = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (log < 0) return std::nullopt;
  std::string text;
  std::array<char, 8192> record{};  // a read returns one record
  while (text.size() < kMostBytes) {
    const ssize_t count = read(log, record.data(), record.size());
    if (count < 0 && errno == EPIPE) continue;  // older ones were overwritten meanwhile
    if (count <= 0) break;
    text.append(record.data(), static_cast<size_t>(count));
    if (text.back() != '\n') text += '\n';
  }
  const bool refused = text.empty() && errno == EPERM;
  close(log);
  if (refused) return std::nullopt;
  return parse_kernel_log(text);
}

std::string words_of(const KernelEvent& event) {
  timespec since_start{};
  clock_gettime(CLOCK_MONOTONIC, &since_start);
  const std::time_t when = std::time(nullptr) - since_start.tv_sec + static_cast<std::time_t>(event.seconds);
  const std::string day = local_time(when);
  const std::string who = event.name.empty()   ? fmt::format("process {}", event.process)
                          : event.process == 0 ? event.name
                                               : fmt::format("{} (process {})", event.name, event.process);
  if (!event.xid)
    return fmt::format("on {} the kernel killed {}, {:.1f} GiB resident: {}", day, who,
                       static_cast<double>(event.resident) / (1 << 30),
                       event.of_group ? "the memory that its control group may take was used up"
                                      : "the memory of the machine was used up");
  return fmt::format("on {} GPU {} had fault {} (Xid){}: {}", day, event.device, *event.xid,
                     event.process != 0 ? fmt::format(", met by {}", who) : "", meaning(*event.xid));
}

}  // namespace snug
