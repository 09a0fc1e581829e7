#include "report/timeline.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/option_name.h"
#include "format/json.h"

namespace snug {
namespace {

constexpr int64_t kMostLanes = 64;
constexpr size_t kMostOps = 1 << 20;
constexpr double kMostMicroseconds = 1e15;

// Programs that begin a step (plan/lowering/compile.h).
constexpr std::string_view kFirstOfStep[] = {"pass", "first", "pass_pending", "first_pending"};

OpGroup group_of(std::string_view kind, std::string_view lane) {
  if (kind == "wait") return OpGroup::Wait;
  if (lane != "compute" && lane != "host") return OpGroup::Transfer;
  if (kind.find("gemm") != kind.npos || kind.starts_with("adapter")) return OpGroup::Products;
  if (kind.starts_with("attention")) return OpGroup::Attention;
  for (const std::string_view update : {"adamw", "norm_partials", "tree_sum", "clip_factor"})
    if (kind == update) return OpGroup::Update;
  return OpGroup::OtherCompute;
}

class Reader {
 public:
  explicit Reader(const std::string& source) : source_(source) {}

  void add(std::string_view line, int64_t number) {
    const std::string place = fmt::format("{}, line {}", source_, number);
    const Json json = parse_json(line, place);
    const JsonObject event(json, place);
    const int64_t lane = event.integer("tid", 0, kMostLanes - 1);
    const std::string kind = event.string("ph");
    if (kind == "M") {
      lanes_[lane] = event.object("args").string("name");
      return;
    }
    if (kind != "X") event.fail("ph", "M or X, as " + option_name("trace") + " writes them");
    const JsonObject args = event.object("args");
    const std::string category = event.string("cat");
    // A wait names the op that it kept back later; it belongs to the step of the op that comes with the next line.
    if (category != "wait" && begins_step(args)) steps_.push_back(steps_.empty() ? 0 : ops_.size() - waits_);
    waits_ = category == "wait" ? waits_ + 1 : 0;
    if (ops_.size() == kMostOps) user_error("{}: found more than {} events", place, kMostOps);
    ops_.push_back({static_cast<size_t>(lane), group_of(category, lanes_[lane]), event.string("name"), category,
                    event.number("ts", 0, kMostMicroseconds), event.number("dur", 0, kMostMicroseconds)});
  }

  Timeline take() {
    steps_.push_back(ops_.size());
    Timeline timeline;
    timeline.steps = steps_.size() - 1;
    size_t best = 0, most = 0;
    for (size_t i = 0; i + 1 < steps_.size(); i++)
      if (steps_[i + 1] - steps_[i] >= most) best = i, most = steps_[i + 1] - steps_[i];
    if (most == 0) return timeline;
    timeline.step = best + 1;
    fill(timeline, steps_[best], steps_[best + 1]);
    return timeline;
  }

 private:
  static bool begins_step(const JsonObject& args) {
    std::string program = args.string("program");
    program.resize(std::min(program.find('.'), program.size()));  // of which shape and buffer: "pass.4_eighths"
    return std::ranges::find(kFirstOfStep, program) != std::end(kFirstOfStep) && args.integer("op", 0, INT64_MAX) == 0;
  }

  void fill(Timeline& timeline, size_t first, size_t end) {
    std::map<size_t, size_t> places;  // of lanes that anything ran on
    double begin = kMostMicroseconds;
    for (size_t i = first; i < end; i++) {
      begin = std::min(begin, ops_[i].begin);
      places[ops_[i].lane];
    }
    for (auto& [lane, place] : places) {
      place = timeline.lanes.size();
      timeline.lanes.push_back(lanes_[static_cast<int64_t>(lane)]);
    }
    for (size_t i = first; i < end; i++) {
      TimelineOp& op = timeline.ops.emplace_back(std::move(ops_[i]));
      op.lane = places.at(op.lane);
      op.begin -= begin;
      timeline.duration = std::max(timeline.duration, op.begin + op.duration);
    }
  }

  const std::string& source_;
  std::map<int64_t, std::string> lanes_;
  std::vector<TimelineOp> ops_;
  std::vector<size_t> steps_;  // the first op of each
  size_t waits_ = 0;           // events of waits that were read last
};

std::string_view trimmed(std::string_view line) {
  while (!line.empty() && (line.back() == ',' || line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
  return line;
}

}  // namespace

std::string_view name(OpGroup group) {
  switch (group) {
    case OpGroup::Products:
      return "products";
    case OpGroup::Attention:
      return "attention";
    case OpGroup::OtherCompute:
      return "other ops";
    case OpGroup::Update:
      return "update";
    case OpGroup::Transfer:
      return "copies and collectives";
    case OpGroup::Wait:
      break;
  }
  return "waiting";
}

Timeline parse_trace(std::string_view text, const std::string& source) {
  Reader reader(source);
  int64_t number = 0;
  bool begun = false, ended = false;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    number++;
    if (line.empty() && begun) continue;
    if (ended || (!begun && line != "["))
      user_error("{}, line {}: found {}, expected {}: a trace as 'snug train {}' writes it, an event a line", source,
                 number, shortened(std::string(line.substr(0, 60))), ended ? "nothing" : "[", option_name("trace"));
    if (!begun)
      begun = true;
    else if (line == "]")
      ended = true;
    else
      reader.add(line, number);
  }
  return reader.take();
}

}  // namespace snug
