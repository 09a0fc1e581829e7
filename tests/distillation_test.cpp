// Learning from a teacher: against fp64 (fixtures/objective/distill.json), however a step is cut or held; what is kept
// of a teacher, and what of it is damaged.
#include <gmock/gmock.h>

#include "expect_error.h"
#include "pairs.h"
#include "train/ask_teacher.h"

namespace snug {
namespace {

constexpr int64_t kVocabulary = 997;
const nlohmann::json kPlain = nlohmann::json::object();  // what is asked for where nothing is

const nlohmann::json& expected_distillation() {
  static const nlohmann::json all = read_json(kObjective / "distill.json");
  return all;
}

ObjectiveOptions distillation(const nlohmann::json& given, Reference reference) {
  ObjectiveOptions objective;
  objective.kind = ObjectiveKind::Distill;
  objective.reference = reference;
  objective.distill_beta = given.value("distill_beta", 0.0);
  objective.distill_temperature = given.value("distill_temperature", 1.0);
  objective.distill_weight = given.value("distill_weight", 1.0);
  objective.teacher_top_k = given.value("teacher_top_k", int64_t{64});
  return objective;
}

JobSpec job_of_pupil(const nlohmann::json& given, bool lora = false, DType compute = DType::F32) {
  return job_of(distillation(given, Reference::Model), lora, compute, 32);
}

JobSpec job_of_teacher(const std::string& model, const nlohmann::json& given) {
  JobSpec spec = tiny_job(model, std::nullopt, DType::F32);
  spec.table = full_parameters(spec.model, false);
  spec.objective = distillation(given, Reference::Auto);
  spec.purpose = Purpose::Evaluate;
  spec.numerics.logits_chunk_rows = 16;
  spec.cut.sequence_length = 32;
  spec.cut.micro_batch = 2;
  return spec;
}

// A file of what a teacher says of a data set, which is asked when it is made.
class Taught {
 public:
  Taught(const Dataset& dataset, const std::string& teacher, const nlohmann::json& given)
      : dataset_(dataset), top_k_(distillation(given, Reference::Model).teacher_top_k) {
    const Packer packer(dataset, all_samples(dataset.samples()), packing());
    taught_.push_back({dataset, packer.documents()});
    TeacherFile::prepare(path(), kKey, top_k_, taught_, {});
    Session session(job_of_teacher(teacher, given), 1);
    session.load();
    TeacherFile file = open();
    passes_ = ask(session, file).passes;
  }

  std::filesystem::path path() const { return directory_.path() / "kept.teacher"; }
  TeacherFile open() const { return TeacherFile(path(), kKey, top_k_, taught_); }
  int64_t passes() const { return passes_; }
  const std::vector<TaughtDocuments>& taught() const { return taught_; }

  ScoredPasses ask(Session& session, TeacherFile& file) const {
    StreamSource source(dataset_, all_samples(dataset_.samples()), packing(), {1, 1, session.spec().cut.micro_batch},
                        {std::nullopt, 1}, 0);
    return ask_teacher(session, source, dataset_, file);
  }

  static constexpr std::string_view kKey = "a test's";

 private:
  static PackingOptions packing() { return {.sequence_length = 32, .packing = false, .shuffle = false}; }

