#include "report/explain.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "base/option_name.h"
#include "base/size_text.h"
#include "base/statistics.h"

namespace snug {
namespace {

constexpr size_t kWarmUp = 2;
constexpr double kSlower = 1.25;   // times the plan's seconds
constexpr double kComputes = 0.7;  // share of a step in which a lane computes that nothing holds up

std::vector<double> finite(const std::vector<double>& values, size_t begin, size_t end) {
  std::vector<double> kept;
  for (size_t i = begin; i < std::min(end, values.size()); i++)
    if (std::isfinite(values[i])) kept.push_back(values[i]);
  return kept;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

std::string job_value(const RunFiles& run, std::string_view key) {
  const auto found = std::ranges::find(run.job, key, [](const auto& line) { return std::string_view(line.first); });
  return found == run.job.end() ? "" : found->second;
}

class Explainer {
 public:
  Explainer(const RunFiles& run, const Circumstances& circumstances)
      : run_(run), metrics_(run.metrics), circumstances_(circumstances) {}

  std::vector<Finding> explain_beginning() {
    explain_held("it is loading, or making ready", "before its first step");
    if (!circumstances_.held) {
      say("end",
          "it ended before its first step, by itself, as it left no .owner: it was refused, interrupted or failed, and "
          "the last line of its log, which is its standard error, says why");
      explain_disk();
    }
    return std::move(findings_);
  }

  std::vector<Finding> explain() {
    explain_end();
    if (!metrics_.steps.empty()) {
      explain_loss();
      explain_speed();
      explain_memory();
    }
    explain_kernels();
    return std::move(findings_);
  }

 private:
  template <class... Args>
  void say(std::string_view subject, fmt::format_string<Args...> text, Args&&... args) {
    findings_.push_back({std::string(subject), fmt::format(text, std::forward<Args>(args)...)});
  }
  double last_step() const { return metrics_.steps.empty() ? 0 : metrics_.steps.back(); }

  // ---- What became of it ----

  // Returns how far it came: "before its first step", "after step 7".
  std::string how_far() const {
    return metrics_.steps.empty() ? "before its first step" : fmt::format("after step {}", last_step());
  }

  // Says of a process that holds the directory whether it lives.
  void explain_held(std::string_view what_it_does, const std::string& how_far) {
    if (!circumstances_.held) return;
    const HeldBy& held = *circumstances_.held;
    if (held.lives) {
      say("end", "it goes on: {}; {}", held.words, what_it_does);
      return;
    }
    say("end", "it was killed {}, or its machine stopped: {}, did not end by itself", how_far, held.words);
    explain_kill(held);
  }

  // A full disk keeps a run from writing how it ended.
  void explain_disk() {
    constexpr uint64_t kFull = 1 << 20;
    if (!circumstances_.free_bytes) return;
    if (const uint64_t free = *circumstances_.free_bytes; free < kFull)
      say("end", "its disk is full, {} bytes are free: that is what ends a run so", free);
    else
      say("end", "its disk has {} free now; if it was full then, the last line of its log says so", format_size(free));
  }

  // Says of a run without end.json and .owner what its other files tell.
  void explain_silence() {
    say("end",
        "it ended {} and wrote no end.json, though by itself, as it left no .owner: its disk was full or could not be "
        "written any longer, or its directory was copied as it ran; the last line of its log, which is its standard "
        "error, says why",
        how_far());
    explain_disk();
    if (metrics_.torn)
      say("end", "the last line of metrics.jsonl is cut: there was no room for it, or the machine stopped");
    if (run_.timeline)
      say("end", "trace.json has {} of its steps{}", run_.timeline->steps,
          run_.timeline->steps == 0 ? "" : ", the first ones of that start");
  }

  void explain_end() {
    const std::optional<HeldBy>& held = circumstances_.held;
    if (held) {
      explain_held(metrics_.steps.empty() ? "no step is written yet" : fmt::format("step {} is written", last_step()),
                   how_far());
    } else if (!run_.end) {
      explain_silence();
    } else if (run_.end->how == "failed") {
      say("end", "it failed on {} {}: {}", run_.end->time, how_far(), run_.end->message);
    } else {
      say("end", "it {} on {} {}", run_.end->how == "interrupted" ? "was interrupted" : "ended", run_.end->time,
          how_far());
    }
    const bool over = run_.end && run_.end->how == "ended";
    if (over || (held && held->lives)) return;
    if (run_.checkpoint > 0)
      say("end", "{} goes on from its checkpoint of step {}", option_name("resume"), run_.checkpoint);
    else if (metrics_.steps.empty())
      say("end", "it has no checkpoint, and nothing is lost: {} begins anew", option_name("overwrite"));
    else
      say("end", "it has no checkpoint: {} begins anew; {} 10min saves more often", option_name("overwrite"),
          option_name("save_every"));
  }

  void explain_kill(const HeldBy& held) {
    if (!held.here) {
      say("end", "why is in the log of {}: 'snug explain' there, unless it was started anew since", held.host);
      return;
    }
    if (!circumstances_.kernel) {
      say("end",
          "whether it was killed for memory is in the kernel's log, which this user may not read: sudo dmesg | grep "
          "'Killed process {}'",
          held.process);
      return;
    }
    bool found = false;
    for (const KernelEvent& event : *circumstances_.kernel)
      if (event.process == held.process) {
        say("end", "{}", words_of(event));
        found = true;
      }
    if (!found)
      say("end",
          "the kernel's log has no word of process {}, so lack of memory was not the cause: a user, a scheduler's "
          "limit of "
          "time or the end of its container can kill a process (signal 9)",
          held.process);
  }

  // ---- What it learnt ----

  void explain_loss() {
    const std::vector<double>& loss = metrics_.of("loss");
    const size_t third = loss.size() / 3;
    const std::vector<double> first = finite(loss, 0, third), last = finite(loss, loss.size() - third, loss.size());
    if (first.size() > 2 && last.size() > 2) {
      const double before = mean(first), after = mean(last);
      say("loss", "{:.4f} in the first third of its steps, {:.4f} in the last{}", before, after,
          after < before ? "" : ": it has not fallen; the learning rate may be too large, or far too small");
    }
    explain_spikes(loss);
    explain_held_out();
  }

  // Names steps whose loss is far above that of those before.
  void explain_spikes(const std::vector<double>& loss) {
    constexpr size_t kMost = 3;
    std::vector<std::string> spikes;
    size_t count = 0;
    for (size_t i = kLeapWindow; i < loss.size(); i++) {
      if (!leaps(finite(loss, i - kLeapWindow, i), loss[i])) continue;
      if (++count <= kMost) spikes.push_back(fmt::format("{:.3f} at step {}", loss[i], metrics_.steps[i]));
    }
    if (count > 0)
      say("loss", "it leapt up {} time{}: {}{}; the samples of such a step are worth a look", count,
          count == 1 ? "" : "s", fmt::join(spikes, ", "), count > kMost ? ", ..." : "");
  }

  void explain_held_out() {
    const std::vector<double>& held_out = metrics_.of("eval_loss");
    const size_t best = least_of(held_out);
    size_t last = best;
    for (size_t i = 0; i < held_out.size(); i++)
      if (std::isfinite(held_out[i])) last = i;
    if (best == held_out.size()) return;
    if (best == last || held_out[last] < 1.01 * held_out[best]) {
      say("loss", "of held-out samples: {:.4f} at step {}", held_out[last], metrics_.steps[last]);
      return;
    }
    say("loss",
        "of held-out samples: least at step {} ({:.4f}), {:.4f} at step {}: what came between fits the training data "
        "alone; {} best takes the former, if it is kept",
        metrics_.steps[best], held_out[best], held_out[last], metrics_.steps[last], option_name("checkpoint"));
  }

  // ---- How fast it was ----

  void explain_speed() {
    const std::vector<double>& column = metrics_.of("step_seconds");
    const std::vector<double> seconds = finite(column, std::min(kWarmUp, column.size() / 2), column.size());
    if (seconds.empty()) return;
    const double median = quantile_of(seconds, 0.5);
    const std::vector<double> rates = finite(metrics_.of("tokens_per_second"), 0, column.size());
    std::string line = fmt::format("a step took {:.3g} s", median);
    if (!rates.empty()) line += fmt::format(", {:.0f} tokens/s", quantile_of(rates, 0.5));
    if (run_.plan.step_seconds) {
      const double ratio = median / *run_.plan.step_seconds;
      line += fmt::format("; the plan had {:.3g} s: {}", *run_.plan.step_seconds,
                          ratio > 1.1   ? fmt::format("{:.2f} times as long", ratio)
                          : ratio < 0.9 ? fmt::format("{:.2f} of it", ratio)
                                        : "as forecast");
    } else {
      line += "; the plan had no forecast: 'snug doctor' measures the machine for one (" + option_name("machine") + ")";
    }
    say("speed", "{}", line);
    const bool spread = explain_spread(seconds, median);
    explain_padding();
    explain_trace();
    if (spread || (run_.plan.step_seconds && median > kSlower * *run_.plan.step_seconds)) explain_cores();
  }

  // Names the option by which a run on a processor leaves cores to others. A lane that computes little waits for
  // something else, and one thread is the least.
  void explain_cores() {
    if (run_.plan.device != "cpu" || run_.plan.threads == 1) return;
    std::string why = "on a processor slow steps mostly share its cores with other processes";
    if (run_.timeline && !run_.timeline->ops.empty()) {
      const double share = busy_share("compute");
      if (share < kComputes) return;
      why =
          fmt::format("it computed in {:.0f} % of the traced step, so slow steps share its cores with other processes",
                      100 * share);
    }
    const std::string had =
        run_.plan.threads > 0 ? fmt::format(" below {}, which it had,", run_.plan.threads) : " fewer";
    say("speed", "{}: {}{} leaves cores to them, and then waits for none of them", why, option_name("threads"), had);
  }

  // Returns the share of the traced step in which ops ran on a lane.
  double busy_share(std::string_view lane) const {
    const Timeline& timeline = *run_.timeline;
    double busy = 0;
    for (const TimelineOp& op : timeline.ops)
      if (op.group != OpGroup::Wait && timeline.lanes[op.lane] == lane) busy += op.duration;
    return timeline.duration > 0 ? busy / timeline.duration : 0;
  }

  // Returns whether some steps took much longer than others.
  bool explain_spread(const std::vector<double>& seconds, double median) {
    if (seconds.size() < 10) return false;
    const double slow = quantile_of(seconds, 0.9);
    const bool spread = slow > 1.3 * median;
    if (spread)
      say("speed",
          "one step in ten took {:.2f} times as long or longer: other processes on its cores or cards, a disk that "
          "others use, or passes of unequal length",
          slow / median);
    const size_t part = seconds.size() / 5;
    const double first = quantile_of(finite(seconds, 0, part), 0.5),
                 last = quantile_of(finite(seconds, seconds.size() - part, seconds.size()), 0.5);
    if (last > 1.1 * first)
      say("speed",
          "its last steps took {:.2f} times as long as its first: something has come beside it, or cards or cores "
          "have lowered their clocks for heat",
          last / first);
    return spread;
  }

  void explain_padding() {
    const std::vector<double> tokens = finite(metrics_.of("tokens"), 0, metrics_.steps.size());
    if (tokens.empty() || run_.plan.tokens_per_step <= 0) return;
    const double filled = mean(tokens) / run_.plan.tokens_per_step;
    if (filled < 0.6)
      say("speed", "blocks are {:.0f} % full: {}", 100 * filled,
          job_value(run_, "packing") == "false" ? option_name("packing") + " true puts several samples in one"
                                                : "samples are long beside " + option_name("sequence_length") +
                                                      ", or too few for a step; a shorter one takes less time");
  }

  // Says what a traced step waited for, and which kinds of ops took longer than the plan has them.
  void explain_trace() {
    if (!run_.timeline || run_.timeline->ops.empty() || run_.timeline->duration <= 0) {
      say("speed", "{} {}/trace.json of another run shows what its steps wait for", option_name("trace"),
          job_value(run_, "out"));
      return;
    }
    const Timeline& timeline = *run_.timeline;
    std::vector<double> busy(timeline.lanes.size());
    std::map<std::string, double> kinds;
    for (const TimelineOp& op : timeline.ops) {
      if (op.group == OpGroup::Wait) continue;
      busy.at(op.lane) += op.duration;
      kinds[op.kind] += op.duration * 1e-6;
    }
    std::vector<std::string> lanes;
    for (size_t i = 0; i < busy.size(); i++)
      lanes.push_back(fmt::format("{} {:.0f} %", timeline.lanes[i], 100 * busy[i] / timeline.duration));
    say("speed", "in the traced step these were busy: {}", fmt::join(lanes, ", "));
    std::vector<std::pair<double, std::string>> longer;
    std::map<std::string, double> planned;  // one kind may run as several kernels
    for (const PlanKernel& kernel : run_.plan.kernels)
      if (kernel.seconds) planned[kernel.op] += *kernel.seconds;
    for (const auto& [kind, seconds] : planned) {
      const auto taken = kinds.find(kind);
      if (taken == kinds.end()) continue;
      const double more = taken->second - seconds;
      if (more > 0.05 * timeline.duration * 1e-6)
        longer.emplace_back(more, fmt::format("{} {:.3g} s, planned {:.3g} s", kind, taken->second, seconds));
    }
    std::ranges::sort(longer, std::greater());
    for (const auto& [more, words] : longer) say("speed", "longer than planned: {}", words);
  }

  void explain_memory() {
    const auto most = [&](const char* key) {
      const std::vector<double> values = finite(metrics_.of(key), 0, metrics_.steps.size());
      return values.empty() ? 0.0 : *std::ranges::max_element(values);
    };
    const double device = most("device_bytes"), host = most("host_bytes");
    if (device <= 0 && host <= 0) return;
    const bool as_planned = device <= run_.plan.device_bytes && host <= run_.plan.host_bytes;
    say("memory", "device {:.2f} GiB, host {:.2f} GiB: {}", device / (1 << 30), host / (1 << 30),
        as_planned ? "as planned"
                   : fmt::format("planned were {:.2f} and {:.2f} GiB", run_.plan.device_bytes / (1 << 30),
                                 run_.plan.host_bytes / (1 << 30)));
  }

  void explain_kernels() {
    for (const PlanKernel& kernel : run_.plan.kernels)
      if (!kernel.slow.empty()) say("kernels", "{} is not on its fast kernel: {}", kernel.op, kernel.slow);
  }

  const RunFiles& run_;
  const MetricsTable& metrics_;
  const Circumstances& circumstances_;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> explain(const RunFiles& run, const Circumstances& circumstances) {
  return Explainer(run, circumstances).explain();
}

std::vector<Finding> explain_beginning(const Circumstances& circumstances) {
  const RunFiles nothing;
  return Explainer(nothing, circumstances).explain_beginning();
}

}  // namespace snug
