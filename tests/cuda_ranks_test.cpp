// Ranks on GPUs: every byte of a collective arrives in its place, and a rank that fails or hangs ends the others.
#define SNUG_TESTS_ON_CUDA
#include <gmock/gmock.h>

#include "comm/threads.h"
#include "comm_checks.h"
#include "expect_error.h"
#include "measure/measure.h"
#include "stream_ranks_test.cpp"

namespace snug {
namespace {

using namespace std::chrono_literals;

// Of every rank what it threw, empty if nothing; each has a backend of its own.
std::vector<std::string> on_cards(Route route, int ranks, int replicas, double patience,
                                  const std::function<void(Backend&, Comm&)>& work) {
  const auto comms = thread_ranks(ranks, replicas, patience);
  const auto products = make_product_table();
  std::vector<std::string> errors(comms.size());
  std::vector<std::jthread> threads;
  for (size_t rank = 0; rank < comms.size(); rank++)
    threads.emplace_back([&, rank] {
      try {
        RankBackend backend(static_cast<int>(rank), products, *comms[rank], CardTransport{route, 8});
        backend.streams()->use_here();
        comms[rank]->barrier();
        work(backend, *comms[rank]);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
        comms[rank]->leave(error.what());
      }
    });
  threads.clear();
  return errors;
}

Op collective(const Attrs& attrs, Lane lane) {
  Op op;
  op.attrs = attrs;
  op.lane = lane;
  op.site = "test";
  return op;
}

// Random collectives on both lanes, enqueued one after the other, and looked at when all are done.
class DeviceChecks {
 public:
  DeviceChecks(Backend& backend, const Topology& here, uint64_t seed)
      : backend_(backend), here_(here), random_(seed), base_(backend.reserve(Space::Device, kBytes)) {}

  void run(int rounds) {
    for (int round = 0; round < rounds; round++) {
      used_ = 0;
      calls_.clear();
      std::vector<Launch> launches;
      for (int i = 0; i < 40; i++) launches.push_back(draw());
      std::byte last{};
      backend_.read(&last, base_, 1);  // behind what was written, which lanes do not wait for
      for (const Launch& launch : launches) launch({});
      backend_.streams()->finish();
      for (const Call& call : calls_) look(call);
    }
  }

 private:
  static constexpr uint64_t kBytes = 256u << 20;
  static constexpr std::byte kFree{0xa5};
  struct Call {
    uint64_t number = 0, row = 0, stride = 0;  // bytes of a row that are used, and from row to row
    std::optional<Ranks> gathered;             // none: an exchange
    std::byte* out = nullptr;
  };

  std::byte* room(uint64_t bytes) {
    std::byte* const at = base_ + used_;
    used_ += (bytes + 255) / 256 * 256;
    check(used_ <= kBytes, "the test's room is too small");
    return at;
  }

  Launch draw() {
    call_++;
    const uint64_t kind = random_() % 5;
    const int64_t columns = std::array<int64_t, 7>{0, 1, 3, 64, 1000, 20011, 400000}[random_() % 7];
    const DType dtype = random_() % 2 ? DType::U8 : DType::F32;
    const Lane lane = random_() % 2 ? Lane::Gather : Lane::Reduce;
    const bool flag = random_() % 2;
    if (kind < 4) return all_gather(lane, static_cast<Ranks>(kind), columns, dtype, flag);
    return exchange(lane, columns, dtype, flag ? 8 : 0);
  }

  Launch all_gather(Lane lane, Ranks who, int64_t columns, DType dtype, bool in_place) {
    const int ranks = here_.count(who);
    const uint64_t row = static_cast<uint64_t>(columns) * element_bytes(dtype);
    std::vector<std::byte> own(row), full(row * static_cast<uint64_t>(ranks), kFree);
    for (uint64_t i = 0; i < row; i++) own[i] = given(here_.rank, call_, 0, i);
    std::byte* const out = room(full.size());
    backend_.write(out, full.data(), full.size());
    std::byte* const part = in_place ? out + row * static_cast<uint64_t>(here_.place(who)) : room(row);
    backend_.write(part, own.data(), row);
    calls_.push_back({call_, row, row, who, out});
    const std::array views{TensorView{part, dtype, {columns}, columns},
                           TensorView{out, dtype, {ranks * columns}, ranks * columns}};
    return backend_.bind(collective(AllGather{who}, lane), views);
  }

