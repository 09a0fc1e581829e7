// What every connection of ranks must do: run by each rank, over threads and over processes. Throws where it does not.
#pragma once

#include <random>
#include <thread>
#include <vector>

#include "comm/comm.h"

namespace snug {

// The byte at `at` of what a rank gives in a call: row p of it is part p's.
inline std::byte given(int rank, uint64_t call, int row, uint64_t at) {
  uint64_t x = static_cast<uint64_t>(rank) * 0x9e3779b97f4a7c15 + call * 0xbf58476d1ce4e5b9 +
               static_cast<uint64_t>(row) * 0x94d049bb133111eb + at * 0xd6e8feb86659fd93;
  x ^= x >> 29;
  return static_cast<std::byte>(x * 0x9e3779b97f4a7c15 >> 56);
}

// Random collectives on one lane, the same on all ranks for the same seed. What was given is wiped as soon as a call
// returns: others must have it by then.
class LaneChecks {
 public:
  LaneChecks(Comm& comm, Lane lane, uint64_t seed) : comm_(comm), lane_(lane), random_(seed), call_(seed << 32) {}

  void run(int calls) {
    for (int i = 0; i < calls; i++) {
      call_++;
      const uint64_t kind = random_() % 5;
      const int64_t columns = std::array<int64_t, 6>{0, 1, 3, 64, 1000, 20011}[random_() % 6];
      const DType dtype = random_() % 2 ? DType::U8 : DType::F32;
      const bool flag = random_() % 2;
      if (kind < 4)
        all_gather(static_cast<Ranks>(kind), columns, dtype, flag);
      else
        exchange(columns, dtype, flag ? 5 : 0);
    }
  }

 private:
  const Topology& here() const { return comm_.topology(); }

  void all_gather(Ranks who, int64_t columns, DType dtype, bool in_place) {
    const int ranks = here().count(who);
    const uint64_t bytes = static_cast<uint64_t>(columns) * element_bytes(dtype);
    std::vector<std::byte> part(in_place ? 0 : bytes), full(bytes * static_cast<uint64_t>(ranks) + 1, kFree);
    std::byte* own = in_place ? full.data() + bytes * static_cast<uint64_t>(here().place(who)) : part.data();
    for (uint64_t i = 0; i < bytes; i++) own[i] = given(here().rank, call_, 0, i);
    comm_.all_gather(lane_, who, {own, dtype, {columns}, columns},
                     {full.data(), dtype, {ranks * columns}, ranks * columns});
    std::ranges::fill(part, kWiped);
    for (int place = 0; place < ranks; place++)
      for (uint64_t i = 0; i < bytes; i++)
        demand(full[static_cast<uint64_t>(place) * bytes + i], given(here().rank_at(who, place), call_, 0, i), place);
    demand(full.back(), kFree, -1);
  }

  void exchange(int64_t columns, DType dtype, int64_t tail) {
    const int64_t ranks = here().ranks, stride = columns + tail;
    const uint64_t row = static_cast<uint64_t>(stride) * element_bytes(dtype),
                   used = static_cast<uint64_t>(columns) * element_bytes(dtype);
    std::vector<std::byte> in(row * static_cast<uint64_t>(ranks)), out(in.size(), kFree);
    for (int part = 0; part < ranks; part++)
      for (uint64_t i = 0; i < used; i++)
        in[static_cast<uint64_t>(part) * row + i] = given(here().rank, call_, part, i);
    comm_.exchange(lane_, {in.data(), dtype, {ranks, columns}, stride}, {out.data(), dtype, {ranks, columns}, stride});
    std::ranges::fill(in, kWiped);
    for (int rank = 0; rank < ranks; rank++)
      for (uint64_t i = 0; i < row; i++)
        demand(out[static_cast<uint64_t>(rank) * row + i], i < used ? given(rank, call_, here().part(), i) : kFree,
               rank);
  }

  void demand(std::byte found, std::byte expected, int place) const {
    if (found != expected)
      throw std::runtime_error(fmt::format("rank {}, lane {}, call {:x}: place {} has {:02x}, expected {:02x}",
                                           here().rank, name(lane_), call_, place, found, expected));
  }

  static constexpr std::byte kFree{0xa5}, kWiped{0x5a};
  Comm& comm_;
  Lane lane_;
  std::mt19937_64 random_;
  uint64_t call_;
};

// One lane alone; then three at once, which begin in another order on every rank; then what is beside the lanes.
inline void check_rank(Comm& comm, uint64_t seed) {
  const int rank = comm.topology().rank;
  LaneChecks(comm, Lane::Gather, seed).run(30);
  std::array<std::exception_ptr, 3> errors;
  {
    std::vector<std::jthread> lanes;
    for (int i = 0; i < 3; i++)
      lanes.emplace_back([&, i] {
        try {
          std::this_thread::sleep_for(std::chrono::milliseconds((rank + i) % 3 * 3));
          LaneChecks(comm, std::array{Lane::Gather, Lane::Reduce, Lane::CopyIn}[static_cast<size_t>(i)],
                     seed + 1 + static_cast<uint64_t>(i))
              .run(30);
        } catch (const std::exception& error) {
          errors[static_cast<size_t>(i)] = std::current_exception();
          comm.leave(error.what());
        }
      });
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  comm.agree("the seed", seed);
  comm.barrier();
}

}  // namespace snug
