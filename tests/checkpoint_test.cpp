// Saving and going on: the same bits, or a refusal that says why.
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <thread>

#include "base/disk.h"
#include "comm/threads.h"
#include "expect_error.h"
#include "plan/lowering/fingerprint.h"
#include "temp_directory.h"
#include "tiny_model.h"
#include "train/checkpoint.h"
#include "train/export.h"
#include "train/rehearsal.h"

namespace snug {
namespace {

JobSpec job(bool lora, DType compute) {
  JobSpec spec = tiny_job("qwen2", lora ? std::optional<std::string>("adapter_init") : std::nullopt, compute);
  spec.cut.micro_batch = 2;
  spec.cut.passes = 2;
  return spec;
}

std::vector<std::vector<float>> trained_weights(Session& session) {
  std::vector<std::vector<float>> all;
  for (size_t i = 0; i < session.spec().table.params.size(); i++)
    if (session.spec().table.params[i].trainable) all.push_back(values(session, session.compiled().owned[i].weight));
  return all;
}

CheckpointState state_at(const Session& session, int64_t step) {
  CheckpointState state;
  state.step = step;
  state.fields = fields_of(session.spec());
  state.fields.push_back({std::string(kContentFields), "samples", "40"});
  state.program_hash = session.compiled().hash;
  return state;
}

class CheckpointTest : public testing::TestWithParam<std::pair<bool, DType>> {};

TEST_P(CheckpointTest, AResumedRunContinuesBitForBit) {
  const auto [lora, compute] = GetParam();
  const TempDirectory directory;
  const auto samples = tiny_samples();
  std::vector<StepResult> expected;
  std::vector<std::vector<float>> expected_weights;
  {
    Session session(job(lora, compute), 1);
    session.load();
    TinyTrainer trainer(session);
    Checkpoints checkpoints(directory.path(), 2);
    for (int64_t number = 1; number <= 6; number++) {
      const StepResult result = trainer.step(step_samples(samples, number, 4), number, 1e-2);
      if (number > 3) expected.push_back(result);
      if (number == 3) checkpoints.save(session, state_at(session, 3));
    }
    expected_weights = trained_weights(session);
  }
  JobSpec other = job(lora, compute);  // another strategy: no bit depends on it
  other.strategy.activations.assign(other.table.layers.size(), offloaded(policy_of(Recompute::Block)));
  Session session(other, 2, LaneMode::Threads);
  session.load();
  EXPECT_EQ(Checkpoints(directory.path(), 2).restore_last(session, state_at(session, 0)).step, 3);
  TinyTrainer trainer(session);
  std::vector<StepResult> got;
  for (int64_t number = 4; number <= 6; number++)
    got.push_back(trainer.step(step_samples(samples, number, 4), number, 1e-2));
  EXPECT_EQ(got, expected);
  EXPECT_EQ(trained_weights(session), expected_weights);
}

INSTANTIATE_TEST_SUITE_P(Methods, CheckpointTest,
                         testing::Values(std::pair(true, DType::BF16), std::pair(false, DType::BF16),
                                         std::pair(false, DType::F32)));

TEST(Checkpoints, KeepTheLastAndTheBest) {
  const TempDirectory directory;
  Session session(job(true, DType::F32), 1);
  session.load();
  Checkpoints checkpoints(directory.path(), 2);
  for (int64_t step = 1; step <= 5; step++) {
    CheckpointState state = state_at(session, step);
    state.best_eval_loss = 1.5;
    state.best_step = step < 2 ? step : 2;
    checkpoints.save(session, state);
  }
  EXPECT_EQ(checkpoints.steps(), (std::vector<int64_t>{2, 4, 5}));
  CheckpointState state = state_at(session, 6);
  state.best_eval_loss = 1;
  state.best_step = 6;
  checkpoints.save(session, state);
  EXPECT_EQ(checkpoints.steps(), (std::vector<int64_t>{4, 5, 6})) << "the last two besides the best";
}

// Whose host shares a file system with rank 0's, and has seen a moment ago that nothing was there.
TEST(Rehearsal, ARankThatDoesNotSeeTheDirectoryYetLooksAgain) {
  const TempDirectory directory;
  const auto comms = thread_ranks(2, 1, 0.5);
  std::vector<std::jthread> threads;
  for (const int rank : {0, 1})
    threads.emplace_back([&, rank] {
      SavingPlan saving;
      saving.out = saving.offload_directory = directory.path() / (rank == 0 ? "run" : "seen");
      saving.checkpoint_bytes = 1;
      EXPECT_NO_THROW(rehearse_saving(saving, comms[static_cast<size_t>(rank)].get()));
    });
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  EXPECT_FALSE(std::filesystem::exists(directory.path() / "seen"));
  std::filesystem::create_directory_symlink("run", directory.path() / "seen");
}

// As on hosts that each have a disk of their own, where an earlier run has left a directory of that name.
TEST(Rehearsal, RanksWithDirectoriesOfTheirOwnAreRefused) {
  const TempDirectory directory;
  const auto comms = thread_ranks(2, 1, 5);
  for (const char* name : {"mine", "others"})
    std::filesystem::create_directories(directory.path() / name / "checkpoints");
  std::array<std::string, 2> said;
  std::vector<std::jthread> threads;
  for (const int rank : {0, 1})
    threads.emplace_back([&, rank] {
      Comm* const comm = comms[static_cast<size_t>(rank)].get();
      SavingPlan saving;
      saving.out = saving.offload_directory = directory.path() / (rank == 0 ? "mine" : "others");
      saving.checkpoint_bytes = 1;
      const auto rehearse = [&] {
        rehearse_saving(
            saving, comm, [&](const std::string& line) { said[static_cast<size_t>(rank)] = line; }, 0.2);
      };
      if (rank == 0) {
        EXPECT_ANY_THROW(rehearse()) << "as the other does";
      } else {
        EXPECT_TRUE(fails_with<UserError>(rehearse, "rank 1 does not find within 0.2 s: --out is one for all"));
      }
      comm->leave("refused");
    });
  threads.clear();
  EXPECT_TRUE(std::filesystem::is_empty(directory.path() / "mine" / "checkpoints")) << "nothing is left behind";
  EXPECT_EQ(said[0], "");
  EXPECT_TRUE(said[1].ends_with("rank 1 does not see there yet what rank 0 has put there, and waits for up to 0.2 s"))
      << said[1];
}

// Half of what is free: three of it are too much, and so is one of three times that.
TEST(Rehearsal, WhereCheckpointsAreManyWhatWritesOneAloneIsNamed) {
  const TempDirectory directory;
  SavingPlan saving;
  saving.out = saving.offload_directory = directory.path();
  saving.saves = 9;
  saving.checkpoint_bytes = free_bytes(directory.path()) / 2;
  EXPECT_TRUE(fails_with<DeviceError>([&] { rehearse_saving(saving, nullptr); }, "for 3 checkpoints of "));
  EXPECT_TRUE(fails_with<DeviceError>([&] { rehearse_saving(saving, nullptr); }, "--save-every 0 writes one alone"));
  EXPECT_TRUE(
      fails_with<DeviceError>([&] { rehearse_saving(saving, nullptr); }, "(the last 2, the one being written)"));
  EXPECT_FALSE(lack_of_room(saving, saving.checkpoint_bytes * 3)) << "the bytes free on another machine";
  saving.saves = 1;
  rehearse_saving(saving, nullptr);
  saving.checkpoint_bytes *= 3;
  EXPECT_TRUE(fails_with<DeviceError>([&] { rehearse_saving(saving, nullptr); }, "--out names another place"));
  EXPECT_FALSE(fails_with<DeviceError>([&] { rehearse_saving(saving, nullptr); }, "--save-every"));
}

TEST(Checkpoints, AnotherCutGoesOn) {
  const TempDirectory directory;
  Session session(job(true, DType::F32), 1);
  session.load();
  Checkpoints(directory.path(), 2).save(session, state_at(session, 1));
  JobSpec other = job(true, DType::F32);
  other.cut.passes = 1;
  Session changed(other, 1);
  changed.load();
  EXPECT_EQ(Checkpoints(directory.path(), 2).restore_last(changed, state_at(changed, 0)).step, 1);
  EXPECT_EQ(trained_weights(changed), trained_weights(session));
}

void flip(const std::filesystem::path& path, uint64_t bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(bit / 8));
  const char flipped = static_cast<char>(file.get() ^ (1 << bit % 8));
  file.seekp(static_cast<std::streamoff>(bit / 8));
  file.put(flipped);
}

TEST(Checkpoints, DamagedFilesAreRefused) {
  const TempDirectory directory;
  Session session(job(true, DType::F32), 1);
  session.load();
  Checkpoints checkpoints(directory.path(), 2);
  checkpoints.save(session, state_at(session, 1));
  const auto is_damaged = [&] {
    return fails_with<UserError>([&] { checkpoints.restore_last(session, state_at(session, 0)); }, "damaged");
  };
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path() / "checkpoints/step-1")) {
    const std::filesystem::path path = entry.path();
    names.insert(path.filename());
    const uint64_t bits = 8 * entry.file_size();
    // Every bit of a small file, some of a large one: of its header, of tensors, its last.
    const uint64_t stride = bits < 10'000 ? 1 : bits / 200 | 1;
    for (uint64_t bit = 0; bit < bits; bit = bit + 1 == bits ? bits : std::min(bit + stride, bits - 1)) {
      flip(path, bit);
      ASSERT_TRUE(is_damaged()) << path << ", bit " << bit;
      flip(path, bit);
    }
    const std::string whole = read_text(path, bits / 8);
    std::filesystem::resize_file(path, bits / 8 - 5);
    EXPECT_TRUE(is_damaged()) << path << " cut";
    write_text(path, whole);
  }
  const std::string state = "state-00001-of-00001.safetensors";
  EXPECT_EQ(names, (std::set<std::string>{state, state + ".xxh3", "state.json"}));
  Session another(job(true, DType::F32), 1);
  another.load();
  EXPECT_EQ(checkpoints.restore_last(another, state_at(another, 0)).step, 1) << "all is as it was";
}

