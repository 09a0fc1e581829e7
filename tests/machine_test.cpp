// Machine profiles: their JSON, and prices by hand.
#include "plan/forecast/machine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "backend/cuda/facts.h"
#include "expect_error.h"
#include "plan/forecast/forecast.h"
#include "program/emitter.h"

namespace snug {
namespace {

Machine example() {
  Machine machine;
  machine.processor = "a processor";
  machine.cores = 4;
  machine.memory_bytes = 16ull << 30;
  machine.free_bytes = 12ull << 30;
  machine.group_limit_bytes = 14ull << 30;
  machine.disk = {"/data", true, 2e9, 1e9, 1ull << 40};
  machine.link = 5e9;
  machine.product_sizes = {16, 64};
  TeamRates team;
  team.threads = 1;
  team.op_seconds = 1e-6;
  team.flops = 1e10;
  team.copy = {{1e3, 1e5}, {1e9, 4e9}};
  team.products.push_back(
      {DType::BF16, false, true, false, {1e9, 2e9, 2e9, 4e9, 2e9, 4e9, 4e9, 8e9}});  // doubles with every side
  team.attention.push_back({DType::BF16, false, 64, {{64, 1024}, {1e9, 4e9}}});
  team.attention.push_back({DType::BF16, false, 128, {{64, 1024}, {2e9, 8e9}}});
  team.kinds.push_back({"swiglu", DType::BF16, {{1e3}, {2e9}}});
  machine.teams.push_back(team);
  team.threads = 3;
  team.flops = 3e10;
  for (double& flops : team.products[0].flops) flops *= 3;
  machine.teams.push_back(team);
  return machine;
}

constexpr double kOverhead = 1e-6;

struct Priced {
  ProgramSet set;
  Op op;
  double on(int threads) const { return seconds(op, set.buffers, example(), threads) - kOverhead; }
};

Priced op_of(Attrs attrs, std::initializer_list<std::pair<DType, Shape>> operands,
             std::initializer_list<Space> spaces = {}) {
  Priced priced;
  priced.op.attrs = std::move(attrs);
  size_t i = 0;
  for (const auto& [dtype, shape] : operands) {
    const Space space = i < spaces.size() ? spaces.begin()[i] : Space::Device;
    Operand operand = new_tensor(priced.set, "x", dtype, shape, Role::Activation, space);
    operand.access = ++i == operands.size() ? Access::Write : Access::Read;
    priced.op.operands.push_back(operand);
  }
  return priced;
}

Priced product(int64_t m, int64_t n, int64_t k, DType dtype = DType::BF16) {
  return op_of(Gemm{.transpose_b = true}, {{dtype, {m, k}}, {dtype, {n, k}}, {dtype, {m, n}}});
}

TEST(RateCurve, TimeGrowsEvenlyBetweenSizesAndTheRateStaysBeyondTheEnds) {
  const RateCurve curve{{16, 64, 256}, {1e9, 4e9, 4e9}};
  EXPECT_NEAR(curve.at(32), 2e9, 1);                                 // 64 takes as long as 16
  EXPECT_NEAR(RateCurve({{1, 3}, {1, 1.5}}).at(2), 4.0 / 3, 1e-15);  // 1 takes 1, 3 takes 2
  EXPECT_NEAR(curve.at(64), 4e9, 1);
  EXPECT_NEAR(curve.at(100), 4e9, 1);
  EXPECT_NEAR(curve.at(1), 1e9, 1);
  EXPECT_NEAR(curve.at(1e9), 4e9, 1);
}

TEST(Machine, ProductsAreInterpolatedOverAllThreeSides) {
  EXPECT_NEAR(product(16, 16, 16).on(1), 2 * 4096 / 1e9, 1e-12);
  EXPECT_NEAR(product(64, 16, 64).on(1), 2 * 65536 / 4e9, 1e-12);
  // A third of the way to 64 along each side, and 64 takes twice as long as 16.
  EXPECT_NEAR(product(32, 32, 32).on(1), 2 * 4096 / 1e9 * std::pow(4.0 / 3, 3), 1e-12);
  EXPECT_NEAR(product(256, 128, 64).on(1), 2.0 * 256 * 128 * 64 / 8e9, 1e-9);
}

TEST(Machine, ASideBelowTheSmallestCostsWhatTheSmallestDoes) {
  EXPECT_DOUBLE_EQ(product(1, 64, 64).on(1), product(16, 64, 64).on(1));
}

TEST(Machine, ProductsWithoutATableTakeWhatOperationsOrBytesDo) {
  EXPECT_NEAR(product(512, 512, 512, DType::F32).on(1), 2 * std::pow(512, 3) / 1e10, 1e-9);
  EXPECT_NEAR(product(1, 512, 512, DType::F32).on(1), 4 * (512 + 512 * 512 + 512) / 4e9, 1e-9);
}

// Of the table under U8; without one at the card's rough rate for fp8, or at that of other products.
TEST(Machine, ProductsInFp8HaveRatesOfTheirOwn) {
  const DType u8 = DType::U8, f32 = DType::F32;
  const Priced op =
      op_of(Fp8Gemm{}, {{u8, {64, 64}}, {f32, {64}}, {u8, {64, 64}}, {f32, {64}}, {DType::BF16, {64, 64}}});
  Machine machine = rough_machine();
  Rates& rates = machine.teams[0];
  rates.copy = {{1}, {1e18}};
  const double flops = 2 * std::pow(64, 3), overhead = rates.op_seconds;
  rates.flops = 1e9;
  EXPECT_NEAR(seconds(op.op, op.set.buffers, machine, 1) - overhead, flops / 1e9, 1e-9);
  rates.fp8_flops = 2e9;
  EXPECT_NEAR(seconds(op.op, op.set.buffers, machine, 1) - overhead, flops / 2e9, 1e-9);
  machine.product_sizes = {64};
  rates.products = {{DType::BF16, false, true, false, {1e9}}, {u8, false, true, false, {4e9}}};
  EXPECT_NEAR(seconds(op.op, op.set.buffers, machine, 1) - overhead, flops / 4e9, 1e-9);
}

// On cards with warpgroups, of whole tiles: else as the ops that they are made of.
TEST(Machine, OpsThatAreOneKernelArePricedAsOneProduct) {
  const DType t = DType::BF16;
  Machine machine = rough_machine();
  Rates& rates = machine.teams[0];
  rates.copy = {{1}, {1e9}};
  machine.product_sizes = {16};
  rates.products = {{t, false, true, false, {1e12}}, {t, false, true, true, {5e11}}, {t, false, false, false, {1e12}}};
  const auto price = [&](const Priced& of, bool tiles) {
    const CudaFacts facts(tiles ? 90 : 89);
    return seconds(of.op, of.set.buffers, machine, 1, {}, &facts) - rates.op_seconds;
  };
  const double linear = 2 * 128 * 256 * 64 / 1e12, adapter = 2 * 128 * 256 * 16 / 1e12;
  const Priced adapted = op_of(AdaptedGemm{true, {{0}, {256}}},
                               {{t, {128, 64}}, {t, {256, 64}}, {t, {128, 16}}, {t, {256, 16}}, {t, {128, 256}}});
  EXPECT_NEAR(price(adapted, true), linear + adapter, 1e-12);
  EXPECT_NEAR(price(adapted, false), 2 * linear + adapter, 1e-12) << "the linear adds to what the adapter gave";

  const auto gated = [&](int64_t f) {
    return op_of(SwiGluGemm{}, {{t, {128, 64}}, {t, {2 * f, 64}}, {t, {128, 2 * f}}, {t, {128, f}}});
  };
  const double swiglu = 2 * 128 * 3 * 128 / 1e9;
  EXPECT_NEAR(price(gated(128), true), linear + 0.3 * swiglu, 1e-9);
  EXPECT_NEAR(price(gated(128), false), linear + swiglu, 1e-9);
  EXPECT_NEAR(price(gated(96), true), price(gated(96), false), 1e-12) << "no whole tiles";
  const Priced backward =
      op_of(SwiGluGemmBackward{}, {{t, {128, 64}}, {t, {64, 128}}, {t, {128, 256}}, {t, {128, 256}}, {t, {128, 128}}});
  EXPECT_NEAR(price(backward, true), linear / 2 + 0.6 * 2 * 128 * 5 * 128 / 1e9, 1e-9);
}

// In one kernel what is quantised is not read again, but the bytes of both take longer; apart each op has its own.
TEST(Machine, SwiGluWithCodesIsPricedByItsKernelOrByItsOps) {
  const DType t = DType::BF16, u8 = DType::U8, f32 = DType::F32;
  Machine machine;
  machine.teams.resize(1);
  machine.teams[0].copy = {{1}, {1e9}};
  const auto price = [&](const Priced& of, int capability) {
    const CudaFacts facts(capability);
    return seconds(of.op, of.set.buffers, machine, 1, {}, &facts) - machine.teams[0].op_seconds;
  };
  const double h = 128 * 64, scales = 4 * 128, columns = 4 * 64;
  const Priced forward = op_of(SwiGluQuantize{}, {{t, {128, 128}}, {t, {128, 64}}, {u8, {128, 64}}, {f32, {128}}}),
               with_columns = op_of(SwiGluQuantize{true},
                                    {{t, {128, 128}}, {t, {128, 64}}, {u8, {128, 64}}, {f32, {128}}, {f32, {64}}});
  EXPECT_NEAR(price(forward, 90), (7 * h + scales) / 0.84 / 1e9, 1e-9);
  EXPECT_NEAR(price(with_columns, 90), (7 * h + scales + columns) / 0.84 / 1e9, 1e-9);
  EXPECT_NEAR(price(forward, 89), (9 * h + scales) / 1e9, 1e-9);
  const Priced backward = op_of(
      SwiGluBackwardQuantize{false, true},
      {{t, {128, 64}}, {t, {128, 128}}, {f32, {128}}, {t, {128, 128}}, {u8, {128, 128}}, {f32, {128}}, {f32, {128}}});
  EXPECT_NEAR(price(backward, 90), (12 * h + 2 * scales + 2 * columns) / 0.75 / 1e9, 1e-9);
  EXPECT_NEAR(price(backward, 89), (16 * h + 2 * scales + 2 * columns) / 1e9, 1e-9);
}

TEST(Machine, AttentionIsInterpolatedOverLengthAndHeadSize) {
  auto attention = [](int64_t dim, int64_t longest) {
    return op_of(Attention{{2, 1, dim}, 1, longest}, {{DType::BF16, {1024, 2 * dim}},
                                                      {DType::BF16, {1024, dim}},
                                                      {DType::BF16, {1024, dim}},
                                                      {DType::I32, {9}},
                                                      {DType::BF16, {1024, 2 * dim}},
                                                      {DType::F32, {2, 1024}}});
  };
  // A token of 64 takes 64 ns, of 1024 256 ns, of 256, a fifth of the way, 102.4.
  EXPECT_NEAR(attention(64, 256).on(1), 2.0 * 1024 * 256 * 128 / 2.5e9, 1e-9);
  EXPECT_NEAR(attention(128, 1024).on(1), 2.0 * 1024 * 1024 * 256 / 8e9, 1e-9);
  EXPECT_NEAR(attention(96, 64).on(1), 2.0 * 1024 * 64 * 192 / 1.5e9, 1e-9);
}

// Heads of 100 have no tiles of Hopper's own.
TEST(Machine, AttentionByTheTilesOfOtherCardsIsSlowerOnHopper) {
  const Machine machine = builtin_machine("1xH100").value();
  const auto price = [&](int64_t dim, bool backward) {
    const DType t = DType::BF16;
    const Shape rows{8192, 16 * dim};
    const Attention attention{{16, 16, dim}, 1, 2048};
    const Priced of =
        backward ? op_of(AttentionBackward{attention}, {{t, rows},
                                                        {t, rows},
                                                        {t, rows},
                                                        {t, rows},
                                                        {t, rows},
                                                        {DType::F32, {16, 8192}},
                                                        {DType::I32, {5}},
                                                        {t, rows},
                                                        {t, rows},
                                                        {t, rows}})
                 : op_of(attention,
                         {{t, rows}, {t, rows}, {t, rows}, {DType::I32, {5}}, {t, rows}, {DType::F32, {16, 8192}}});
    const CudaFacts facts(90);
    return seconds(of.op, of.set.buffers, machine, 1, {}, &facts);
  };
  for (const bool backward : {false, true}) EXPECT_GT(price(100, backward), 2 * price(128, backward)) << backward;
}

// In fp32 a product of few columns costs few operations.
TEST(Machine, ProductsOfOneRateHaveItForAllSizes) {
  const Machine machine = builtin_machine("1xH100").value();
  const auto price = [&](int64_t n) {
    const Priced of = product(8192, n, 2048, DType::F32);
    return seconds(of.op, of.set.buffers, machine, 1);
  };
  EXPECT_LT(price(16), price(2048) / 20);
}

TEST(Machine, OtherOpsTakeTheirKindsRateOrThatOfACopy) {
  const std::initializer_list<std::pair<DType, Shape>> bf16{{DType::BF16, {100, 200}}, {DType::BF16, {100, 100}}};
  const std::initializer_list<std::pair<DType, Shape>> fp32{{DType::F32, {100, 200}}, {DType::F32, {100, 100}}};
  EXPECT_NEAR(op_of(SwiGlu{}, bf16).on(1), 60000 / 2e9, 1e-12);
  EXPECT_NEAR(op_of(SwiGlu{}, fp32).on(1), 120000 / 4e9, 1e-12);
}

TEST(Machine, CopiesToAndFromDiskTakeTheDisksRates) {
  const std::initializer_list<std::pair<DType, Shape>> megabyte{{DType::U8, {1 << 20}}, {DType::U8, {1 << 20}}};
  EXPECT_NEAR(op_of(Copy{}, megabyte, {Space::Disk, Space::Host}).on(1), (1 << 20) / 2e9, 1e-9);
  EXPECT_NEAR(op_of(Copy{}, megabyte, {Space::Host, Space::Disk}).on(1), (1 << 20) / 1e9, 1e-9);
  EXPECT_NEAR(op_of(Copy{}, megabyte, {Space::Device, Space::Host}).on(1), (2 << 20) / 4e9, 1e-9);
  EXPECT_NEAR(op_of(AllGather{}, {{DType::BF16, {10}}, {DType::BF16, {1000}}}).on(1), 1980 / 5e9, 1e-12)
      << "what the others have";
  EXPECT_NEAR(op_of(Exchange{}, {{DType::BF16, {4, 100}}, {DType::BF16, {4, 100}}}).on(1), 600 / 5e9, 1e-12);
}

TEST(Machine, RatesGrowEvenlyBetweenTeamsAndStayBeyondThem) {
  const Priced op = product(16, 16, 16);
  const double one = op.on(1), two = op.on(2) + kOverhead, three = op.on(3);
  EXPECT_NEAR(three, one / 3, 1e-12);
  EXPECT_NEAR(1 / two, (1 / (one + kOverhead) + 1 / (three + kOverhead)) / 2, 1e-3);
  EXPECT_DOUBLE_EQ(op.on(8), three);
}

TEST(Machine, IsReadAsItWasWritten) {
  const std::string json = write_machine(example());
  const Machine machine = parse_machine(json, "machine.json");
  EXPECT_EQ(write_machine(machine), json);
  EXPECT_EQ(machine.group_limit_bytes, example().group_limit_bytes);
  EXPECT_EQ(machine.teams[1].products[0].flops, example().teams[1].products[0].flops);
  EXPECT_TRUE(machine.disk.direct);
  const std::string rough = write_machine(rough_machine());
  EXPECT_EQ(write_machine(parse_machine(rough, "machine.json")), rough);
}

// 1 GB/s onto the card, 2 GB/s off it, half and three quarters of that with the other one; 4e9 on it.
Machine with_a_card() {
  Machine machine = example();
  machine.cards = Cards{.name = "a card",
                        .capability = 90,
                        .count = 2,
                        .memory_bytes = 8ull << 30,
                        .free_bytes = 7ull << 30,
                        .driver_bytes = 1ull << 28,
                        .bus = {1e9, 2e9},
                        .shared_bus = {0.5e9, 1.5e9},
                        .copies = {1ull << 27, 2e10, 4},
                        .nccl = {1ull << 26, 1e10, 16},
                        .node_link = 1e10,
                        .node_latency = 1e-4,
                        .rates = machine.teams[0]};
  machine.cards->rates.op_seconds = 0;
  machine.cards->rates.copy = {{1}, {4e9}};
  machine.cards->condition = "61 C, 1755 MHz";
  return machine;
}

TEST(Machine, WhereItHasCardsTheyAreTheDevice) {
  const Machine machine = with_a_card();
  auto copied = [&](Space from, Space to, const Nodes& nodes = {}) {
    const Priced op = op_of(Copy{}, {{DType::F32, {1 << 20}}, {DType::F32, {1 << 20}}}, {from, to});
    return seconds(op.op, op.set.buffers, machine, 1, nodes) / (1 << 22);
  };
  EXPECT_DOUBLE_EQ(copied(Space::Host, Space::Device), 1e-9);
  EXPECT_DOUBLE_EQ(copied(Space::Device, Space::Host), 0.5e-9);
  const Nodes both({2, 1, 0}, 2);
  EXPECT_DOUBLE_EQ(copied(Space::Host, Space::Device, both), 2e-9);
  EXPECT_DOUBLE_EQ(copied(Space::Device, Space::Host, both), 1 / 1.5e9);
  EXPECT_DOUBLE_EQ(copied(Space::Host, Space::Device, Nodes({2, 1, 0}, 1)), 1e-9) << "each alone on its host";
  EXPECT_DOUBLE_EQ(copied(Space::Device, Space::Device), 0.5e-9);  // read and written
  EXPECT_DOUBLE_EQ(copied(Space::Disk, Space::Host), 0.5e-9);
  const Priced gather = op_of(AllGather{}, {{DType::BF16, {500}}, {DType::BF16, {1000}}});
  EXPECT_DOUBLE_EQ(seconds(gather.op, gather.set.buffers, machine, 1), 1000 / 2e10);
  const std::string json = write_machine(machine);
  const Machine read = parse_machine(json, "machine.json");
  EXPECT_EQ(write_machine(read), json);
  EXPECT_EQ(read.cards->count, 2);
  EXPECT_EQ(read.cards->driver_bytes, 1ull << 28);
  EXPECT_EQ(read.cards->copies.bytes, 1ull << 27);
  EXPECT_EQ(read.cards->nccl.bytes, 1ull << 26);
  EXPECT_EQ(read.cards->nccl.blocks, 16);
  EXPECT_EQ(read.cards->copies.blocks, 4);
  EXPECT_EQ(read.cards->rates.attention.size(), 2u);
  EXPECT_EQ(read.cards->condition, "61 C, 1755 MHz");
}

// Of 50.56 GB/s; shares as pairs and four cards were seen to have.
TEST(Machine, TheBusOfANamedMachineIsSharedByThoseWhoAreAtIt) {
  const auto expect_bus = [](const char* name, int ranks, double into, double back) {
    const Bus bus = Nodes({ranks, 1, 0}, ranks).bus(*builtin_machine(name)->cards);
    EXPECT_DOUBLE_EQ(bus.to_device / 50.56e9, into) << name << ' ' << ranks;
    EXPECT_DOUBLE_EQ(bus.from_device / 50.56e9, back) << name << ' ' << ranks;
  };
  expect_bus("1xH100", 1, 1, 1);
  expect_bus("8xH100", 1, 1, 1);
  expect_bus("2xH100", 2, 0.77, 0.9);
  expect_bus("8xH100", 2, 0.77, 0.89);  // a third of the way from 1 to 0.67
  expect_bus("3xH100", 3, 0.77, 0.785);
  for (const int ranks : {4, 8}) expect_bus("8xH100", ranks, 0.77, 0.67);
}

// 20 GB/s within a host, 10 GB/s from others, and 100 us for each further host.
TEST(Machine, CollectivesOverHostsTakeWhatTheirSlowerLinkDoes) {
  Machine machine = with_a_card();
  machine.cards->copies.rate = 4e10;
  machine.cards->nccl.rate = 2e10;
  auto seconds_of = [&](const Attrs& attrs, int64_t part, int64_t members, const Nodes& nodes) {
    const bool gathers = std::holds_alternative<AllGather>(attrs);
    const Shape in = gathers ? Shape{part} : Shape{members, part}, out = gathers ? Shape{members * part} : in;
    const Priced op = op_of(attrs, {{DType::U8, in}, {DType::U8, out}});
    return seconds(op.op, op.set.buffers, machine, 1, nodes);
  };
  constexpr int64_t kPart = 1'000'000'000;
  const Nodes eight({8, 1, 0}, 4), hybrid({8, 2, 0}, 4), uneven({6, 1, 0}, 4), across({8, 4, 0}, 4), one({8, 1, 0}, 8);
  // In rings all 7 parts go round within a host and enter it, a quarter of them by each card.
  EXPECT_DOUBLE_EQ(seconds_of(AllGather{Ranks::Replica}, kPart, 8, eight), 7 / 20.0 + 1e-4);
  EXPECT_DOUBLE_EQ(seconds_of(AllGather{Ranks::Replica}, kPart, 8, Nodes({8, 1, 0}, 1)), 7 / 10.0 + 7e-4);
  // Everybody's own: 4 parts over the slow link, at the same time as 3 within.
  EXPECT_DOUBLE_EQ(seconds_of(Exchange{}, kPart, 8, eight), 4 / 10.0 + 1e-4);
  EXPECT_DOUBLE_EQ(seconds_of(Exchange{}, kPart, 8, one), 7 / 40.0) << "by copies";
  // A replica on each host: its shards do not leave it, those who hold the same one are on two.
  EXPECT_DOUBLE_EQ(seconds_of(AllGather{Ranks::Replica}, kPart, 4, hybrid), 3 / 20.0);
  EXPECT_DOUBLE_EQ(seconds_of(AllGather{Ranks::Peers}, kPart, 2, hybrid), 1 / 10.0 + 1e-4);
  EXPECT_DOUBLE_EQ(seconds_of(AllGather{Ranks::Everyone}, kPart, 8, hybrid), 7 / 20.0 + 1e-4);
  EXPECT_DOUBLE_EQ(seconds_of(AllGather{Ranks::Parts}, kPart, 8, hybrid), 4 / 10.0 + 1e-4) << "in another order";
  // The last host has two ranks, each of which has four elsewhere.
  EXPECT_DOUBLE_EQ(seconds_of(Exchange{}, kPart, 6, uneven), 4 / 10.0 + 1e-4);
  EXPECT_DOUBLE_EQ(seconds_of(AllGather{Ranks::Peers}, kPart, 4, across), 2 / 10.0 + 1e-4);
  machine.cards->node_link = 2e9;
  EXPECT_DOUBLE_EQ(seconds_of(AllGather{Ranks::Replica}, kPart, 8, eight), 7 / 4.0 / 2.0 + 1e-4);
}

TEST(Machine, IsKnownByTheNameOfItsCards) {
  const std::optional<Machine> four = builtin_machine("4xA100-40GB"), one = builtin_machine("H200");
  ASSERT_TRUE(four && one);
  EXPECT_EQ(four->cards->count, 4);
  EXPECT_EQ(four->cards->memory_bytes, 40960ull << 20);
  EXPECT_EQ(one->cards->count, 1);
  for (const std::string_view name : {"", "x", "0xH100", "4x", "-1xH100", "4xH10", "4 xH100", "h100", "1e3xH100"})
    EXPECT_FALSE(builtin_machine(name)) << name;
  EXPECT_EQ(rough_cards("NVIDIA A100-SXM4-40GB", 80, 1).rates.flops, four->cards->rates.flops);
  const double large = builtin_machine("A100-80GB")->cards->rates.copy.rates[0];
  for (const char* name : {"NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"})
    EXPECT_EQ(rough_cards(name, 80, 1).rates.copy.rates[0], large) << name;
  EXPECT_LT(one->cards->free_bytes, one->cards->memory_bytes) << "a driver has its share of a card that nobody uses";
  const auto product = [&](DType dtype) {
    const Shape square{4096, 4096};
    const Priced op = op_of(Gemm{.transpose_b = true}, {{dtype, square}, {dtype, square}, {dtype, square}});
    return seconds(op.op, op.set.buffers, *one, 1);
  };
  EXPECT_GT(product(DType::F32), 10 * product(DType::BF16)) << "fp32 without TF32";
  EXPECT_EQ(rough_cards("NVIDIA H200", 90, 8).rates.copy.rates, one->cards->rates.copy.rates);
  EXPECT_EQ(rough_cards("NVIDIA H200", 90, 8).name, "NVIDIA H200");
}

TEST(Machine, CardsOfAStrangeNameHaveTheRatesOfTheirCapability) {
  const auto flops = [](std::string_view known) { return builtin_machine(known)->cards->rates.flops; };
  EXPECT_EQ(rough_cards("NVIDIA H800", 90, 1).rates.flops, flops("H100"));
  EXPECT_GT(rough_cards("NVIDIA H20", 90, 1).rates.fp8_flops, 0);
  EXPECT_EQ(rough_cards("NVIDIA A800-SXM4-80GB", 80, 1).rates.flops, flops("A100-40GB"));
  EXPECT_EQ(rough_cards("NVIDIA RTX 6000 Ada Generation", 89, 1).rates.flops, flops("L4"));
  EXPECT_EQ(rough_cards("NVIDIA GeForce RTX 4090", 89, 1).rates.flops, flops("RTX4090"));
  EXPECT_EQ(rough_cards("NVIDIA GH200 480GB", 90, 1).rates.copy.rates,
            builtin_machine("GH200")->cards->rates.copy.rates);
  EXPECT_EQ(rough_cards("NVIDIA B300", 103, 1).rates.flops, flops("B200")) << "of the same first digits";
  EXPECT_EQ(rough_cards("Tesla V100-SXM2-32GB", 70, 1).rates.flops, flops("A10G")) << "the slowest";
  for (const auto& [name, known] : {std::pair("NVIDIA L40S", true),
                                    {"NVIDIA L4", true},
                                    {"NVIDIA L40", false},
                                    {"NVIDIA GeForce RTX 3090 Ti", true},
                                    {"NVIDIA RTX 6000 Ada Generation", false}})
    EXPECT_EQ(is_known_card(name), known) << name;
  EXPECT_EQ(rough_cards("NVIDIA B200", 100, 1).rates.fp8_flops, 0);
}

TEST(Machine, WhatIsWrongIsNamed) {
  auto refused = [](const std::function<void(nlohmann::json&)>& spoil, std::string_view part) {
    nlohmann::json json = nlohmann::json::parse(write_machine(example()));
    spoil(json);
    return fails_with<UserError>([&] { parse_machine(json.dump(), "m.json"); }, part);
  };
  using Json = nlohmann::json;
  EXPECT_TRUE(fails_with<UserError>([] { parse_machine("{", "m.json"); }, "m.json"));
  EXPECT_TRUE(fails_with<UserError>([] { parse_machine("[]", "m.json"); }, "m.json"));
  EXPECT_TRUE(refused([](Json& j) { j["format"] = "snug machine 1"; }, "format"));
  EXPECT_TRUE(refused([](Json& j) { j["format"] = 2, j["speed"] = 1; }, "1 at most: a newer snug made it"));
  EXPECT_FALSE(refused([](Json& j) { j["format"] = "snug machine 5"; }, "")) << "of the same content";
  EXPECT_TRUE(refused([](Json& j) { j["speed"] = 1; }, "'speed'"));
  EXPECT_TRUE(refused([](Json& j) { j.erase("disk"); }, "disk"));
  EXPECT_TRUE(refused([](Json& j) { j["cores"] = 0; }, "cores"));
  EXPECT_TRUE(refused([](Json& j) { j["disk"]["read_bytes_per_second"] = 0; }, "disk.read_bytes_per_second"));
  EXPECT_TRUE(refused([](Json& j) { j["link_bytes_per_second"] = "fast"; }, "link_bytes_per_second"));
  EXPECT_TRUE(refused([](Json& j) { j["product_sizes"] = {64, 16}; }, "product_sizes"));
  EXPECT_TRUE(refused([](Json& j) { j["product_sizes"] = {16}; }, "products[0].flops_per_second"));
  EXPECT_TRUE(refused([](Json& j) { j["teams"] = Json::array(); }, "teams"));
  EXPECT_TRUE(refused([](Json& j) { std::swap(j["teams"][0], j["teams"][1]); }, "teams"));
  EXPECT_TRUE(refused([](Json& j) { j["teams"][0]["rates"]["products"][0]["dtype"] = "int8"; }, "products[0].dtype"));
  EXPECT_TRUE(
      refused([](Json& j) { j["teams"][0]["rates"]["products"][0]["flops_per_second"][3] = -1; }, "flops_per_second"));
  EXPECT_TRUE(refused([](Json& j) { j["teams"][0]["rates"]["copy_bytes_per_second"]["sizes"] = {5, 5}; }, "sizes"));
  EXPECT_TRUE(refused([](Json& j) { j["teams"][0]["rates"]["copy_bytes_per_second"]["rates"] = {5}; }, "rates"));
  EXPECT_TRUE(refused([](Json& j) { j["teams"][0]["rates"]["attention"][1]["head_dim"] = 64; }, "attention"));
  EXPECT_TRUE(refused([](Json& j) { j["teams"][0]["rates"]["op_seconds"] = nullptr; }, "op_seconds"));
  EXPECT_TRUE(refused([](Json& j) { j["cards"] = Json::object(); }, "cards.name"));
}

}  // namespace
}  // namespace snug
