// snug translate: options of other programs, option by option, and whole commands of theirs.
#include "translate/translate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "api/job_file.h"
#include "api/objective.h"
#include "base/error.h"
#include "expect_error.h"
#include "translate/gather.h"
#include "translate/ours.h"
#include "translate/table.h"
#include "translate/translator.h"
#include "translate_cases.h"

namespace snug {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

JobConfig loaded(const std::string& job) {
  JobConfig options;
  parse_job(job, "job.yaml", options);
  return options;
}

TEST(Translate, PeersCommandsBecomeTheStoredJobs) {
  EXPECT_GE(case_names().size(), 78U);
  for (const std::string& name : case_names()) {
    const TranslateCase one = read_case(name);
    const TranslatedJob result = one.translated();
    EXPECT_EQ(result.job, text_if_there(one.file("job.yaml")).value_or("")) << name;
    EXPECT_EQ(result.report_text(), text_if_there(one.file("report.txt")).value_or("")) << name;
  }
}

TEST(Translate, DISABLED_Rewrite) {
  for (const std::string& name : case_names()) {
    const TranslateCase one = read_case(name);
    const TranslatedJob result = one.translated();
    std::ofstream(one.file("job.yaml")) << result.job;
    std::ofstream(one.file("report.txt")) << result.report_text();
  }
}

TEST(Translate, EveryJobLoads) {
  for (const std::string& name : case_names()) {
    for (const bool pin : {false, true}) {
      TranslateCase one = read_case(name);
      one.request.pin = pin;
      EXPECT_NO_THROW(objective_of(loaded(one.translated().job))) << name << "\n" << one.translated().job;
    }
  }
}

TEST(Translate, EveryOptionThatIsReadGetsOneVerdict) {
  for (const std::string& name : case_names()) {
    const TranslateCase one = read_case(name);
    const TranslatedJob result = one.translated();
    const auto read = std::ranges::count(result.report, false, &ReportLine::is_default);
    EXPECT_EQ(static_cast<size_t>(read), gather(one.request, one.read).settings.size()) << name;
  }
}

// ---- The tables -----------------------------------------------------------------------------------------------------

TEST(TranslateTable, OurKeysAreTheOptionsWithTheirDefaults) {
  for (const OurKey& key : our_keys()) {
    const OptionSpec& spec = find_option(std::string(key.name), "test");
    EXPECT_EQ(spec.key, key.name);
    EXPECT_EQ(spec.get(JobConfig()), key.fallback) << key.name;
    for (const char* text : {"0", "1", "0.5", "2", "-1", "-0", "007", "1e-5", "1000000", "1e30", "all", "epoch", "true",
                             "none", "4.0", "x"}) {
      if (key.kind == OurKey::Kind::Map || key.kind == OurKey::Kind::List) continue;
      const std::optional<std::string> value = our_value(key, text);
      JobConfig options;
      if (value) {
        EXPECT_NO_THROW(spec.set(options, *value)) << key.name << " " << text;
      }
    }
  }
}

// Every row, whatever the value: one verdict, and a job that snug reads.
TEST(TranslateTable, EveryRowJudgesEveryValue) {
  const std::vector<std::string> values{"true", "false", "",    "3",    "0.5",  "-1",
                                        "auto", "abc",   "a,b", "none", "1e-4", "{}"};
  for (const auto& [program_name, program] : program_names()) {
    for (const Dialect dialect : {program, Dialect::Launcher, Dialect::Environment, Dialect::DeepSpeed,
                                  Dialect::Accelerate, Dialect::DatasetInfo}) {
      for (const Dialect table : tables_of(dialect))
        for (const Row& row : rows_of(table)) {
          std::string names(row.names), name = names.substr(0, names.find(' '));
          std::ranges::replace(name, '*', 'x');
          for (const std::string& value : values)
            for (const std::string task : {"train", "dpo", "cpo", "kto", "ppo"}) {
              const auto given = [](Dialect of, const std::string& option, const std::string& text) {
                Setting setting;
                setting.dialect = of;
                setting.name = setting.written = option;
                setting.value = text;
                return setting;
              };
              const std::string asks = program == Dialect::Axolotl ? "rl" : "stage";
              std::vector<Setting> settings{given(dialect, name, value)};
              const bool by_option = program == Dialect::Axolotl || program == Dialect::LlamaFactory;
              if (by_option && task != "train" && name != asks) settings.push_back(given(program, asks, task));
              Translator t(program, by_option ? "train" : task, "torchrun", settings, 2);
              ASSERT_NO_THROW(t.translate()) << program_name << " " << task << " " << name << " " << value;
            }
        }
    }
  }
}

TEST(TranslateTable, NoNameStandsTwiceInATable) {
  for (const auto& [program_name, program] : program_names()) {
    std::set<std::string> seen;
    for (const Row& row : rows_of(program)) {
      std::istringstream names{std::string(row.names)};
      for (std::string name; names >> name;) EXPECT_TRUE(seen.insert(name).second) << program_name << ": " << name;
    }
  }
}

// ---- Rules ----------------------------------------------------------------------------------------------------------

// Translates a file of LLaMA-Factory's with more lines, beside other files.
TranslatedJob factory(const std::string& lines, const std::map<std::string, std::string>& files = {},
                      std::vector<std::string> words = {"t.yaml"}) {
  TranslateRequest request;
  request.words = std::move(words);
  request.ranks = 2;
  return translate(request, [&](const std::string& path) -> std::optional<std::string> {
    if (path == "t.yaml") return "model_name_or_path: m\nstage: sft\ndataset: d.json\n" + lines;
    const auto found = files.find(path);
    return found == files.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST(TranslateRules, TheCommandLineWinsOverTheFileAndDeepSpeedOverBoth) {
  const TranslatedJob job =
      factory("learning_rate: 1e-4\nlr_scheduler_type: cosine\ndeepspeed: ds.json\n",
              {{"ds.json",
                "{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 3e-4}}, \"scheduler\": "
                "{\"type\": \"WarmupDecayLR\", \"params\": {\"warmup_num_steps\": 7}}}"}},
              {"t.yaml", "learning_rate=2e-4"});
  const JobConfig options = loaded(job.job);
  EXPECT_EQ(options.learning_rate, 3e-4);
  EXPECT_EQ(options.schedule, "linear");
  EXPECT_EQ(options.warmup_steps, 7);
  EXPECT_THAT(line_of(job, "lr_scheduler_type").text, HasSubstr("DeepSpeed's scheduler"));
  EXPECT_THAT(line_of(job, "learning_rate").text, HasSubstr("2e-4 counts"));
  EXPECT_EQ(loaded(factory("learning_rate: 1e-4\n", {}, {"t.yaml", "learning_rate=2e-4"}).job).learning_rate, 2e-4);
}

TEST(TranslateRules, ABatchIsAProductOfRanks) {
  const TranslatedJob job = factory("per_device_train_batch_size: 4\ngradient_accumulation_steps: 3\n");
  EXPECT_EQ(loaded(job.job).batch_size, 24);
  EXPECT_EQ(line_of(job, "per_device_train_batch_size").mark, '~');
  const std::string ds = "{\"train_micro_batch_size_per_gpu\": 5}";
  const TranslatedJob odds = factory("per_device_train_batch_size: 4\ndeepspeed: ds.json\n", {{"ds.json", ds}});
  EXPECT_TRUE(odds.changes);
  EXPECT_EQ(line_of(odds, "train_micro_batch_size_per_gpu").mark, 'x');
  const std::string all =
      "{\"train_batch_size\": 9, \"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 1}";
  EXPECT_EQ(line_of(factory("deepspeed: ds.json\n", {{"ds.json", all}}), "train_batch_size").mark, 'x');
  EXPECT_TRUE(factory("per_device_train_batch_size: 100000\n").changes) << "more than a step may have";
}

TEST(TranslateRules, WhatNobodyKnowsIsNamedWithTheNearest) {
  const TranslatedJob job = factory("ax_samples: 3\nlora_rnk: 8\n");
  EXPECT_TRUE(job.changes);
  EXPECT_EQ(line_of(job, "ax_samples").mark, 'x');
  EXPECT_THAT(line_of(job, "ax_samples").text, HasSubstr("nearest: max_samples"));
  EXPECT_THAT(line_of(job, "lora_rnk").text, HasSubstr("nearest: lora_rank"));
  EXPECT_THAT(job.job, HasSubstr("# x lora_rnk 8: unknown option of LLaMA-Factory"));
}

TEST(TranslateRules, DefaultsThatDifferAreWritten) {
  const JobConfig options = loaded(factory("").job);
  EXPECT_EQ(options.learning_rate, 5e-5);
  EXPECT_EQ(options.schedule, "linear");
  EXPECT_EQ(options.warmup_ratio, 0);
  EXPECT_EQ(options.batch_size, 16);
  EXPECT_EQ(options.epochs, 3);
  EXPECT_EQ(options.lora_rank, 8);
  EXPECT_EQ(options.lora_alpha, 16);
  EXPECT_FALSE(options.packing);
  EXPECT_EQ(options.keep, -1);
  EXPECT_THAT(factory("").job, Not(HasSubstr("weight_decay"))) << "which is the same";
}

TEST(TranslateRules, ColumnsAndRolesOfDatasetInfo) {
  const std::string info =
      "{\"s\": {\"file_name\": \"s.json\", \"formatting\": \"sharegpt\", \"columns\": {\"messages\": \"talk\"}, "
      "\"tags\": {\"role_tag\": \"who\", \"content_tag\": \"value\", \"assistant_tag\": \"bot\"}}, "
      "\"a\": {\"file_name\": \"a.json\", \"columns\": {\"prompt\": \"question\"}}}";
  const JobConfig options =
      loaded(factory("dataset_dir: in\n", {{"in/dataset_info.json", info}}, {"t.yaml", "dataset=s"}).job);
  EXPECT_EQ(options.data, std::vector<std::string>{"in/s.json"});
  EXPECT_EQ(options.columns, (std::map<std::string, std::string>{{"messages", "talk"}, {"role", "who"}}));
  EXPECT_EQ(options.roles, (std::map<std::string, std::string>{{"bot", "assistant"}}));
  const TranslatedJob two = factory("dataset_dir: in\n", {{"in/dataset_info.json", info}}, {"t.yaml", "dataset=s,a"});
  EXPECT_TRUE(two.changes) << "columns hold for all files";
  EXPECT_EQ(line_of(two, "a.columns.prompt").mark, 'x');
  EXPECT_TRUE(factory("", {}, {"t.yaml", "dataset=other"}).changes) << "no entry of that name";
}

// Translates a command without files.
TranslatedJob command(const std::string& line, std::optional<int64_t> ranks = {}) {
  TranslateRequest request{{line + " "}, {}, ranks, false};
  return translate(request, [](const std::string&) { return std::optional<std::string>(); });
}

TEST(TranslateRules, RanksAreCountedFromWhateverStartsThem) {
  const std::string train = " finetuning.py --batch_size_training 3";
  EXPECT_EQ(loaded(command("torchrun --nproc_per_node 4" + train).job).ranks, 4);
  EXPECT_EQ(loaded(command("torchrun --nnodes 2 --nproc_per_node 4" + train).job).batch_size, 24);
  EXPECT_EQ(loaded(command("deepspeed --include localhost:0,2,3" + train).job).ranks, 3);
  EXPECT_EQ(loaded(command("accelerate launch --num_machines 2 --num_processes 4" + train).job).ranks, 4);
  EXPECT_EQ(loaded(command("CUDA_VISIBLE_DEVICES=5 accelerate launch" + train).job).ranks, 1);
  EXPECT_EQ(loaded(command("python" + train).job).ranks, 1);
  EXPECT_EQ(loaded(command("torchrun --nproc_per_node 4" + train, 2).job).batch_size, 6) << "--ranks counts";
  const TranslatedJob open = command("torchrun --nproc_per_node gpu" + train);
  EXPECT_TRUE(open.changes);
  EXPECT_THAT(line_of(open, "--batch_size_training").text, HasSubstr("--ranks N"));
}

TEST(TranslateRules, LlamaRecipesCountsPassesAndLowersTheRateBetweenEpochs) {
  const std::string train =
      "torchrun --nproc_per_node 1 finetuning.py --gradient_accumulation_steps 4 --max_train_step 10";
  EXPECT_EQ(loaded(command(train).job).max_steps, 2);
  EXPECT_EQ(line_of(command(train), "gamma").mark, 'x');
  EXPECT_THAT(command(train + " --num_epochs 1").report,
              Not(::testing::Contains(::testing::Field(&ReportLine::option, "gamma"))));
  EXPECT_EQ(loaded(command(train).job).max_grad_norm, 0);
  EXPECT_EQ(loaded(command(train + " --gradient_clipping --gradient_clipping_threshold 0.5").job).max_grad_norm, 0.5);
}

TEST(TranslateRules, NumbersThatAreCountsOrSharesAreSaid) {
  EXPECT_EQ(line_of(factory("val_size: 100\n"), "val_size").mark, 'x');
  EXPECT_TRUE(factory("num_train_epochs: 0.5\n").changes);
  EXPECT_EQ(loaded(factory("warmup_steps: 0.1\n").job).warmup_ratio, 0.1);
  EXPECT_FALSE(factory("save_steps: 0.1\n").changes) << "when something is saved does not change what is trained";
  EXPECT_EQ(line_of(factory("save_steps: 0.1\n"), "save_steps").mark, 'x');
  EXPECT_EQ(
      line_of(
          factory("lr_scheduler_type: cosine_with_min_lr\nlearning_rate: 1e-4\nlr_scheduler_kwargs: {min_lr: 1e-5}\n"),
          "lr_scheduler_kwargs.min_lr")
          .text,
      "min_learning_rate_ratio: 0.1; a share of the learning rate");
}

TEST(TranslateRules, AnOpenRlhfTemplateIsAPattern) {
  TranslateRequest request;
  request.words = {
      "deepspeed --module openrlhf.cli.train_sft --dataset d.jsonl --output_key a --input_template $'Q: {}\\nA: '"};
  const auto none = [](const std::string&) { return std::optional<std::string>(); };
  const JobConfig options = loaded(translate(request, none).job);
  EXPECT_EQ(options.prompt_pattern, "Q: {instruction}\nA: ");
  EXPECT_EQ(options.columns, (std::map<std::string, std::string>{{"instruction", "input"}, {"output", "a"}}));
  EXPECT_EQ(options.beta2, 0.95);
  EXPECT_EQ(options.min_learning_rate_ratio, 0.1);
}

TEST(TranslateRules, FilesThatAreNamedAndMissingAreRefused) {
  const TranslatedJob job = factory("deepspeed: nowhere.json\n");
  EXPECT_TRUE(job.changes);
  EXPECT_THAT(line_of(job, "deepspeed").text, HasSubstr("no such file"));
}

TEST(TranslateRules, HostileValuesMakeJobsThatLoad) {
  const TranslatedJob job =
      factory("output_dir: \"a: b # c\\n- d\"\nlora_target: \"x, y'z\"\ncutoff_len: 1e99\nseed: \"\\x01\"\n");
  const JobConfig options = loaded(job.job);
  EXPECT_EQ(options.out, "a: b # c\n- d");
  EXPECT_EQ(options.lora_targets, (std::vector<std::string>{"x", "y'z"}));
  EXPECT_EQ(line_of(job, "cutoff_len").mark, 'x');
  EXPECT_THAT(line_of(job, "seed").text, HasSubstr("control character"));
  std::string many;
  for (int i = 0; i < 2001; i++) many += fmt::format("k{}: 1\n", i);
  EXPECT_TRUE(fails_with<UserError>([&] { factory(many); }, "at most 2000"));
}

TEST(TranslateRules, WordsThatStartNoTrainingAreRefused) {
  const auto words = [](std::vector<std::string> words, const std::string& part) {
    TranslateRequest request;
    request.words = std::move(words);
    return fails_with<UserError>(
        [&] {
          translate(request, [](const std::string& path) -> std::optional<std::string> {
            if (path == "two.sh") return "trl sft --a 1\ntrl sft --b 2\n";
            if (path == "odd.yaml") return "what: 1\n";
            return std::nullopt;
          });
        },
        part);
  };
  EXPECT_TRUE(words({}, "found nothing"));
  EXPECT_TRUE(words({"ls", "-l"}, "--from"));
  EXPECT_TRUE(words({"nowhere.yaml"}, "nowhere.yaml: found no such file"));
  EXPECT_TRUE(words({"two.sh"}, "2 commands that train, in lines 1, 2"));
  EXPECT_TRUE(words({"odd.yaml"}, "--from says one of llamafactory"));
  EXPECT_TRUE(words({"llamafactory-cli", "export", "a.yaml"}, "snug merge"));
}

}  // namespace
}  // namespace snug
