#include "plan/search/evaluator.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <tuple>

#include "base/option_name.h"
#include "base/parallel.h"

namespace snug {
namespace {

// A pass has at most this many tokens, as their numbers are 32 bits wide.
constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();

// Returns every way to cut a step that the user left open: all divisors of the batch.
std::vector<Cut> open_cuts(const Cut& base, const Choices& choices) {
  if (choices.batch_size % choices.ranks != 0)
    user_error("batch_size: found {}, expected a multiple of {} ranks; {} or {} changes that", choices.batch_size,
               choices.ranks, option_name("batch_size"), option_name("ranks"));
  const int64_t batch = choices.batch_size / choices.ranks;
  if (choices.micro_batch && choices.passes && *choices.micro_batch * *choices.passes != batch)
    user_error("micro_batch_size {} times gradient_accumulation_steps {} on {} ranks makes {} blocks, batch_size is {}",
               *choices.micro_batch, *choices.passes, choices.ranks,
               *choices.micro_batch * *choices.passes * choices.ranks, choices.batch_size);
  std::vector<Cut> result;
  for (int64_t micro = 1; micro <= batch; micro++) {
    if (batch % micro != 0 || micro * base.sequence_length > kMostTokens) continue;
    if (choices.micro_batch && micro != *choices.micro_batch) continue;
    if (choices.passes && batch / micro != *choices.passes) continue;
    Cut cut = base;
    cut.micro_batch = micro;
    cut.passes = batch / micro;
    cut.ranks = choices.ranks;
    result.push_back(cut);
  }
  if (result.empty() && choices.micro_batch && batch % *choices.micro_batch == 0)
    user_error("micro_batch_size {} of sequence_length {}: found {} tokens a pass, expected at most {}",
               *choices.micro_batch, base.sequence_length, *choices.micro_batch * base.sequence_length, kMostTokens);
  if (result.empty())
    user_error("{} {} does not divide batch_size {}{}",
               choices.micro_batch ? "micro_batch_size" : "gradient_accumulation_steps",
               choices.micro_batch ? *choices.micro_batch : *choices.passes, choices.batch_size,
               choices.ranks > 1 ? fmt::format(" over {} ranks", choices.ranks) : "");
  return result;
}

// Define what far means: groups ahead, and ops for which the buffers of copies stay reserved.
constexpr int64_t kGroupsAhead = 3, kOpsBehind = 40, kOpsWhereAhead = 60;

// This many threads compile, if arrangements have more ops than kLongOps; shorter ones are done before another thread
// begins.
constexpr size_t kMostThreads = 4;
constexpr uint64_t kLongOps = 1000;

// Up to this number of ranks all are compared, as the parameters in their parts take a little more or less; of more
// ranks only some are compared.
constexpr int kComparedRanks = 8;

// Returns a text that two arrangements of one job share only if they are equal. All members are bound, so that a new
// one does not compile until it is part of the text.
std::string key_of(const Cut& cut, const Strategy& strategy) {
  const auto& [activations, groups, replicas, reduce_in_backward, layer_major, defer_updates, speculate,
               update_in_backward, gather_ahead, offloaded_to, buffer_hold_ops] = strategy;
  std::string key = fmt::format("{} {} {} {} ", cut.micro_batch, replicas, gather_ahead, buffer_hold_ops);
  auto add = [&](auto... values) { (key.push_back(static_cast<char>('0' + static_cast<int>(values))), ...); };
  add(reduce_in_backward, layer_major, defer_updates, speculate, update_in_backward, offloaded_to);
  for (const ActivationPolicy& policy : activations)
    for (const ActivationClass kind : kPlannedClasses) add(policy[kind]);
  for (const auto& [shard_weights, shard_states, weights, states, gradients] : groups)
    add(shard_weights, shard_states, weights, states, gradients);
  return key;
}

}  // namespace

Evaluator::Evaluator(const JobSpec& spec, const Choices& choices, const OpFacts& facts, const Pricing& pricing,
                     const Heartbeat& heartbeat)
    : spec_(spec),
      choices_(choices),
      facts_(facts),
      pricing_(pricing),
      heartbeat_(heartbeat),
      cuts_(open_cuts(spec.cut, choices)) {
  for (const int stage : open_stages(choices)) memory_options_[stage] = open_memory_options(choices, stage, spec.table);
}

std::vector<Cut> Evaluator::cuts_for_other_order(int64_t fastest_passes, bool reads_disk) const {
  std::vector<Cut> cuts = cuts_;
  std::ranges::stable_sort(cuts, {}, [&](const Cut& cut) {
    return std::tuple(reads_disk && cut.passes == 1, cut.passes != fastest_passes, cut.passes);
  });
  return cuts;
}

std::vector<int> Evaluator::stages() const {
  std::vector<int> stages;
  for (const auto& [stage, options] : memory_options_) stages.push_back(stage);
  return stages;
}

Point Evaluator::baseline_point(const Cut& cut, int stage) const {
  const bool layer_major = choices_.layer_major.value_or(false) && cut.passes > 1;
  return {cut, stage, layer_major, false, Reach::Near, std::vector<int64_t>(memory_options_.at(stage).size())};
}

Strategy Evaluator::strategy(const Point& p) const {
  Strategy strategy = baseline(choices_, p.stage, spec_.table);
  strategy.layer_major = p.layer_major;
  strategy.defer_updates = p.deferred;
  for (size_t d = 0; d < p.positions.size(); d++) options(p)[d].set(strategy, p.positions[d]);
  if (p.reach == Reach::Near || lanes_of(strategy, p.cut) == LaneMode::Inline) return strategy;
  const bool ahead = p.reach == Reach::FarAhead;
  if (ahead) strategy.gather_ahead = kGroupsAhead;
  strategy.buffer_hold_ops = ahead ? kOpsWhereAhead : kOpsBehind;
  return strategy;
}

JobSpec Evaluator::job(const Point& p, bool step_only) const {
  JobSpec job = spec_;
  job.step_only = step_only;
  job.cut = p.cut;
  job.strategy = strategy(p);
  return job;
}

double Evaluator::seconds_of(const Compiled& compiled, const JobSpec& job) const {
  Pricing pricing = pricing_;
  pricing.lanes = lanes_of(job.strategy, job.cut);
  return step_seconds(compiled, pricing);
}

void Evaluator::evaluate(Pending& pending) const {
  const Compiled compiled = compile(pending.job, facts_);
  pending.evaluation.ops = compiled.set.op_count();
  pending.evaluation.seconds = seconds_of(compiled, pending.job);
  pending.evaluation.arena_bytes = compiled.plan.reserved_bytes;
  for (const Buffer& buffer : compiled.set.buffers)
    if (buffer.life == Life::Persistent) pending.evaluation.persistent[index(buffer.space)] += buffer.bytes;
  pending.evaluation.update_fullest =
      compiled.has(Task::Update) && compiled.plan.peak[index(Space::Device)].program == compiled.at(Task::Update);
}

void Evaluator::note(uint64_t ops) {
  compiled_++;
  ops_ += ops;
  call(heartbeat_);
}

void Evaluator::evaluate_all(const std::vector<Point>& points) {
  std::vector<Pending> all;
  for (const Point& p : points) {
    std::string key = key_of(p.cut, strategy(p));
    if (evaluations_.contains(key) || std::ranges::count(all, key, &Pending::key) > 0) continue;
    all.push_back({std::move(key), job(p, true), {}, {}});
  }
  std::atomic<size_t> next = 0;
  const int team = threads();
  auto work = [&] {
    set_threads(team);  // on which the scratch of kernels depends
    for (size_t i = next++; i < all.size(); i = next++) try {
        evaluate(all[i]);
      } catch (...) {
        all[i].error = std::current_exception();
      }
  };
  {
    std::vector<std::jthread> helpers;
    const size_t most = ops_ > kLongOps * compiled_ ? kMostThreads : 1;
    for (size_t t = 1; t < std::min({all.size(), static_cast<size_t>(team), most}); t++) helpers.emplace_back(work);
    work();
  }
  for (Pending& pending : all) {
    if (pending.error) std::rethrow_exception(pending.error);
    evaluations_.emplace(std::move(pending.key), pending.evaluation);
    note(pending.evaluation.ops);
  }
}

const Evaluation& Evaluator::evaluate(const Point& p) {
  const std::string key = key_of(p.cut, strategy(p));
  auto known = evaluations_.find(key);
  if (known == evaluations_.end()) {
    evaluate_all({p});
    known = evaluations_.find(key);
  }
  return known->second;
}

const Footprint& Evaluator::whole(const Point& p) {
  const std::string key = key_of(p.cut, strategy(p));
  if (!whole_.contains(key)) compiled_in_full(p);
  return whole_.at(key);
}

Compiled Evaluator::compiled_in_full(const Point& p, std::vector<RankBytes>* ranks) {
  JobSpec spec = job(p, false);
  Compiled compiled = compile(spec, facts_);
  note(compiled.set.op_count());
  if (ranks) *ranks = {{0, compiled.plan.reserved_bytes}};
  const int others = std::min(p.cut.ranks, kComparedRanks) - 1;
  for (int i = 1; i <= others; i++) {
    spec.rank = static_cast<int>(int64_t{i} * (p.cut.ranks - 1) / others);
    const Compiled other = compile(spec, facts_);
    note(other.set.op_count());
    if (ranks) ranks->push_back({spec.rank, other.plan.reserved_bytes});
    raise(compiled.plan.reserved_bytes, other.plan.reserved_bytes);
  }
  whole_[key_of(p.cut, strategy(p))] = {compiled.plan.reserved_bytes, compiled.set.op_count()};
  return compiled;
}

std::string Evaluator::words(const Point& p) const {
  return spec_.purpose == Purpose::Train ? arrangement_words(p.cut, strategy(p), spec_.table)
                                         : holding_words(p.cut, strategy(p));
}

Arrangement Evaluator::arrangement(const Point& p, const Compiled* whole) {
  Arrangement a{p.cut, strategy(p), {}, {}, evaluate(p).seconds, false};
  a.words = words(p);
  if (whole) a.forecast = forecast(*whole);
  return a;
}

}  // namespace snug
