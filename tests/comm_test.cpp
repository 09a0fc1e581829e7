// Ranks as threads: collectives are exact whatever the order, and a rank that ends or hangs ends all others.
#include <gtest/gtest.h>

#include <chrono>
#include <latch>
#include <numeric>

#include "comm/mpi.h"
#include "comm/threads.h"
#include "comm/watch.h"
#include "comm_checks.h"
#include "count_allocations.h"
#include "expect_error.h"

namespace snug {
namespace {

using namespace std::chrono_literals;

// Runs every rank on a thread of its own; what each threw, empty if nothing.
std::vector<std::string> run_ranks(std::vector<std::unique_ptr<Comm>> ends, const std::function<void(Comm&)>& body) {
  std::vector<std::string> errors(ends.size());
  std::vector<std::jthread> threads;
  for (size_t rank = 0; rank < ends.size(); rank++)
    threads.emplace_back([&, rank, end = std::move(ends[rank])]() mutable {
      try {
        body(*end);
      } catch (const PeerError& error) {
        errors[rank] = error.what();
      } catch (const std::exception& error) {
        errors[rank] = fmt::format("own error: {}", error.what());
        end->leave(error.what());
      }
      end.reset();
    });
  threads.clear();
  return errors;
}

void expect_all(const std::vector<std::string>& errors, std::string_view expected) {
  for (size_t rank = 0; rank < errors.size(); rank++) EXPECT_EQ(errors[rank], expected) << "on rank " << rank;
}

// A call of 8 bytes with all ranks.
void call(Comm& comm, Lane lane = Lane::Gather) {
  const auto ranks = static_cast<int64_t>(comm.topology().ranks);
  std::vector<std::byte> part(8), full(part.size() * static_cast<size_t>(ranks));
  comm.all_gather(lane, Ranks::Everyone, {part.data(), DType::U8, {8}, 8},
                  {full.data(), DType::U8, {8 * ranks}, 8 * ranks});
}

TEST(Threads, EveryByteArrivesInItsPlaceOnEveryLane) {
  for (const auto& [ranks, replicas] :
       std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {2, 2}, {3, 1}, {3, 3}, {4, 1}, {4, 2}, {8, 1}, {8, 2}, {8, 4}})
    for (uint64_t seed = 0; seed < 3; seed++) {
      SCOPED_TRACE(fmt::format("{} ranks, {} replicas, seed {}", ranks, replicas, seed));
      expect_all(run_ranks(thread_ranks(ranks, replicas), [&](Comm& comm) { check_rank(comm, seed); }), "");
    }
}

TEST(Threads, TheTopologyMayBeSetLater) {
  expect_all(run_ranks(thread_ranks(4),
                       [&](Comm& comm) {
                         comm.set_replicas(2);
                         check_rank(comm, 7);
                       }),
             "");
}

TEST(Threads, CallsAllocateNothing) {
  std::latch ready(3), done(3);
  std::atomic<int64_t> allocated = 0;
  const std::vector<std::string> errors = run_ranks(thread_ranks(3), [&](Comm& comm) {
    std::vector<float> part(100000), full(300000), in(300000);
    auto calls = [&] {
      comm.all_gather(Lane::Gather, Ranks::Parts,
                      {reinterpret_cast<std::byte*>(part.data()), DType::F32, {100000}, 100000},
                      {reinterpret_cast<std::byte*>(full.data()), DType::F32, {300000}, 300000});
      comm.exchange(Lane::Gather, {reinterpret_cast<std::byte*>(in.data()), DType::F32, {3, 100000}, 100000},
                    {reinterpret_cast<std::byte*>(full.data()), DType::F32, {3, 100000}, 100000});
      comm.agree("nothing", 1);
      comm.heartbeat();
    };
    calls();
    ready.arrive_and_wait();
    const int64_t before = allocations();
    for (int i = 0; i < 50; i++) calls();
    allocated += allocations() - before;
    done.arrive_and_wait();
  });
  expect_all(errors, "");
  EXPECT_EQ(allocated, 0);
}

TEST(Threads, RanksThatDisagreeLearnWhoDiffers) {
  expect_all(run_ranks(thread_ranks(4),
                       [&](Comm& comm) { comm.agree("the program", comm.topology().rank == 2 ? 0xab : 0xcd); }),
             "own error: ranks do not agree on the program: rank 0 has 00000000000000cd, rank 2 has 00000000000000ab; "
             "expected the same command, job, model, data and build of snug on all of them");
}

TEST(Threads, ARankThatLeavesEndsAllPendingAndLaterCalls) {
  const std::vector<std::string> errors = run_ranks(thread_ranks(4), [&](Comm& comm) {
    for (int i = 0; i < 5; i++) call(comm);
    if (comm.topology().rank == 2) {
      std::this_thread::sleep_for(10ms);
      comm.leave("disk full");
    }
    if (comm.topology().rank == 3) std::this_thread::sleep_for(30ms);
    EXPECT_TRUE(fails_with<PeerError>([&] { call(comm, Lane::Reduce); }, "rank 2 failed: disk full"));
    call(comm);
  });
  expect_all(errors, "rank 2 failed: disk full");
}

TEST(Threads, TheFailureSaysWhereARankWaitedAsSoonAsOneHasSaidSo) {
  std::latch said(1);
  run_ranks(thread_ranks(3), [&](Comm& comm) {
    const int rank = comm.topology().rank;
    if (rank == 2) comm.leave("disk full");
    if (rank < 2) try {
        call(comm);
      } catch (const PeerError& error) {
        EXPECT_STREQ(error.what(), "rank 2 failed: disk full");
        if (rank == 0) said.wait();
        const std::string expected = fmt::format("rank 2 failed: disk full; rank {} waited in a call", rank);
        EXPECT_TRUE(fails_with<PeerError>([&] { comm.rethrow(error, "in a call"); }, expected));
        if (rank == 1) said.count_down();
      }
    said.wait();
    EXPECT_STREQ(comm.failure()->what(), "rank 2 failed: disk full; rank 1 waited in a call");
    EXPECT_TRUE(fails_with<PeerError>([&] { call(comm); }, "rank 2 failed: disk full"));
  });
}

TEST(Threads, LeavingWakesTheOtherLanesOfTheSameRank) {
  const std::vector<std::string> errors = run_ranks(thread_ranks(2), [&](Comm& comm) {
    if (comm.topology().rank == 1) {
      EXPECT_TRUE(fails_with<PeerError>([&] { call(comm); }, "rank 0 failed: a product"));
      return;
    }
    std::jthread gather(
        [&] { EXPECT_TRUE(fails_with<PeerError>([&] { call(comm, Lane::Reduce); }, "rank 0 failed: a product")); });
    std::this_thread::sleep_for(10ms);
    comm.leave("a product");
  });
  expect_all(errors, "");
}

TEST(Threads, ARankThatEndsIsNamedByThoseThatWaitForIt) {
  const std::vector<std::string> errors = run_ranks(thread_ranks(3), [&](Comm& comm) {
    comm.barrier();
    if (comm.topology().rank != 1) call(comm);
  });
  EXPECT_EQ(errors[0], "rank 1 has ended while others wait for it");
  EXPECT_EQ(errors[1], "");
  EXPECT_EQ(errors[2], "rank 1 has ended while others wait for it");
}

TEST(Threads, ARankWithoutASignOfLifeEndsAll) {
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<std::string> errors = run_ranks(thread_ranks(4, 1, 0.3), [&](Comm& comm) {
    call(comm);
    if (comm.topology().rank == 1) std::this_thread::sleep_for(1s);
    call(comm);
  });
  expect_all(errors, "rank 1 has given no sign of life for 0.3 s while others wait for it");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 3s);
}

