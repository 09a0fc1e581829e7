#include "api/plan_alternatives.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "api/plan_bytes.h"
#include "base/size_text.h"

namespace snug {
namespace {

// Returns what is capped, and how much of it an arrangement takes: "the device of a rank 12.30 GiB, the host of a node
// 1.00 GiB".
std::string taken(const Planned& planned, const Arrangement& a) {
  std::vector<std::string> parts;
  for (const Need& need : needs(a.forecast, a.cut.ranks, planned.caps))
    parts.push_back(fmt::format("{} {}", need.what, format_size(need.bytes)));
  return fmt::format("{}", fmt::join(parts, ", "));
}

// Returns how long a step takes beside the chosen one's, in whole percent.
int64_t percent_of(const Planned& planned, const Arrangement& other) {
  return std::llround(100 * other.step_seconds / planned.shown().step_seconds);
}

// Returns "a step takes 104 % of the time, device and host together 12.30 GiB: 2 passes of 8 blocks, ..."; without
// prices it begins with the bytes.
std::string comparison_text(const Planned& planned, const Arrangement& other) {
  const int64_t percent = percent_of(planned, other);
  const std::string time =
      planned.pricing.measured()
          ? fmt::format("a step takes {}, ", percent == 100 ? "as long" : fmt::format("{} % of the time", percent))
          : "";
  return fmt::format("{}{}: {}", time, taken(planned, other), other.words);
}

// Returns all that an arrangement takes of what is capped.
uint64_t bytes_of(const Planned& planned, const Arrangement& a) {
  uint64_t bytes = 0;
  for (const Need& need : needs(a.forecast, a.cut.ranks, planned.caps)) bytes += need.bytes;
  return bytes;
}

// Returns one line for arrangements of one kind: the fastest, and of those that differ by less than a percent the
// smallest. The others offer what it does, or less, and are counted; plan_json() has all.
std::string best_text(const Planned& planned, std::string_view kind, const std::vector<const Arrangement*>& all) {
  if (all.empty()) return "";
  const auto order = [&](const Arrangement* a) {
    return std::pair(planned.pricing.measured() ? percent_of(planned, *a) : 0, bytes_of(planned, *a));
  };
  const size_t more = all.size() - 1;
  return fmt::format("{:<13} {}{}\n", kind, comparison_text(planned, **std::ranges::min_element(all, {}, order)),
                     more == 0   ? ""
                     : more == 1 ? " (1 more fits)"
                                 : fmt::format(" ({} more fit)", more));
}

// Returns what else fits and was worked out: an arrangement that is faster, by half a percent at least, and one that is
// slower; without prices one that is neither.
std::string tried_text(const Planned& planned) {
  std::vector<const Arrangement*> faster, slower;
  for (size_t i = 0; i < planned.fit.tried.size(); i++) {
    const Arrangement& other = planned.fit.tried[i];
    if (i == planned.fit.chosen || !other.fits) continue;
    if (!planned.pricing.measured() || other.step_seconds >= planned.shown().step_seconds)
      slower.push_back(&other);
    else if (percent_of(planned, other) < 100)
      faster.push_back(&other);
  }
  return best_text(planned, "faster", faster) +
         best_text(planned, planned.pricing.measured() ? "second best" : "also fits", slower);
}

// Returns what more memory would gain, each amount that gains a percent beyond the one before.
std::string more_text(const Planned& planned) {
  const bool priced = planned.pricing.measured();
  const int ranks = node_ranks(planned);
  const bool shared = planned.caps.shared;  // then the memory of a node is what grows
  const std::string_view each = shared || ranks == 1 ? "" : " each";
  std::string text;
  int64_t before = 100;
  for (const Alternative& more : *planned.more) {
    const int64_t percent = percent_of(planned, more.arrangement);
    if (priced && percent >= std::exchange(before, percent)) continue;
    text += fmt::format("{:<13} with {} GiB more{}{} {}\n", "more memory", more.gigabytes * (shared ? ranks : 1), each,
                        priced ? "" : ":", comparison_text(planned, more.arrangement));
  }
  if (!text.empty()) return text;
  return fmt::format("{:<13} nothing {} was found with up to {} GiB{}\n", "more memory",
                     priced ? "faster" : "that is faster by rough rates", kMostMore * (shared ? ranks : 1), each);
}

}  // namespace

nlohmann::ordered_json alternative_json(const Planned& planned, const Arrangement& other) {
  nlohmann::ordered_json json{{"arrangement", other.words},
                              {"fits", other.fits},
                              {"device_bytes", device_bytes(planned, other.forecast)},
                              {"host_bytes", node_bytes(planned, other.forecast, Space::Host)},
                              {"disk_bytes", node_bytes(planned, other.forecast, Space::Disk)},
                              {"relative_time", nullptr}};
  if (planned.pricing.measured()) json["relative_time"] = other.step_seconds / planned.shown().step_seconds;
  return json;
}

std::string choice_text(const Planned& planned) {
  const Arrangement& fastest = planned.fit.tried.front();
  if (!planned.fit.chosen || !fastest.fits || fastest.step_seconds >= planned.shown().step_seconds) return "";
  if (!planned.pricing.measured())
    return fmt::format("{:<13} the smallest of all that are about as fast as the fastest by rough rates\n", "choice");
  return fmt::format("{:<13} the simplest of all within {:g} % of the fastest, whose step takes {:.1f} % of the time\n",
                     "choice", 100 * (time_margin(planned.pricing) - 1),
                     100 * fastest.step_seconds / planned.shown().step_seconds);
}

std::string alternatives_text(const Planned& planned) {
  std::string text = tried_text(planned);
  if (planned.less)
    text += fmt::format("{:<13} with 25 % less{} {}\n", "less memory", planned.pricing.measured() ? "" : ":",
                        comparison_text(planned, *planned.less));
  return planned.more ? text + more_text(planned) : text;
}

std::string changes_text(const Planned& planned) {
  std::string text;
  for (const Change& change : planned.changes)
    text += fmt::format("{:<13} {} ({}): {}, {}\n", "would fit", change.option, change.effect,
                        taken(planned, change.arrangement), change.arrangement.words);
  return text;
}

}  // namespace snug