// Out and in again: every tensor's bytes are those that were read.
TEST(Export, AModelThatWasNotTrainedComesBackBitExact) {
  for (const std::string family : {"llama", "qwen2"}) {
    const TempDirectory directory;
    JobSpec spec = tiny_job(family, std::nullopt, family == "llama" ? DType::F32 : DType::BF16);
    spec.export_dtype = spec.numerics.compute;
    Session session(spec, 1);
    session.load();
    export_model(session, directory.path() / "model", models() / family, Existing::Refuse);
    const auto before = SafetensorsIndex::open_model(models() / family);
    const auto after = SafetensorsIndex::open_model(directory.path() / "model");
    for (const SafetensorsEntry& entry : before.entries()) {
      const SafetensorsEntry* written = after.find(entry.name);
      ASSERT_NE(written, nullptr) << entry.name;
      ASSERT_EQ(written->bytes, entry.bytes) << entry.name;
      auto bytes = [](const SafetensorsIndex& index, const SafetensorsEntry& e) {
        std::vector<std::byte> data(e.bytes);
        File::open_read(index.files()[e.file], IoMode::Buffered).read(e.offset, data);
        return data;
      };
      EXPECT_EQ(bytes(after, *written), bytes(before, entry)) << entry.name;
    }
    EXPECT_EQ(read_model_config(directory.path() / "model").spec.hidden, spec.model.hidden);
  }
}

