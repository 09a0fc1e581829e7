// Parameters of several kinds in a group, under arrangements of bytes and ranks: the same bits, arenas as forecast.
#include <gtest/gtest.h>

#include "arranged.h"
#include "base/rng.h"
#include "temp_directory.h"
#include "train/initial_halves.h"
#include "train/principal_halves.h"

namespace snug {
namespace {

struct RulesCase {
  std::string name, family;
  ParamRules rules;
  BaseFormat base = BaseFormat::Plain;

  JobSpec job() const {
    JobSpec spec = tiny_job(family, std::nullopt, DType::BF16);
    spec.rules = rules;
    SourceRequest request{models() / family, false, 1, std::nullopt};
    if (rules.adapter && spec.model.tied && parts_head(*rules.adapter, spec.model.embedding, spec.model.head)) {
      spec.model.tied = false;
      request.head_is_embedding = true;
    }
    spec.table = trained_parameters(spec.model, rules);
    spec.sources = find_sources(spec.table, request);
    spec.numerics.base_format = base;
    if (!spec.sources.initial_file) return spec;
    static const TempDirectory directory;
    const auto file = spec.sources.files[*spec.sources.initial_file] = directory.path() / name;
    if (!is_file(file)) write_initial_halves(spec, file, {});
    return spec;
  }
};

PeftConfig adapter(const std::vector<std::string>& targets) {
  return {.rank = 4, .alpha = 8, .target_modules = targets};
}

std::vector<RulesCase> cases() {
  std::vector<RulesCase> all;
  PeftConfig uneven = adapter({"k_proj", "q_proj", "down_proj"});
  uneven.rank_pattern = {{pattern_of_ends("k_proj", "test"), 5}};
  uneven.modules_to_save = {"lm_head", "model.norm"};
  all.push_back({"uneven", "llama", {.adapter = uneven, .lora_plus_ratio = 4}});
  PeftConfig scaled = adapter({"gate_proj", "up_proj", "v_proj"});
  scaled.alpha_pattern = {{pattern_of_ends("up_proj", "test"), 3}};
  scaled.layers_to_transform = {1};
  all.push_back({"of a layer", "llama", {.adapter = scaled}, BaseFormat::Int8});
  PeftConfig parted = adapter({"v_proj"});
  parted.dropout = 0.25;
  parted.modules_to_save = {"lm_head"};
  all.push_back({"parted head", "qwen2_tied", {.adapter = parted}});
  PeftConfig together = adapter({"v_proj"});
  together.modules_to_save = {"embed_tokens"};
  together.ensure_weight_tying = true;
  all.push_back({"tied", "qwen2_tied", {.adapter = together}});
  PeftConfig begun = adapter({"q_proj", "v_proj", "gate_proj", "up_proj", "down_proj"});
  begun.init = LoraInit::Pissa;
  all.push_back({"begun", "llama", {.adapter = begun}, BaseFormat::Int8});
  begun.init = LoraInit::Olora;
  begun.rank_pattern = {{pattern_of_ends("v_proj", "test"), 3}};
  all.push_back({"begun unevenly", "qwen2_tied", {.adapter = begun}});
  PeftConfig norms = adapter({"q_proj", "v_proj", "o_proj", "up_proj", "down_proj"});
  norms.dora = true;
  norms.rank_pattern = {{pattern_of_ends("v_proj", "test"), 3}};
  norms.modules_to_save = {"lm_head"};
  all.push_back({"norms of rows", "llama", {.adapter = norms, .lora_plus_ratio = 4}});
  norms.dropout = 0.25;
  all.push_back({"norms over codes", "qwen2_tied", {.adapter = norms}, BaseFormat::Int8});
  all.push_back({"linears", "qwen2_tied", {.train = {"k_proj", "layers.0.mlp.gate_proj"}}});
  all.push_back({"over codes", "llama", {.train = {"q_proj", "layers.1"}}, BaseFormat::Int8});
  all.push_back({"head", "llama", {.train = {"lm_head"}}});
  all.push_back({"embedding", "llama", {.freeze = {"lm_head", "layers"}}});
  return all;
}

TEST(Rules, ArrangementsChangeNoBit) {
  for (const RulesCase& one : cases())
    for (int ranks = 1; ranks <= std::min(2, kMostRanks); ranks++) {
      Arrangement plain;
      plain.ranks = ranks;
      plain.passes = 2;
      const Outcome expected = train(one.job(), plain);
      EXPECT_GT(expected.saved.size(), 0u) << one.name;
      EXPECT_NE(expected.steps.front().loss, expected.steps.back().loss) << one.name;
      for (const int stage : {0, 2, 3}) {
        Arrangement a = plain;
        a.zero = stage;
        a.recompute = stage == 2 ? Recompute::Mlp : Recompute::Block;
        a.states = a.gradients = a.inputs = Space::Host;
        a.weights = stage == 3 ? Space::Disk : Space::Device;
        a.layer_major = stage == 3;
        a.deferred = stage == 0;
        a.speculative = stage == 2;
        EXPECT_TRUE(train(one.job(), a) == expected) << one.name << ": " << to_string(a);
      }
    }
}

// Of a diagonal matrix the largest singular values are its largest entries, and the rest of it stays.
TEST(PrincipalHalves, AreTheBestOfTheirRankOnAnyNumberOfThreads) {
  constexpr int64_t rows = 70, cols = 50, rank = 3;
  constexpr double scale = 2;
  std::vector<float> values(rows * cols);
  for (int64_t i = 0; i < cols; i++)
    values[static_cast<size_t>(i * cols + (7 * i) % cols)] = i % 2 ? 1.0f : 30.0f - static_cast<float>(i);
  const MatrixView w{values, rows, cols};
  set_threads(1);
  const LoraHalves halves = principal_halves(w, rank, scale, 42);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < cols; j++) {
      double product = 0;
      for (int64_t r = 0; r < rank; r++)
        product += scale * static_cast<double>(halves.b[static_cast<size_t>(i * rank + r)]) *
                   static_cast<double>(halves.a[static_cast<size_t>(r * cols + j)]);
      const bool largest = i < 6 && i % 2 == 0;
      EXPECT_NEAR(product, largest ? static_cast<double>(values[static_cast<size_t>(i * cols + j)]) : 0, 1e-4)
          << i << " " << j;
    }
  set_threads(3);
  const LoraHalves again = principal_halves(w, rank, scale, 42);
  EXPECT_EQ(again.a, halves.a);
  EXPECT_EQ(again.b, halves.b);
  const LoraHalves nothing = principal_halves({std::vector<float>(rows * cols), rows, cols}, rank, scale, 42);
  EXPECT_EQ(nothing.a, std::vector<float>(rank * cols));
  EXPECT_EQ(nothing.b, std::vector<float>(rows * rank));
}

// Reflects the columns of w [rows, cols] at planes, which leaves its singular values as they are.
void reflect_columns(std::vector<double>& w, int64_t rows, int64_t cols, uint64_t seed) {
  const Random random(seed, RandomPurpose::Initialisation);
  for (uint64_t plane = 0; plane < 4; plane++) {
    std::vector<double> normal(static_cast<size_t>(rows));
    double length = 0;
    for (size_t i = 0; i < normal.size(); i++) {
      normal[i] = static_cast<double>(random.normal(plane * normal.size() + i));
      length += normal[i] * normal[i];
    }
    for (int64_t j = 0; j < cols; j++) {
      double dot = 0;
      for (int64_t i = 0; i < rows; i++) dot += normal[static_cast<size_t>(i)] * w[static_cast<size_t>(i * cols + j)];
      for (int64_t i = 0; i < rows; i++)
        w[static_cast<size_t>(i * cols + j)] -= 2 * dot / length * normal[static_cast<size_t>(i)];
    }
  }
}

std::vector<double> transposed(const std::vector<double>& w, int64_t rows, int64_t cols) {
  std::vector<double> turned(w.size());
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < cols; j++) turned[static_cast<size_t>(j * rows + i)] = w[static_cast<size_t>(i * cols + j)];
  return turned;
}

