// Training by rules: adapters of several ranks, scales and layers, modules trained whole beside them or alone, and
// LoRA+, against ten steps of PEFT's (tests/fixtures/README.md).
#include <gtest/gtest.h>

#include "api/job.h"
#include "api/rules.h"
#include "expect_error.h"
#include "plan/lowering/fingerprint.h"
#include "stored_adapters.h"
#include "temp_directory.h"
#include "train/checkpoint_export.h"
#include "train/export.h"

namespace snug {
namespace {

JobConfig decaying_on(const std::string& base) {
  JobConfig options = options_on(base);
  options.weight_decay = 0.1;
  return options;
}

JobConfig options_from(const std::string& adapter) {
  JobConfig options = decaying_on(read_json(adapters() / "expected.json")[adapter]["base"]);
  options.adapter = (adapters() / adapter).string();
  return options;
}

// Those of the adapter "uneven".
const std::vector<std::string> kRanks{"k_proj=5", "layers\\.1\\.mlp\\.up_proj=1", "model.layers.0.self_attn.q_proj=2"};
const std::vector<std::string> kAlphas{"gate_proj=11", "layers\\.[0-9]+\\.self_attn\\.(q|v)_proj=3"};

// What each stored run trains, as options.
std::map<std::string, JobConfig> runs() {
  std::map<std::string, JobConfig> all;
  for (const char* name :
       {"plain", "layers", "uneven", "uneven_rslora", "saved", "saved_linear", "tied_saved_embedding",
        "tied_saved_head", "tied_together", "rank_12", "rank_20", "ranks", "dora", "dora_uneven"})
    all[name] = options_from(name);
  all["plain_plus"] = options_from("plain");
  all["plain_plus"].lora_plus_ratio = 16;
  all["uneven_plus"] = options_from("uneven");
  all["uneven_plus"].lora_plus_ratio = 4;
  all["dora_plus"] = options_from("dora");
  all["dora_plus"].lora_plus_ratio = 16;
  for (const char* name : {"pissa", "olora", "pissa_uneven"}) {
    JobConfig& begun = all[name] = decaying_on(name == std::string("olora") ? "tied" : "own_head");
    begun.lora_init = std::string(name).substr(0, 5);
    begun.lora_rank = 3;
    begun.lora_alpha = 6;
  }
  all["pissa_uneven"].lora_rslora = true;
  all["pissa_uneven"].lora_rank_pattern = kRanks;
  all["pissa_uneven"].lora_alpha_pattern = kAlphas;
  const auto full = [&](const char* name, const char* base, std::vector<std::string> train,
                        std::vector<std::string> freeze) {
    all[name] = decaying_on(base);
    all[name].method = "full";
    all[name].train_modules = std::move(train);
    all[name].freeze = std::move(freeze);
  };
  full("full_last", "own_head", {}, {"embed_tokens", "layers.0"});
  full("full_embedding", "own_head", {"embed_tokens"}, {});
  full("full_tied_embedding", "tied", {"model.embed_tokens"}, {});
  full("full_head", "own_head", {"lm_head"}, {});
  full("full_norm", "tied", {"norm"}, {});
  full("full_some", "tied", {"k_proj", "gate_proj"}, {"layers.1-1.mlp"});
  return all;
}

constexpr double kRate = 1e-3;

// `cache` is for what adapters begin with.
JobSpec job_of(JobConfig options, int64_t passes, const TempDirectory& cache) {
  options.cache_dir = cache.path() / "cache";
  JobSpec spec = make_job(options, Purpose::Train);
  make_initial_halves(spec, {});
  spec.cut.passes = passes;
  spec.cut.micro_batch = std::ssize(samples_of_adapters()) / passes;
  spec.evaluate = true;
  return spec;
}

double loss_of(JobConfig options) {
  const std::vector<TinySample> samples = samples_of_adapters();
  JobSpec spec = make_job(options, Purpose::Evaluate);
  spec.cut.micro_batch = std::ssize(samples);
  TinySession session(spec, 1);
  session.load();
  return TinyTrainer(session).evaluate(samples) / static_cast<double>(loss_tokens(samples));
}

TEST(AdapterTraining, TenStepsOfEveryKindAreThoseOfPeft) {
  const auto stored = read_json(adapters() / "trained.json");
  const auto samples = samples_of_adapters();
  ASSERT_EQ(stored.size(), runs().size());
  for (const auto& [name, options] : runs())
    for (const int64_t passes : {1, 2}) {
      const TempDirectory cache;
      TinySession session(job_of(options, passes, cache), 1);
      session.load();
      TinyTrainer trainer(session);
      for (int64_t number = 1; number <= 10; number++) {
        const StepResult got = trainer.step(samples, number, kRate);
        const double loss = stored[name]["loss"][static_cast<size_t>(number - 1)],
                     norm = stored[name]["grad_norm"][static_cast<size_t>(number - 1)];
        EXPECT_NEAR(got.loss, loss, 1e-4 * loss) << name << ", step " << number << " of " << passes << " passes";
        EXPECT_NEAR(got.norm, norm, 1e-3 * norm) << name << ", step " << number << " of " << passes << " passes";
      }
    }
}

// What a run writes says and computes what it trained: alone, merged, and where training goes on from it.
TEST(AdapterTraining, WhatIsWrittenHasTheLossOfTheRun) {
  const auto samples = samples_of_adapters();
  for (const auto& [name, options] : runs()) {
    const TempDirectory directory;
    const auto out = directory.path() / "out", merged = directory.path() / "merged";
    TinySession session(job_of(options, 1, directory), 1);
    session.load();
    TinyTrainer trainer(session);
    for (int64_t number = 1; number <= 3; number++) trainer.step(samples, number, kRate);
    const double loss = trainer.evaluate(samples) / static_cast<double>(loss_tokens(samples));
    JobConfig written = decaying_on(std::filesystem::path(options.model).filename());
    if (options.method == "full") {
      export_model(session, out, options.model, Existing::Refuse);
      written.model = out.string();
      EXPECT_NEAR(loss_of(written), loss, 1e-5) << name;
      continue;
    }
    export_adapter(session, out, written_adapter(options), options.model);
    const auto saved = directory.path() / "saved";  // and so does its checkpoint
    std::filesystem::create_directories(saved);
    session.write(Task::Save, saved);
    write_trained(
        saved, session.spec().table, [](ParamId) { return DType::F32; }, saved / "adapter_model.safetensors",
        &session.spec().sources);
    EXPECT_EQ(read_tensors(saved / "adapter_model.safetensors"), read_tensors(out / "adapter_model.safetensors"))
        << name;
    written.adapter = out.string();
    EXPECT_NEAR(loss_of(written), loss, 1e-5) << name;
    // Training goes on from it, by the same rules; what was taken off is trained then as well.
    const int64_t trained = make_job(written, Purpose::Train).table.count(true);
    EXPECT_EQ(trained, session.spec().table.count(true) * (options.lora_init == "default" ? 1 : 2)) << name;
    JobConfig again = decaying_on(std::filesystem::path(options.model).filename());
    take_adapter(again, adapter_of(written));
    Fields of_options = fields_of(make_job(again, Purpose::Train)),
           of_adapter = fields_of(make_job(written, Purpose::Train));
    EXPECT_EQ(differences(of_options, of_adapter, kResultFields), std::vector<std::string>{}) << name;

    TinySession merge(make_job(written, Purpose::Merge), 1);
    merge.load();
    export_model(merge, merged, options.model, Existing::Refuse);
    written.adapter.clear();
    written.model = merged.string();
    EXPECT_NEAR(loss_of(written), loss, 1e-5) << name;
  }
}

// Bytes of what is frozen are the base's.
TEST(AdapterTraining, WhatIsFrozenIsWrittenAsItWas) {
  const TempDirectory directory;
  JobConfig options = runs().at("full_some");
  options.compute = "bf16";
  TinySession session(job_of(options, 1, directory), 1);
  session.load();
  TinyTrainer(session).step(samples_of_adapters(), 1, kRate);
  export_model(session, directory.path() / "out", options.model, Existing::Refuse);
  const auto before = read_tensors(adapters() / "tied" / "model.safetensors"),
             after = read_tensors(directory.path() / "out" / "model.safetensors");
  ASSERT_EQ(before.size(), after.size());
  for (const auto& [name, values] : before) {
    const bool trained = name.find("k_proj") != name.npos || name.find("layers.0.mlp.gate_proj") != name.npos;
    EXPECT_EQ(after.at(name) == values, !trained) << name;
  }
}

TEST(AdapterTraining, OptionsMakeTheAdaptersOfPeft) {
  JobConfig options = decaying_on("own_head");
  options.lora_rank = 3;
  options.lora_alpha = 6;
  options.lora_rank_pattern = kRanks;
  options.lora_alpha_pattern = kAlphas;
  JobConfig stored = options_from("uneven");
  EXPECT_EQ(differences(fields_of(make_job(options, Purpose::Train)), fields_of(make_job(stored, Purpose::Train)),
                        kResultFields),
            std::vector<std::string>{});
  options = decaying_on("own_head");
  options.lora_layers = {"1"};
  const ParamTable table = make_job(options, Purpose::Train).table;
  EXPECT_TRUE(table.layers[0].qkv.lora.parts.empty());
  EXPECT_EQ(table.layers[1].qkv.lora.parts.size(), 3u);
}

void expect_refused(const JobConfig& options, const std::string& message) {
  EXPECT_TRUE(fails_with<UserError>([&] { make_job(options, Purpose::Train); }, message));
}

TEST(AdapterTraining, RulesThatMeanNothingAreRefused) {
  const auto with = [](const char* key, const char* value, const char* method = "lora") {
    JobConfig options = decaying_on("tied");
    options.method = method;
    find_option(key, "test").set(options, value);
    return options;
  };
  expect_refused(with("lora_rank_pattern", "x_proj=4"), "'x_proj' names none of the linears that are adapted");
  expect_refused(with("lora_rank_pattern", "q_proj"), "found 'q_proj', expected NAME=NUMBER");
  expect_refused(with("lora_alpha_pattern", "q_proj=0"), "expected NAME=NUMBER");
  expect_refused(with("lora_layers", "1-2"), "of layers 0 to 1");
  for (const char* whole : {"lm_head", "embed_tokens"})
    expect_refused(with("lora_targets", whole),
                   fmt::format("target '{}': found the head or the embedding, adapters of which are not supported yet "
                               "(--modules-to-save {} trains it whole), expected names among",
                               whole, whole));
  expect_refused(with("modules_to_save", "head"), "modules_to_save: 'head' names none");
  expect_refused(with("train_modules", "norm"), "--method lora trains adapters");
  expect_refused(with("freeze", "layers.7", "full"), "freeze: 'layers.7' names none");
  expect_refused(with("freeze", "model", "full"), "found nothing left to train");
  expect_refused(with("train_modules", "lm_head", "full"), "the model's head is its embedding, 'model.embed_tokens'");
  expect_refused(with("lora_plus_ratio", "16", "full"), "lora_plus_ratio: found 16, expected nothing");
  expect_refused(with("modules_to_save", "norm", "full"), "what train_modules names");
}

TEST(AdapterTraining, BeginningsThatCannotBeAreRefused) {
  JobConfig options = options_from("plain");
  options.lora_init = "pissa";
  expect_refused(options, "lora_init: found pissa, expected nothing: --adapter");
  options = decaying_on("own_head");
  options.lora_init = "olora";
  options.lora_rank = 9;
  expect_refused(options, "self_attn.k_proj' is 8 x 24, which has no 9 halves, expected a rank of at most 8");
  options.lora_rank = 2;
  options.init = "random";
  expect_refused(options, "is drawn, expected a base whose files hold numbers");
}

// A model known by its configuration alone is planned with an adapter's files behind the one that is assumed.
TEST(AdapterTraining, FilesThatAreAssumedHoldWhatIsReadOfThem) {
  JobConfig options;
  options.model = (std::filesystem::path(SNUG_FIXTURES) / "configs" / "llama-3-8b").string();
  options.lora_init = "pissa";
  const WeightSources sources = make_job(options, Purpose::Train).sources;
  for (const ParamSource& source : sources.params) {
    const auto& place = std::get<TensorPlace>(source);
    EXPECT_LT(place.offset, sources.file_bytes[static_cast<size_t>(place.file)]);
  }
  EXPECT_GT(sources.file_bytes[0], sources.file_bytes[1]);
}

// PEFT takes every module whose path ends with "norm" for saved; options mean the module of that name.
TEST(AdapterTraining, NamesOfModulesMeanThemToPeftToo) {
  JobConfig options = decaying_on("own_head");
  options.modules_to_save = {"norm", "embed_tokens"};
  EXPECT_EQ(adapter_of(options).modules_to_save, (std::vector<std::string>{"embed_tokens", "model.norm"}));
}

}  // namespace
}  // namespace snug
