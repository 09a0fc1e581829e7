// Ranks on backends with streams, where collectives are enqueued like all others: at equal ranks the same bits,
// whatever is sharded, offloaded, deferred or speculated on.
#include <gtest/gtest.h>

#include <latch>

#include "arranged.h"
#include "temp_directory.h"
#include "train/generate.h"
#ifdef SNUG_TESTS_ON_CUDA
#include "backend/cuda/cards.h"
#include "comm/rank_backend.h"
#else
#include "deferred_backend.h"
#endif

namespace snug {
namespace {

#ifdef SNUG_TESTS_ON_CUDA
// Empty where every one of so many ranks has a GPU.
std::string too_few_cards(int ranks) {
  const size_t cards = cuda_cards().size();
  return cards >= static_cast<size_t>(ranks) ? ""
                                             : fmt::format("{} ranks ask for as many GPUs, {} are here", ranks, cards);
}

Ground streams_of(uint64_t seed) {
  return {[] { return std::make_unique<CudaFacts>(); },
          [route = seed % 2 ? Route::Nccl : Route::Copies, products = make_product_table()](
              int rank, Comm* comm) -> std::unique_ptr<Backend> {
            if (!comm) return std::make_unique<CudaBackend>(rank, products);
            return std::make_unique<RankBackend>(rank, products, *comm, CardTransport{route, 8});
          }};
}
#else
Ground streams_of(uint64_t seed) {
  Ground ground = processors();
  ground.backend = [seed](int rank, Comm* comm) {
    return std::make_unique<DeferredBackend>(8 * seed + static_cast<uint64_t>(rank), comm);
  };
  return ground;
}
#endif

struct StreamRanks : testing::TestWithParam<std::tuple<TinyCase, int>> {
#ifdef SNUG_TESTS_ON_CUDA
  void SetUp() override {
    if (const std::string lack = too_few_cards(ranks); !lack.empty()) GTEST_SKIP() << lack;
    prepare_nccl();
  }
#endif
  const TinyCase& model = std::get<0>(GetParam());
  const int ranks = std::get<1>(GetParam());
};

TEST_P(StreamRanks, StagesAndPlacesChangeNoBit) {
  uint64_t seed = 0;
  Arrangement plain;
  plain.ranks = ranks;
  plain.passes = model.passes;
  const Outcome expected = train(model.job(), plain, nullptr, streams_of(seed++));
#ifndef SNUG_TESTS_ON_CUDA
  EXPECT_TRUE(expected == train(model.job(), plain)) << "on streams and without";
#endif
  for (const int zero : {0, 1, 2, 3})
    for (const Space space : kSpaces) {
      Arrangement a = plain;
      a.zero = zero;
      a.states = a.weights = space;
      a.gradients = a.inputs = space == Space::Disk ? Space::Host : space;
      a.recompute = zero % 2 ? Recompute::Block : Recompute::None;
      a.layer_major = zero == 2;
      a.deferred = space == Space::Host;
      a.speculative = space == Space::Disk || zero == 3;
      a.replicas = zero == 3 && space == Space::Device ? 2 : 1;
      EXPECT_TRUE(train(model.job(), a, nullptr, streams_of(seed++)) == expected) << to_string(a);
    }
}

// On as many ranks, on half of them, and on ranks on processors without streams.
TEST_P(StreamRanks, ACheckpointGoesOnOnFewerAndOnProcessors) {
  Arrangement all;
  all.ranks = ranks;
  all.zero = 2;
  all.passes = model.passes;
  const TempDirectory run;
  const Halves expected = halves(Begin::Fresh, run.path(), model.job(), all, streams_of(0));
  uint64_t seed = 1;
  const auto resume = [&](int on, int zero, Space states, bool on_streams) {
    Arrangement other = all;
    other.ranks = on;
    other.zero = zero;
    other.states = states;
    const Ground ground = on_streams ? streams_of(seed++) : processors();
    const Halves resumed = halves(Begin::Resumed, run.path(), model.job(), other, ground);
    const double tolerance = model.compute == DType::F32 ? 1e-3 : 1e-2;  // processors' products are others
    expect_resumed(resumed, expected, on_streams && on == ranks, tolerance,
                   to_string(other) + (on_streams ? ", on streams" : ", on processors"));
  };
  resume(ranks, 3, Space::Host, true);
  resume(ranks / 2, 3, Space::Host, true);
  resume(ranks / 2, 1, Space::Device, true);
  for (int on = ranks; on >= 1; on /= 2) resume(on, on == 1 ? 0 : 3, Space::Disk, false);
}

// Every rank is told each token by rank 0, and has the same logits.
TEST_P(StreamRanks, RepliesAreTheSameHoweverTheModelIsHeld) {
  JobSpec spec = model.job();
  spec.purpose = Purpose::Generate;
  spec.cache_positions = 110;
  std::vector<int32_t> prompt;
  for (int32_t token = 0; token < 90; token++) prompt.push_back((token * token + 3) % 997);
  uint64_t seed = 0;
  std::vector<int32_t> expected;  // of ranks that hold everything
  for (const int zero : {0, 3})
    for (const Space space : kSpaces) {
      Arrangement a;
      a.ranks = ranks;
      a.zero = zero;
      a.weights = space;
      std::mutex mutex;
      on_ranks(
          spec, a,
          [&](Session& session) {
            session.load();
            Generator generator(session, {10, {.temperature = 0.7, .seed = 5}, {}});
            const std::vector<int32_t> reply = generator.generate(prompt);
            const std::lock_guard lock(mutex);
            if (expected.empty()) expected = reply;
            EXPECT_EQ(reply, expected) << to_string(a);
          },
          nullptr, streams_of(seed++));
    }
}

// Rank 1 loads and never begins its step: what rank 0 is told.
std::string told_of_a_hang(double patience, LaneMode lanes, const Ground& ground) {
  const auto comms = thread_ranks(2, 1, patience);
  Arrangement a;
  a.ranks = 2;
  a.zero = 3;
  std::string told;
  std::latch given_up(1);
  auto run = [&](int rank) {
    set_threads(1);
    const JobSpec spec = arranged(tiny_job("llama", std::nullopt, DType::F32), a, rank);
    Comm* const comm = comms[static_cast<size_t>(rank)].get();
    Session session(spec, compile(spec, *ground.facts()),
                    {.lanes = lanes, .comm = comm, .backend = [&] { return ground.backend(rank, comm); }});
    session.load();
    session.barrier();
    if (rank == 1) return given_up.wait();
    Outcome outcome;
    train_steps(session, 1, 1, outcome);
  };
  std::jthread other(run, 1);
  try {
    run(0);
  } catch (const PeerError& error) {
    told = error.what();
  }
  EXPECT_EQ(comms[0]->failure()->what(), told);  // for whom what has been thrown does not reach
  given_up.count_down();
  return told;
}

TEST(HangOfARank, IsToldWithTheRankTheCollectiveAndItsOp) {
  auto expected = [](double patience) {
    return fmt::format(
        "rank 1 has given no sign of life for {:g} s while others wait for it; rank 0 waited in the all_gather at "
        "group.0.weights.gather",
        patience);
  };
#ifdef SNUG_TESTS_ON_CUDA
  if (const std::string lack = too_few_cards(2); !lack.empty()) GTEST_SKIP() << lack;
  prepare_nccl();
  EXPECT_EQ(told_of_a_hang(10, LaneMode::Inline, streams_of(0)), expected(10));
#else
  for (const LaneMode lanes : {LaneMode::Inline, LaneMode::Threads})
    EXPECT_EQ(told_of_a_hang(1, lanes, processors()), expected(1));
  EXPECT_EQ(told_of_a_hang(1, LaneMode::Inline, streams_of(1)), expected(1));
#endif
}

INSTANTIATE_TEST_SUITE_P(
    Cases, StreamRanks,
    testing::Combine(testing::Values(TinyCase{"llama", true, DType::F32, 1},
                                     TinyCase{"qwen2_tied", false, DType::BF16, 2},
                                     TinyCase{"llama_gqa7", true, DType::BF16, 1, BaseFormat::Int8},
                                     TinyCase{"llama3", true, DType::BF16, 2, BaseFormat::Nf4},
                                     TinyCase{"llama16", true, DType::BF16, 1, BaseFormat::Fp8, true}),
                     testing::Values(2, 4)),
    [](const auto& info) { return fmt::format("{}_on_{}", std::get<0>(info.param).family, std::get<1>(info.param)); });

}  // namespace
}  // namespace snug