  TempDirectory directory_;
  const Dataset& dataset_;
  int64_t top_k_;
  std::vector<TaughtDocuments> taught_;
  int64_t passes_ = 0;
};

// Calls f with the session of a job and a run of three steps, each in passes of four replies in all.
void with_run(JobSpec spec, const Dataset& dataset, const Taught& taught, int64_t passes,
              const std::function<void(Session&, PairRun&)>& f) {
  References none(dataset);
  spec.cut.micro_batch = 4 / passes;
  spec.cut.passes = passes;
  Session session(spec, 1);
  session.load();
  PairRun run(session, dataset, none, 3);
  const TeacherFile teacher = taught.open();
  run.data.learn_from(teacher, kVocabulary);
  f(session, run);
}

class DistillationSteps : public testing::TestWithParam<const char*> {
 protected:
  const nlohmann::json& of() const { return expected_distillation()[GetParam()]; }
  Dataset dataset_ = replies_of_file(of()["options"].value("weights", false));
  Taught taught_{dataset_, "llama_gqa7", of()["options"]};
};

TEST_P(DistillationSteps, LossNormAndMetricsOfThreeStepsAreThoseOfFp64) {
  EXPECT_EQ(taught_.passes(), 6);
  for (const int64_t passes : {1, 2, 4}) {
    SCOPED_TRACE(fmt::format("{} passes", passes));
    with_run(job_of_pupil(of()["options"]), dataset_, taught_, passes, [this](Session&, PairRun& run) {
      const TempDirectory directory;
      const auto found = run.train(directory.path() / "out", 1e-3);
      expect_steps(found, of()["steps"]);
      // What is far below 1 is near what it should be, too.
      for (size_t s = 0; s < 3; s++) {
        const double expected = of()["steps"][s]["metrics"]["kl"].get<double>();
        EXPECT_NEAR(found[s]["kl"].get<double>(), expected, 2e-4 * expected);
      }
    });
  }
}

TEST_P(DistillationSteps, GradientsOfEveryParameterAreThoseOfFp64) {
  with_run(job_of_pupil(of()["options"]), dataset_, taught_, 1,
           [this](Session& session, PairRun& run) { expect_gradients(session, run, of()["steps"][0]["gradients"]); });
}

TEST_P(DistillationSteps, WhatIsHeldOutHasTheSameLoss) {
  with_run(job_of_pupil(of()["options"]), dataset_, taught_, 1, [this](Session& session, PairRun& run) {
    const EvaluationResult found = evaluate(session, run.data, 1, run.objective.get());
    const nlohmann::json& first = of()["steps"][0];
    EXPECT_NEAR(found.loss, first["loss"].get<double>(), 1e-5);
    EXPECT_NEAR(number_of(found.metrics, "kl").value(), first["metrics"]["kl"].get<double>(), 1e-5);
  });
}

TEST_P(DistillationSteps, ArrangementsChangeNoBit) {
  for (const bool lora : {false, true}) {
    const JobSpec spec = job_of_pupil(of()["options"], lora, DType::BF16);
    std::map<std::pair<int, int64_t>, std::vector<std::string>> expected;  // by ranks and passes
    for (const Arrangement& a : pair_arrangements()) {
      const TeacherFile teacher = taught_.open();
      const std::vector<std::string> found =
          lines_of_ranks(spec, a, dataset_, [&](PairRun& run) { run.data.learn_from(teacher, kVocabulary); });
      auto& of_cut = expected[{a.ranks, a.passes}];
      if (of_cut.empty()) of_cut = found;
      ASSERT_EQ(found.size(), 3u);
      EXPECT_EQ(found, of_cut) << to_string(a);
      const auto loss = [](const std::vector<std::string>& lines) {
        return nlohmann::json::parse(lines[0])["loss"].get<double>();
      };
      EXPECT_NEAR(loss(found), loss(expected[{1, 1}]), 2e-3) << to_string(a);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, DistillationSteps,
                         testing::Values("forward", "reverse", "between", "warm", "beside", "weights", "few"));

TEST(Distillation, AModelThatIsItsOwnTeacherHasNothingToLearn) {
  const Dataset dataset = replies_of_file();
  const Taught taught(dataset, "llama", kPlain);
  for (const double beta : {0.0, 0.5, 1.0})
    with_run(job_of_pupil({{"distill_beta", beta}}), dataset, taught, 1, [](Session& session, PairRun& run) {
      const EvaluationResult found = evaluate(session, run.data, 1, run.objective.get());
      EXPECT_NEAR(found.loss, 0, 1e-6);
      EXPECT_EQ(number_of(found.metrics, "agreement").value(), 1);
    });
}

TEST(Distillation, PackedRepliesHaveTheLossOfRepliesByThemselves) {
  const Dataset dataset = replies_of_file();
  const Taught taught(dataset, "llama_gqa7", kPlain);
  std::vector<double> losses;
  for (const bool packing : {false, true}) {
    JobSpec spec = job_of_pupil(kPlain);
    spec.cut.sequence_length = packing ? 64 : 32;
    References none(dataset);
    spec.cut.micro_batch = Packer(dataset, all_samples(dataset.samples()), packing_of(spec, packing)).count(0);
    Session session(spec, 1);
    session.load();
    PairRun run(session, dataset, none, 1, packing);
    const TeacherFile teacher = taught.open();
    run.data.learn_from(teacher, kVocabulary);
    const EvaluationResult found = evaluate(session, run.data, 1, run.objective.get());
    EXPECT_EQ(found.samples, 12);
    losses.push_back(found.loss);
  }
  EXPECT_NEAR(losses[0], losses[1], 1e-6 * losses[0]);
}

// Of three documents the first two are asked of; the file is opened again and goes on.
TEST(TeacherFile, KeepsWhatATeacherHasSaidWhenItIsInterrupted) {
  const Dataset dataset = replies_of_file();
  const Taught taught(dataset, "llama_gqa7", kPlain);
  const TempDirectory directory;
  const auto path = directory.path() / "sub" / "part.teacher";
  TeacherFile::prepare(path, Taught::kKey, 64, taught.taught(), {});
  EXPECT_EQ(std::filesystem::file_size(path), std::filesystem::file_size(taught.path()));
  const TeacherFile whole = taught.open();
  EXPECT_EQ(whole.known(), 12);
  TeacherFile part(path, Taught::kKey, 64, taught.taught());
  EXPECT_EQ(part.known(), 0);
  for (size_t d = 0; d < 2; d++) {
    const DocumentSpan& document = taught.taught()[0].documents[d];
    const auto rows = static_cast<size_t>(whole.rows(dataset, document));
    std::vector<int32_t> ids(rows * 64);
    std::vector<float> log_probs(rows * 65);
    whole.read(dataset, document, ids, log_probs, kVocabulary);
    double sum = 0;
    for (size_t j = 0; j < 65; j++) sum += std::exp(static_cast<double>(log_probs[j]));
    EXPECT_NEAR(sum, 1, 1e-5);
    part.write(dataset, document, ids, log_probs);
  }
  TeacherFile again(path, Taught::kKey, 64, taught.taught());
  EXPECT_EQ(again.known(), 2);
  EXPECT_NE(again.hash_of_known(), whole.hash_of_known());
  Session session(job_of_teacher("llama_gqa7", kPlain), 1);
  session.load();
  EXPECT_EQ(taught.ask(session, again).passes, 5) << "two replies a pass, of which one is known";
  EXPECT_EQ(file_checksum(path), file_checksum(taught.path()));
}

TEST(TeacherFile, RefusesWhatIsDamaged) {
  const Dataset dataset = replies_of_file();
  const Taught taught(dataset, "llama_gqa7", kPlain);
  const DocumentSpan document = taught.taught()[0].documents[3];
  const auto rows = static_cast<size_t>(taught.open().rows(dataset, document));
  std::vector<int32_t> ids(rows * 64);
  std::vector<float> log_probs(rows * 65);
  const auto read = [&](int64_t vocabulary) { taught.open().read(dataset, document, ids, log_probs, vocabulary); };
  read(kVocabulary);
  EXPECT_TRUE(fails_with<UserError>([&] { read(10); }, "a token outside [0, 10)"));
  EXPECT_TRUE(
      fails_with<UserError>([&] { TeacherFile(taught.path(), "another", 64, taught.taught()); }, "another header"));
  EXPECT_TRUE(
      fails_with<UserError>([&] { TeacherFile(taught.path(), Taught::kKey, 63, taught.taught()); }, "another header"));
  const uint64_t size = std::filesystem::file_size(taught.path());
  {
    File file = File::open_write(taught.path(), IoMode::Buffered);
    const std::byte other{0x5a};
    for (uint64_t at = size / 4; at < size; at += 64) file.write(at, std::span(&other, 1));
  }
  EXPECT_TRUE(fails_with<UserError>([&] { read(kVocabulary); }, "rows of another checksum"));
  std::filesystem::resize_file(taught.path(), size - 4);
  EXPECT_TRUE(fails_with<UserError>([&] { taught.open(); }, "bytes instead of"));
  EXPECT_TRUE(fails_with<UserError>([&] { TeacherFile::prepare(taught.path(), Taught::kKey, 64, taught.taught(), {}); },
                                    "bytes instead of"));
}

}  // namespace
}  // namespace snug