// As the weights of models have them: many singular values, of which those at the rank's border differ by 0.2 %, and
// one that is far above all others.
TEST(PrincipalHalves, AreFoundAmongManyThatLieCloseTogether) {
  constexpr int64_t rows = 384, cols = 256, rank = 16;
  const auto with_values = [&](int64_t count) {
    std::vector<double> w(rows * cols);
    for (int64_t i = 0; i < count; i++)
      w[static_cast<size_t>(i * cols + i)] = i == 0 ? 30 : 1 - 0.002 * static_cast<double>(i);
    reflect_columns(w, rows, cols, 1);
    w = transposed(w, rows, cols);
    reflect_columns(w, cols, rows, 2);
    return transposed(w, cols, rows);
  };
  const std::vector<double> exact = with_values(cols), best = with_values(rank);
  const std::vector<float> values(exact.begin(), exact.end());
  const LoraHalves halves = principal_halves({values, rows, cols}, rank, 1, 42);
  double apart = 0;
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < cols; j++) {
      double product = 0;
      for (int64_t r = 0; r < rank; r++)
        product += static_cast<double>(halves.b[static_cast<size_t>(i * rank + r)]) *
                   static_cast<double>(halves.a[static_cast<size_t>(r * cols + j)]);
      const double difference = product - best[static_cast<size_t>(i * cols + j)];
      apart += difference * difference;
    }
  EXPECT_LT(std::sqrt(apart), 1e-3);  // fp32 rounds the matrix by about 1e-6 of 34, over gaps of 0.002
}

// Without layers to train the backward ends at the first that has something to train, or at the head.
TEST(Rules, NothingIsComputedBeforeWhatIsTrained) {
  const auto ops_of_pass = [](const ParamRules& rules) {
    const Compiled compiled = compile(arranged(RulesCase{"", "llama", rules}.job(), {}, 0), *usual_ground().facts());
    return compiled.set.programs[compiled.at(Task::Pass)].ops.size();
  };
  const size_t head = ops_of_pass({.train = {"lm_head"}}), last = ops_of_pass({.train = {"layers.1"}}),
               first = ops_of_pass({.train = {"layers.0"}}), all = ops_of_pass({});
  EXPECT_LT(head, last);
  EXPECT_LT(last, first);
  EXPECT_LT(first, all);
}

}  // namespace
}  // namespace snug
