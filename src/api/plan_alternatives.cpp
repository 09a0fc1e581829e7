#include "api/plan_alternatives.h"

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
std::string percent_of(const Planned& planned, const Arrangement& other) {
  return fmt::format("{:.0f}", 100 * other.step_seconds / planned.shown().step_seconds);
}

// Returns "a step takes 104 % of the time, device and host together 12.30 GiB: 2 passes of 8 blocks, ..."; without
// prices it begins with the bytes.
std::string comparison_text(const Planned& planned, const Arrangement& other) {
  const std::string percent = percent_of(planned, other);
  const std::string time =
      planned.pricing.measured()
          ? fmt::format("a step takes {}, ", percent == "100" ? "as long" : percent + " % of the time")
          : "";
  return fmt::format("{}{}: {}\n", time, taken(planned, other), other.words);
}

// Returns "faster" or "second best"; without prices neither is known.
std::string_view place_of(const Planned& planned, const Arrangement& other) {
  if (!planned.pricing.measured()) return "also fits";
  return other.step_seconds < planned.shown().step_seconds ? "faster" : "second best";
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
  std::string text;
  for (size_t i = 0; i < planned.fit.tried.size(); i++)
    if (i != planned.fit.chosen && planned.fit.tried[i].fits)
      text += fmt::format("{:<13} {}", place_of(planned, planned.fit.tried[i]),
                          comparison_text(planned, planned.fit.tried[i]));
  const bool priced = planned.pricing.measured();
  const std::string_view end = priced ? " " : ": ";
  if (planned.less)
    text += fmt::format("{:<13} with 25 % less{}{}", "less memory", end, comparison_text(planned, *planned.less));
  if (!planned.more) return text;
  const int ranks = node_ranks(planned);
  const bool shared = planned.caps.shared;  // then the memory of a node is what grows
  const std::string_view each = shared || ranks == 1 ? "" : " each";
  for (const Alternative& more : *planned.more)
    text += fmt::format("{:<13} with {} GiB more{}{}{}", "more memory", more.gigabytes * (shared ? ranks : 1), each,
                        end, comparison_text(planned, more.arrangement));
  if (planned.more->empty())
    text += fmt::format("{:<13} nothing {} was found with up to {} GiB{}\n", "more memory",
                        priced ? "faster" : "that is faster by rough rates", kMostMore * (shared ? ranks : 1), each);
  return text;
}

std::string changes_text(const Planned& planned) {
  std::string text;
  for (const Change& change : planned.changes)
    text += fmt::format("{:<13} {} ({}): {}, {}\n", "would fit", change.option, change.effect,
                        taken(planned, change.arrangement), change.arrangement.words);
  return text;
}

}  // namespace snug
