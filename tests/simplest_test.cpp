// Of arrangements that are forecast to take about as long as the fastest, the simplest is chosen.
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cpu/facts.h"
#include "brute_force.h"
#include "model/model_config.h"
#include "plan/search/fit.h"
#include "plan/spec/sources.h"

namespace snug {
namespace {

// LoRA of four of Llama-3-8B's layers, a pass of four blocks.
JobSpec job() {
  JobSpec spec;
  const std::filesystem::path model = std::filesystem::path(SNUG_FIXTURES) / "configs/llama-3-8b";
  spec.model = read_model_config(model).spec;
  spec.model.layers.resize(4);
  spec.cut.sequence_length = 512;
  spec.table = lora_parameters(spec.model, {.rank = 8, .alpha = 8, .target_modules = linear_names(spec.model)}, true);
  spec.sources = find_sources(spec.table, {model, true, 1, std::nullopt});
  spec.step_only = true;
  return spec;
}

Choices one_pass() {
  Choices choices;
  choices.batch_size = choices.micro_batch.emplace(4);
  choices.states = choices.gradients = choices.parameters = Offload{};
  return choices;
}

Pricing priced() {
  Pricing pricing = balanced();
  pricing.file = "machine.json";
  return pricing;
}

const Arrangement& chosen(const FitResult& result) { return result.tried.at(result.chosen.value()); }

uint64_t device_bytes(const Arrangement& a) { return a.forecast.arena_bytes[index(Space::Device)]; }

// The device has so much of the bytes that a pass needs if it keeps all; host and disk are only assumed.
Caps short_of_memory(const JobSpec& spec, double share = 0.95) {
  const uint64_t whole = device_bytes(chosen(fit(spec, one_pass(), {}, CpuFacts(), priced())));
  Caps caps;
  caps.device_bytes = static_cast<uint64_t>(share * static_cast<double>(whole));
  caps.host_is_assumed = caps.disk_is_assumed = true;
  return caps;
}

bool recomputes(const Arrangement& a) {
  return std::ranges::any_of(a.strategy.activations,
                             [](const ActivationPolicy& policy) { return recompute_words(policy) != "none"; });
}

TEST(Simplest, WithinTheMarginTheSimplerIsChosenAndBeyondItTheFaster) {
  const JobSpec spec = job();
  const CpuFacts facts;
  const Pricing pricing = priced();
  Choices recomputing = one_pass();
  recomputing.activations = Offload{};
  int simpler = 0, faster = 0;
  for (const double share : {0.99, 0.97, 0.95, 0.9}) {
    const Caps caps = short_of_memory(spec, share);
    const Arrangement plain = fit(spec, recomputing, caps, facts, pricing).tried.front();
    const FitResult result = fit(spec, one_pass(), caps, facts, pricing);
    const Arrangement &fastest = result.tried.front(), &choice = chosen(result);
    EXPECT_LE(fastest.step_seconds, choice.step_seconds);
    EXPECT_LE(choice.step_seconds, time_margin(pricing) * fastest.step_seconds);
    const bool is_near = plain.step_seconds <= time_margin(pricing) * fastest.step_seconds;
    EXPECT_EQ(rests_on_assumed_memory(choice.strategy, caps), !is_near) << share << ": " << choice.words;
    EXPECT_TRUE(!is_near || recomputes(choice)) << choice.words;
    (is_near ? simpler : faster)++;
  }
  EXPECT_GT(simpler, 0);
  EXPECT_GT(faster, 0);
}

TEST(Simplest, RestsOnAssumedMemoryWhereNothingElseFits) {
  const JobSpec spec = job();
  const Caps caps = short_of_memory(spec);
  Choices choices = one_pass();
  choices.recompute = Recompute::None;
  const Pricing pricing = priced();
  const Arrangement offloading = chosen(fit(spec, choices, caps, CpuFacts(), pricing));
  EXPECT_TRUE(rests_on_assumed_memory(offloading.strategy, caps)) << offloading.words;
  EXPECT_FALSE(recomputes(offloading));
  choices.activations = Offload{};
  EXPECT_FALSE(fit(spec, choices, caps, CpuFacts(), pricing).chosen);
}

TEST(Simplest, IsTheSameEveryTime) {
  const JobSpec spec = job();
  const CpuFacts facts;
  const Caps caps = short_of_memory(spec);
  const Pricing pricing = priced();
  const Choices choices = one_pass();
  Fitter fitter(spec, choices, facts, pricing);
  const std::string words = chosen(fitter.fit(caps)).words;
  EXPECT_EQ(chosen(fitter.fit(caps)).words, words);
  EXPECT_EQ(chosen(fit(spec, choices, caps, facts, pricing)).words, words);
}

// Rough rates say which is faster, but not by how much.
TEST(Simplest, WithoutPricesTheFastestIsChosen) {
  const JobSpec spec = job();
  Pricing rough = priced();
  rough.file.clear();
  const FitResult result = fit(spec, one_pass(), short_of_memory(spec), CpuFacts(), rough);
  EXPECT_LE(chosen(result).step_seconds, 1.02 * result.tried.front().step_seconds);
  EXPECT_EQ(time_margin(rough), 1.02);
  rough.machine.cards.emplace();
  EXPECT_EQ(time_margin(rough), 1.003);
  rough.file = "H100";
  EXPECT_EQ(time_margin(rough), 1.02);
  rough.machine.cards.reset();
  EXPECT_EQ(time_margin(rough), 1.05);
}

// Each strategy of a list is simpler than the next.
TEST(Simplest, WhatIsSimplerIsDecidedInOrder) {
  const JobSpec spec = job();
  Cut cut;
  cut.passes = 2;
  Footprint rank;
  rank.arena_bytes[index(Space::Host)] = uint64_t{3} << 30;
  Caps caps;
  caps.host_is_assumed = true;
  std::vector<Strategy> rising(1, plain_strategy(spec.table));
  const auto add = [&](auto change) { change(rising.emplace_back(plain_strategy(spec.table))); };
  add([](Strategy& s) { s.groups[0].shard_weights = true; });
  add([](Strategy& s) { s.buffer_hold_ops++; });
  add([](Strategy& s) { s.buffer_hold_ops++, s.gather_ahead++; });
  add([](Strategy& s) { s.defer_updates = true; });
  add([](Strategy& s) { s.layer_major = true; });
  add([](Strategy& s) { s.activations[0] = policy_of(Recompute::Block); });
  add([](Strategy& s) { s.activations[0] = s.activations[1] = policy_of(Recompute::Mlp); });
  add([](Strategy& s) { s.activations = {4, policy_of(Recompute::Mlp)}; });
  add([](Strategy& s) { s.activations[0] = policy_of(Recompute::Mlp), s.groups[0].states = Space::Disk; });
  add([](Strategy& s) { s.groups[0].states = Space::Host; });
  add([](Strategy& s) { s.groups[0].states = Space::Host, s.groups[0].weights = Space::Host; });
  for (size_t i = 1; i < rising.size(); i++)
    EXPECT_LT(complexity(cut, rising[i - 1], rank, caps), complexity(cut, rising[i], rank, caps)) << i;
  EXPECT_EQ(complexity(cut, rising[0], rank, caps), Complexity()) << "staging is in no arrangement's disfavour";
  const Complexity offloading = complexity(cut, rising.back(), rank, caps);
  EXPECT_EQ(offloading.gibibytes, 3u);
  EXPECT_EQ(offloading.parts, 2);
  caps.shared = true;
  EXPECT_TRUE(rests_on_assumed_memory(rising[0], caps)) << "the device's memory is the host's";
  caps.disk_is_assumed = true;
  caps.host_is_assumed = caps.shared = false;
  EXPECT_FALSE(rests_on_assumed_memory(rising.back(), caps));
  EXPECT_TRUE(rests_on_assumed_memory(rising[9], caps));
  caps.disk_is_assumed = false;
  caps.host_is_assumed = true;
  Strategy on_disk = rising[0];
  on_disk.groups[0].states = Space::Disk;
  EXPECT_FALSE(rests_on_assumed_memory(on_disk, caps));
  on_disk.speculate = true;
  EXPECT_TRUE(rests_on_assumed_memory(on_disk, caps)) << "what an update may take back waits on the host";
}

}  // namespace
}  // namespace snug