  Launch exchange(Lane lane, int64_t columns, DType dtype, int64_t tail) {
    const uint64_t row = static_cast<uint64_t>(columns) * element_bytes(dtype),
                   stride = row + static_cast<uint64_t>(tail) * element_bytes(dtype),
                   bytes = stride * static_cast<uint64_t>(here_.ranks);
    std::vector<std::byte> mine(bytes), theirs(bytes, kFree);
    for (int part = 0; part < here_.ranks; part++)
      for (uint64_t i = 0; i < row; i++)
        mine[static_cast<uint64_t>(part) * stride + i] = given(here_.rank, call_, part, i);
    std::byte *const in = room(bytes), *const out = room(bytes);
    backend_.write(in, mine.data(), bytes);
    backend_.write(out, theirs.data(), bytes);
    calls_.push_back({call_, row, stride, std::nullopt, out});
    const std::array views{TensorView{in, dtype, {here_.ranks, columns}, columns + tail},
                           TensorView{out, dtype, {here_.ranks, columns}, columns + tail}};
    return backend_.bind(collective(Exchange{}, lane), views);
  }

  void look(const Call& call) {
    const Ranks who = call.gathered.value_or(Ranks::Everyone);
    const int rows = here_.count(who);
    std::vector<std::byte> found(call.stride * static_cast<uint64_t>(rows));
    backend_.read(found.data(), call.out, found.size());
    for (int place = 0; place < rows; place++)
      for (uint64_t i = 0; i < call.stride; i++) {
        const std::byte expected =
            i >= call.row ? kFree : given(here_.rank_at(who, place), call.number, call.gathered ? 0 : here_.part(), i);
        check(found[static_cast<uint64_t>(place) * call.stride + i] == expected,
              "rank {}, call {}: byte {} from place {} is wrong", here_.rank, call.number, i, place);
      }
  }

  Backend& backend_;
  Topology here_;
  std::mt19937_64 random_;
  std::byte* base_;
  uint64_t used_ = 0, call_ = 0;
  std::vector<Call> calls_;
};

struct SeveralCards : testing::TestWithParam<std::tuple<Route, int>> {
  void SetUp() override {
    if (const std::string lack = too_few_cards(ranks); !lack.empty()) GTEST_SKIP() << lack;
    prepare_nccl();
  }
  const Route route = std::get<0>(GetParam());
  const int ranks = std::get<1>(GetParam());
};

TEST_P(SeveralCards, EveryByteArrivesInItsPlaceOnBothLanes) {
  for (const int replicas : {1, 2})
    EXPECT_THAT(on_cards(route, ranks, replicas, kPatience,
                         [](Backend& backend, Comm& comm) { DeviceChecks(backend, comm.topology(), 1).run(10); }),
                testing::Each(""));
}

// Enqueues an all-gather of 8 bytes.
void gather(Backend& backend, const Comm& comm) {
  static constexpr int64_t kBytes = 8;
  const int ranks = comm.topology().ranks;
  std::byte* const full = backend.reserve(Space::Device, static_cast<uint64_t>(ranks * kBytes));
  const std::array views{TensorView{full + kBytes * comm.topology().rank, DType::U8, {kBytes}, kBytes},
                         TensorView{full, DType::U8, {ranks * kBytes}, ranks * kBytes}};
  backend.bind(collective(AllGather{Ranks::Everyone}, Lane::Gather), views)({});
}

TEST_P(SeveralCards, ARankThatFailsEndsTheWorkThatWaitsForIt) {
  const auto errors = on_cards(route, ranks, 1, kPatience, [](Backend& backend, Comm& comm) {
    if (comm.topology().rank == 1) {
      std::this_thread::sleep_for(200ms);
      device_error("disk full");
    }
    gather(backend, comm);
    backend.streams()->finish();
  });
  for (size_t rank = 0; rank < errors.size(); rank++)
    EXPECT_EQ(errors[rank], rank == 1 ? "disk full" : "rank 1 failed: disk full");
}

TEST_P(SeveralCards, ARankThatHangsEndsTheWorkThatWaitsForIt) {
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = on_cards(route, ranks, 1, 4, [](Backend& backend, Comm& comm) {
    if (comm.topology().rank == 1) std::this_thread::sleep_for(10s);
    gather(backend, comm);
    backend.streams()->finish();
  });
  EXPECT_THAT(errors, testing::Each("rank 1 has given no sign of life for 4 s while others wait for it"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
}

TEST_P(SeveralCards, TheLinkIsMeasured) {
  EXPECT_THAT(on_cards(route, ranks, 1, kPatience,
                       [](Backend& backend, Comm& comm) {
                         for (const double rate : measure_link(backend, comm.topology()).rates.rates)
                           check(rate > 1e9 && rate < 1e13, "{} bytes a second", rate);
                       }),
              testing::Each(""));
}

INSTANTIATE_TEST_SUITE_P(Routes, SeveralCards,
                         testing::Combine(testing::Values(Route::Copies, Route::Nccl), testing::Values(2, 4)),
                         [](const auto& info) {
                           const bool nccl = std::get<0>(info.param) == Route::Nccl;
                           return fmt::format("{}_{}", nccl ? "nccl" : "copies", std::get<1>(info.param));
                         });

}  // namespace
}  // namespace snug
