// Whatever goes with anything: rows that together hold every pair (or every three) of choices, each trained and
// compared, bit for bit, with the same numerics kept on the device of each rank.
#include <gtest/gtest.h>

#include <set>

#include "arranged.h"
#include "base/rng.h"

namespace snug {
namespace {

// How many levels each factor has.
enum Factor : uint8_t {
  Base,
  Family,
  RankCount,
  Zero,
  RecomputeWord,
  States,
  Gradients,
  Weights,
  Activations,
  Share,
  LayerMajor,
  Deferred,
  EarlyUpdates,
  OnThreads,
  Replicas,
  StateWord,
  Dropped,
  Compute,
  Passes,
  Accumulator,
  EveryStep,
  Norms,  // of rows, which are trained
  kFactors
};
constexpr std::array<int, kFactors> kLevels{5, 2, 3, 4, 4, 3, 3, 3, 4, 2, 2, 2, 3, 2, 2, 3, 2, 2, 2, 2, 2, 2};
using Row = std::array<int, kFactors>;

enum BaseLevel : uint8_t { Full, Plain, Int8, Nf4, Fp8 };

// What is refused, or has no tiny model.
bool possible(const Row& r) {
  return !(r[Base] == Nf4 && r[Family] == 1) &&  // its linears are no multiples of 64
         !(r[StateWord] == static_cast<int>(StateFormat::Bit8) && r[Compute] == 0) &&
         !(r[Base] == Full && (r[Dropped] == 1 || r[Norms] == 1)) && !(r[RankCount] == 0 && r[Replicas] == 1);
}

JobSpec job_of(const Row& r) {
  const DType compute = r[Compute] ? DType::BF16 : DType::F32;
  TinyCase tiny{r[Family] ? "qwen2" : "llama", r[Base] != Full, compute, 1};
  if (r[Norms]) tiny.dora = 0;
  JobSpec spec = tiny.job();
  Numerics& n = spec.numerics;
  constexpr std::array kFormats{BaseFormat::Plain, BaseFormat::Plain, BaseFormat::Int8, BaseFormat::Nf4,
                                BaseFormat::Fp8};
  n.base_format = kFormats[static_cast<size_t>(r[Base])];
  n.state = static_cast<StateFormat>(r[StateWord]);
  if (r[Accumulator] && r[Compute]) n.accumulator = DType::BF16;
  n.reduce_once_per_step = r[EveryStep];
  if (r[EarlyUpdates] == 2) n.max_grad_norm = 0;
  for (LayerParams& block : spec.table.layers)
    for (Linear* linear : {&block.qkv, &block.o, &block.gate_up, &block.down})
      if (r[Dropped]) linear->lora.dropout = 0.25;
  return spec;
}

Arrangement plain_of(const Row& r) {
  Arrangement a;
  a.ranks = 1 << r[RankCount];
  a.passes = 1 + r[Passes];
  return a;
}

Arrangement arrangement_of(const Row& r) {
  Arrangement a = plain_of(r);
  a.zero = r[Zero];
  a.recompute = static_cast<Recompute>(r[RecomputeWord]);
  a.states = space_of(static_cast<uint64_t>(r[States]));
  a.gradients = space_of(static_cast<uint64_t>(r[Gradients]));
  a.weights = space_of(static_cast<uint64_t>(r[Weights]));
  a.inputs = std::array{Space::Device, Space::Host, Space::Host, Space::Disk}[static_cast<size_t>(r[Activations])];
  a.offload = r[Activations] == 1 ? 0 : 15;
  a.share = 1 + r[Share];
  a.layer_major = r[LayerMajor];
  a.deferred = r[Deferred];
  a.speculative = r[EarlyUpdates] == 1;
  a.in_backward = r[EarlyUpdates] == 2;
  a.lanes = r[OnThreads] ? LaneMode::Threads : LaneMode::Inline;
  a.replicas = 1 + r[Replicas];
  return a;
}

// Some factors and their levels.
using Tuple = std::vector<std::pair<int, int>>;

std::vector<std::vector<int>> subsets(int size, int first = 0) {
  if (size == 0) return {{}};
  std::vector<std::vector<int>> all;
  for (int f = first; f < kFactors; f++)
    for (std::vector<int> rest : subsets(size - 1, f + 1)) {
      rest.insert(rest.begin(), f);
      all.push_back(std::move(rest));
    }
  return all;
}

// Rows that hold every possible choice of levels for any `strength` factors, found greedily and always the same.
class Covering {
 public:
  explicit Covering(int strength) : subsets_(subsets(strength)) {
    for (const std::vector<int>& factors : subsets_) {
      std::vector<Tuple> tuples{{}};
      for (const int f : factors) {
        std::vector<Tuple> longer;
        for (const Tuple& tuple : tuples)
          for (int level = 0; level < kLevels[static_cast<size_t>(f)]; level++) {
            longer.push_back(tuple);
            longer.back().emplace_back(f, level);
          }
        tuples = std::move(longer);
      }
      left_.insert(tuples.begin(), tuples.end());
    }
  }