TEST(Export, AnAdapterThatWasNotTrainedComesBackBitExact) {
  const TempDirectory directory;
  Session session(job(true, DType::BF16), 1);
  session.load();
  export_adapter(session, directory.path() / "adapter",
                 {.rank = 4, .alpha = 8, .target_modules = linear_names(session.spec().model)}, "base");
  EXPECT_EQ(read_tensors(directory.path() / "adapter/adapter_model.safetensors"),
            read_tensors(models() / "qwen2/adapter_init/adapter_model.safetensors"));
}

// Base and adapter in one matrix give the loss that they give apart.
TEST(Merge, TheMergedModelHasTheLossOfBaseAndAdapter) {
  const TempDirectory directory;
  JobSpec spec = tiny_job("llama", "adapter_init", DType::F32);
  Session trained(spec, 1);
  trained.load();
  TinyTrainer trainer(trained);
  spec.cut.micro_batch = 12;
  const auto samples = tiny_samples();
  for (int64_t number = 1; number <= 5; number++) trainer.step(step_samples(samples, number, 1), number, 1e-2);
  export_adapter(trained, directory.path() / "adapter",
                 {.rank = 4, .alpha = 8, .target_modules = linear_names(trained.spec().model)}, "base");

  auto evaluate = [&](JobSpec job) {
    job.purpose = Purpose::Evaluate;
    job.cut.micro_batch = 12;
    Session session(job, 1);
    session.load();
    return TinyTrainer(session).evaluate(samples);
  };
  JobSpec with_adapter = spec;
  with_adapter.sources = find_sources(spec.table, {models() / "llama", false, 0, directory.path() / "adapter"});
  JobSpec merging = with_adapter;
  merging.purpose = Purpose::Merge;
  merging.export_dtype = DType::F32;
  Session merger(merging, 1);
  merger.load();
  export_model(merger, directory.path() / "merged", models() / "llama", Existing::Refuse);
  JobSpec merged = tiny_job("llama", std::nullopt, DType::F32);
  merged.sources = find_sources(merged.table, {directory.path() / "merged", false, 0, std::nullopt});
  const double apart = evaluate(with_adapter);
  EXPECT_NEAR(evaluate(merged), apart, 1e-5 * apart);
  EXPECT_GT(std::abs(evaluate(tiny_job("llama", std::nullopt, DType::F32)) - apart), 1e-3 * apart)
      << "the adapter does something";
}

}  // namespace
}  // namespace snug