// Rank 0 waits for rank 1, which waits for rank 2 on another lane.
TEST(Threads, TheOneAtFaultIsNamedAndNotTheOnesBetween) {
  const std::vector<std::string> errors = run_ranks(thread_ranks(3, 1, 0.3), [&](Comm& comm) {
    if (comm.topology().rank == 2) std::this_thread::sleep_for(1s);
    if (comm.topology().rank != 0) call(comm, Lane::Reduce);
    call(comm);
  });
  expect_all(errors, "rank 2 has given no sign of life for 0.3 s while others wait for it");
}

TEST(Threads, AWaitForWhatOthersTellIsToldWithItsPlace) {
  const auto told = [](const std::function<void(Comm&)>& meet) {
    return run_ranks(thread_ranks(2, 1, 0.3), [&](Comm& comm) {
      call(comm);
      if (comm.topology().rank == 1) std::this_thread::sleep_for(1s);
      meet(comm);
    })[0];
  };
  const std::string hangs = "rank 1 has given no sign of life for 0.3 s while others wait for it";
  EXPECT_EQ(told([](Comm& comm) {
              comm.allgather_host(7, {"the end of step", 12});
            }),
            hangs + "; rank 0 waited at the end of step 12");
  EXPECT_EQ(told([](Comm& comm) { comm.barrier("the end of loading"); }),
            hangs + "; rank 0 waited at the end of loading");
  EXPECT_EQ(told([](Comm& comm) { comm.barrier(); }), hangs);
  EXPECT_EQ(told([](Comm& comm) { comm.agree("the data", 3); }),
            hangs + "; rank 0 waited at the comparison of the data");
}