  std::vector<Row> rows() {
    std::vector<Row> rows;
    while (!left_.empty()) {
      const Tuple wanted = *left_.begin();
      Row best{};
      size_t most = 0;
      for (int candidate = 0; candidate < 30; candidate++) {
        const std::optional<Row> row = draw(wanted);
        if (!row) break;
        const size_t covered = count(*row);
        if (covered > most) most = covered, best = *row;
      }
      if (most == 0) {
        left_.erase(wanted);  // impossible
        continue;
      }
      for (const std::vector<int>& factors : subsets_) left_.erase(part(best, factors));
      rows.push_back(best);
    }
    return rows;
  }

 private:
  static Tuple part(const Row& row, const std::vector<int>& factors) {
    Tuple tuple;
    for (const int f : factors) tuple.emplace_back(f, row[static_cast<size_t>(f)]);
    return tuple;
  }
  size_t count(const Row& row) const {
    size_t covered = 0;
    for (const std::vector<int>& factors : subsets_) covered += left_.count(part(row, factors));
    return covered;
  }
  std::optional<Row> draw(const Tuple& wanted) {
    for (int attempt = 0; attempt < 200; attempt++) {
      Row row;
      for (size_t f = 0; f < kFactors; f++)
        row[f] = static_cast<int>(random_.below(drawn_++, static_cast<uint64_t>(kLevels[f])));
      for (const auto& [f, level] : wanted) row[static_cast<size_t>(f)] = level;
      if (possible(row)) return row;
    }
    return std::nullopt;
  }

  std::vector<std::vector<int>> subsets_;
  std::set<Tuple> left_;
  Random random_{7, RandomPurpose::DataOrder};
  uint64_t drawn_ = 0;
};

// The outcome of a row's numerics with everything kept on the device.
const Outcome& expected_of(const Row& r) {
  static std::map<Row, Outcome> known;
  Row numerics{};
  for (const Factor f : {Base, Family, RankCount, StateWord, Dropped, Compute, Passes, Accumulator, EveryStep, Norms})
    numerics[f] = r[f];
  if (job_of(r).numerics.max_grad_norm == 0) numerics[EarlyUpdates] = r[EarlyUpdates];
  const auto [found, missing] = known.try_emplace(numerics);
  if (missing) found->second = train(job_of(r), plain_of(r));
  return found->second;
}

void expect_all_the_same(int strength) {
  const std::vector<Row> rows = Covering(strength).rows();
  fmt::print("{} combinations hold every {} of choices\n", rows.size(), strength == 2 ? "pair" : "three");
  for (const Row& r : rows) {
    const Arrangement a = arrangement_of(r);
    const Outcome outcome = train(job_of(r), a);
    EXPECT_TRUE(outcome == expected_of(r)) << to_string(a) << "; row " << fmt::format("{}", fmt::join(r, " "));
    if (r[Compute] || r[StateWord]) continue;
    Row one = r;
    one[RankCount] = one[Replicas] = 0;
    for (size_t step = 0; step < kSteps; step++)
      EXPECT_NEAR(outcome.steps[step].loss, expected_of(one).steps[step].loss, 1e-5 * outcome.steps[step].loss);
  }
}

TEST(Combinations, OfAnyTwoChoicesChangeNoBit) { expect_all_the_same(2); }

// Run by a test of its own, labelled slow.
TEST(Combinations, DISABLED_OfAnyThreeChoicesChangeNoBit) { expect_all_the_same(3); }

// Run under mpirun: what hold every three with this number of ranks hold every pair with it.
TEST(Combinations, DISABLED_OfProcessesAreThoseOfThreads) {
  Comm* const process = process_rank();
  ASSERT_TRUE(process);
  int compared = 0;
  for (const Row& r : Covering(3).rows()) {
    if (1 << r[RankCount] != process->topology().ranks) continue;
    const Outcome outcome = train(job_of(r), arrangement_of(r), process);
    if (process->topology().rank > 0) continue;
    compared++;
    EXPECT_TRUE(outcome == expected_of(r)) << to_string(arrangement_of(r));
  }
  if (process->topology().rank == 0) fmt::print("{} combinations are the same on processes\n", compared);
}

}  // namespace
}  // namespace snug