TEST(Threads, HeartbeatsKeepASlowRankAlive) {
  expect_all(run_ranks(thread_ranks(3, 1, 0.3),
                       [&](Comm& comm) {
                         if (comm.topology().rank == 1)
                           for (int i = 0; i < 16; i++) {
                             std::this_thread::sleep_for(50ms);
                             comm.heartbeat();
                           }
                         call(comm);
                       }),
             "");
}

// Somebody who types, say.
std::vector<uint64_t> wait_outside(const Heartbeat& heartbeat, std::chrono::milliseconds time) {
  for (const auto end = std::chrono::steady_clock::now() + time; std::chrono::steady_clock::now() < end; heartbeat())
    std::this_thread::sleep_for(20ms);
  return {3, UINT64_MAX, 0};
}

TEST(Threads, WhatRankZeroWaitsForOutsideTheJobIsNoHang) {
  expect_all(
      run_ranks(thread_ranks(3, 1, 0.4),
                [](Comm& comm) {
                  for (const auto time : {0ms, 1500ms})
                    EXPECT_EQ(
                        from_rank_0(&comm, [&](const Heartbeat& heartbeat) { return wait_outside(heartbeat, time); }),
                        (std::vector<uint64_t>{3, UINT64_MAX, 0}));
                  EXPECT_TRUE(from_rank_0(&comm, [](const Heartbeat&) { return std::vector<uint64_t>(); }).empty());
                }),
      "");
  EXPECT_EQ(from_rank_0(nullptr, [](const Heartbeat&) { return std::vector<uint64_t>{5}; }), std::vector<uint64_t>{5});
}

std::vector<uint64_t> many_words() {
  std::vector<uint64_t> words(10'000);
  std::iota(words.begin(), words.end(), uint64_t{7} << 40);
  return words;
}

TEST(Threads, EveryWordThatRankZeroGotFromOutsideArrives) {
  expect_all(run_ranks(thread_ranks(3),
                       [](Comm& comm) {
                         const std::vector<uint64_t> words = from_rank_0(&comm, [&](const Heartbeat&) {
                           return comm.topology().rank == 0 ? many_words() : std::vector<uint64_t>{1};
                         });
                         EXPECT_EQ(words, many_words());
                       }),
             "");
}

// One rank, which counts.
class CountingComm : public Comm {
 public:
  CountingComm() : Comm({1, 1, 0}) {}
  int calls = 0;

 private:
  void step(size_t, const ExchangeStep& step) override {
    calls++;
    step.take(0, step.row_for(topology()));
  }
  void wait_until(const std::function<bool()>&) override {}
  void leave(std::string_view) noexcept override {}
  void heartbeat() noexcept override {}
  std::optional<PeerError> failure() const override { return std::nullopt; }
  void elaborate(const PeerError&) noexcept override {}
};

// Each is a journey where ranks are far apart.
TEST(Comm, ManyWordsFromRankZeroTakeFewCollectives) {
  CountingComm comm;
  EXPECT_EQ(from_rank_0(&comm, [](const Heartbeat&) { return many_words(); }), many_words());
  EXPECT_LE(comm.calls, 12);
}

TEST(Threads, ARankThatEndsWhileRankZeroWaitsOutsideTheJobIsNoticed) {
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<std::string> errors = run_ranks(thread_ranks(3), [](Comm& comm) {
    if (comm.topology().rank != 1)
      from_rank_0(&comm, [](const Heartbeat& heartbeat) { return wait_outside(heartbeat, 60s); });
  });
  EXPECT_EQ(errors[0], "rank 1 has ended while others wait for it; rank 0 waited at rank 0's input");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
}

TEST(Watch, AWaitBeginsAnewForWhoWasNotThereToLook) {
  Watch watch(2, 2);
  Waiting waiting(watch, 0);
  const int64_t begin = waiting.since();
  std::this_thread::sleep_for(10ms);
  EXPECT_EQ(waiting.since(), begin);
  std::this_thread::sleep_for(700ms);
  EXPECT_GE(waiting.since() - begin, 700'000'000);
}

// Its last message says that it had advanced a little before, so the patience for that runs out first.
TEST(Watch, ARankWhoseMessagesStoppedIsNeverSaidToHang) {
  Watch watch(2, 0.4);
  std::this_thread::sleep_for(50ms);
  watch.heard(1);
  std::string what;
  while (what.empty()) what = watch.complaint(1, 0, true);
  EXPECT_EQ(what, "has not been heard of for 0.4 s");
}

TEST(Threads, RanksThatWaitForEachOtherDoNotWaitForEver) {
  const std::vector<std::string> errors = run_ranks(thread_ranks(2, 1, 0.3), [&](Comm& comm) {
    call(comm, comm.topology().rank == 0 ? Lane::Gather : Lane::Reduce);
  });
  for (const std::string& error : errors) EXPECT_TRUE(error.ends_with("and others wait for each other")) << error;
}

TEST(Threads, AWaitForADeviceEndsWhenItIsDoneOrWithTheRankThatHoldsItUp) {
  const std::vector<std::string> failed = run_ranks(thread_ranks(3), [&](Comm& comm) {
    int looks = 0;
    comm.wait_until([&] { return ++looks == 1000; });
    EXPECT_EQ(looks, 1000);
    if (comm.topology().rank == 1) throw std::runtime_error("no more memory");
    comm.wait_until([] { return false; });
  });
  EXPECT_EQ(failed[0], "rank 1 failed: no more memory");
  EXPECT_EQ(failed[1], "own error: no more memory");
  EXPECT_EQ(failed[2], "rank 1 failed: no more memory");
  expect_all(run_ranks(thread_ranks(3, 1, 0.3),
                       [&](Comm& comm) {
                         if (comm.topology().rank == 1) std::this_thread::sleep_for(1s);
                         comm.wait_until([] { return false; });
                       }),
             "rank 1 has given no sign of life for 0.3 s while others wait for it");
}

// Its own work may take longer than theirs.
TEST(Threads, AWaitForADeviceGoesOnAfterOthersHaveEnded) {
  expect_all(run_ranks(thread_ranks(2, 1, 5),
                       [&](Comm& comm) {
                         if (comm.topology().rank == 1) return;
                         const auto begin = std::chrono::steady_clock::now();
                         comm.wait_until([&] { return std::chrono::steady_clock::now() - begin > 200ms; });
                       }),
             "");
}

TEST(Threads, RanksThatAllWaitForTheirDevicesDoNotWaitForEver) {
  for (const std::string& error :
       run_ranks(thread_ranks(2, 1, 0.3), [](Comm& comm) { comm.wait_until([] { return false; }); }))
    EXPECT_TRUE(error.ends_with("and others wait for each other")) << error;
}

// Everybody may free its memory as soon as its call has thrown; the address sanitizer sees who reads it then.
TEST(Threads, NobodyReadsTheMemoryOfACallThatHasThrown) {
  for (int round = 0; round < 30; round++)
    run_ranks(thread_ranks(4), [&](Comm& comm) {
      for (int i = 0;; i++) {
        std::vector<std::byte> part(200000), full(4 * part.size());
        if (comm.topology().rank == round % 4 && i == 5) {
          std::jthread other([&] { std::this_thread::sleep_for(100us), comm.leave("now"); });
          comm.all_gather(Lane::Gather, Ranks::Everyone, {part.data(), DType::U8, {200000}, 200000},
                          {full.data(), DType::U8, {800000}, 800000});
          return;
        }
        comm.all_gather(Lane::Gather, Ranks::Everyone, {part.data(), DType::U8, {200000}, 200000},
                        {full.data(), DType::U8, {800000}, 800000});
      }
    });
}

TEST(Comm, ViewsThatDoNotFitTheTopologyAreAnError) {
  const std::vector<std::unique_ptr<Comm>> ends = thread_ranks(2);
  std::array<std::byte, 64> data{};
  auto view = [&](size_t begin, Shape shape) {
    return TensorView{data.data() + begin, DType::U8, shape, shape.cols()};
  };
  EXPECT_TRUE(fails_with<InternalError>(
      [&] { ends[0]->all_gather(Lane::Gather, Ranks::Everyone, view(0, {8}), view(8, {24})); },
      "all_gather of uint8 [8] from 2 ranks into uint8 [24]"));
  EXPECT_TRUE(fails_with<InternalError>(
      [&] { ends[0]->all_gather(Lane::Gather, Ranks::Everyone, view(8, {8}), view(0, {16})); },
      "the part of place 0 lies in what is gathered, and not in its place"));
  EXPECT_TRUE(fails_with<InternalError>(
      [&] {
        ends[0]->exchange(Lane::Gather, view(0, {3, 4}), view(32, {3, 4}));
      },
      "exchange of uint8 [3, 4] among 2 ranks into uint8 [3, 4]"));
  EXPECT_TRUE(fails_with<InternalError>(
      [&] {
        ends[0]->exchange(Lane::Gather, view(0, {2, 4}), view(4, {2, 4}));
      },
      "input and output overlap"));
  EXPECT_TRUE(fails_with<InternalError>([&] { ends[0]->set_replicas(3); }, "3 replicas of 2 ranks"));
}

TEST(Comm, CollectivesOfDifferentSizesAreAnErrorOnEveryRank) {
  const std::vector<std::string> errors = run_ranks(thread_ranks(2), [&](Comm& comm) {
    std::array<std::byte, 64> data{};
    const int64_t n = 4 + 4 * comm.topology().rank;
    comm.all_gather(Lane::Gather, Ranks::Everyone, {data.data(), DType::U8, {n}, n},
                    {data.data() + 32, DType::U8, {2 * n}, 2 * n});
  });
  // The later one may have learnt it from the earlier.
  for (const std::string& error : errors)
    EXPECT_TRUE(error.ends_with("a collective of 4 bytes on rank 0, and of 8 on rank 1") ||
                error.ends_with("a collective of 8 bytes on rank 1, and of 4 on rank 0"))
        << error;
}

TEST(Mpi, IsNotAskedForWithoutALauncher) { EXPECT_FALSE(started_by_mpi()); }

// As srun has it, with --mpi=pmix and pmi2.
TEST(Mpi, IsNotAskedForByTheOneProcessOfALauncher) {
  for (const auto& [rank, size] : {std::pair("PMIX_RANK", "SLURM_STEP_NUM_TASKS"), {"PMI_RANK", "PMI_SIZE"}}) {
    setenv(rank, "0", 1);
    EXPECT_TRUE(started_by_mpi()) << rank;
    setenv(size, "2", 1);
    EXPECT_TRUE(started_by_mpi()) << rank;
    setenv(size, "1", 1);
    EXPECT_FALSE(started_by_mpi()) << rank;
    unsetenv(rank);
    unsetenv(size);
  }
}

}  // namespace
}  // namespace snug
