#include "api/job_file.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "api/job.h"
#include "api/no_effect.h"
#include "api/other_names.h"
#include "base/file.h"
#include "temp_directory.h"

namespace snug {
namespace {

TEST(Options, DefaultsAreReadBackAsWritten) {
  const std::string written = write_job_file(JobConfig());
  JobConfig read;
  parse_job(written, "job.yaml", read);
  EXPECT_EQ(write_job_file(read), written);
}

TEST(Options, ASizeThatIsNamedIsEnough) {
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{1023}, uint64_t{1025}, uint64_t{2195456}, uint64_t{6057985},
                               (uint64_t{16} << 30) + 1, uint64_t{900'000'000'000'001}}) {
    const uint64_t read = parse_size(size_for_option(bytes), "host_memory");
    EXPECT_GE(read, bytes);
    EXPECT_LE(read - bytes, bytes / 50) << size_for_option(bytes);
  }
  EXPECT_EQ(size_for_option((uint64_t{16} << 30) + 1), "16.01GiB");
}

TEST(Options, MayNameMoreMemoryThanThereIsToLookAtAPlanButNotOfANamedCard) {
  constexpr uint64_t kLarge = uint64_t{1} << 50;
  JobConfig options;
  options.device = "cpu";
  options.device_memory = options.host_memory = options.disk_memory = kLarge;
  const auto caps = [&](PlanMode mode) { return caps_of(options, Target(options), mode); };
  EXPECT_EQ(caps(PlanMode::Look).device_bytes, kLarge);
  EXPECT_EQ(caps(PlanMode::Look).host_bytes, kLarge);
  EXPECT_LT(caps(PlanMode::Run).device_bytes, kLarge);
  EXPECT_LT(caps(PlanMode::Run).host_bytes, kLarge);
  EXPECT_LT(caps(PlanMode::Run).disk_bytes, kLarge);
  options.device = "cuda";
  options.machine = "A100-40GB";
  EXPECT_LT(caps(PlanMode::Look).device_bytes, uint64_t{40} << 30);
  EXPECT_EQ(caps(PlanMode::Look).host_bytes, kLarge);
  options.device_memory = uint64_t{20} << 30;
  EXPECT_EQ(caps(PlanMode::Look).device_bytes, uint64_t{20} << 30);
}

TEST(Options, TokenIdsThatAreKeptAreAmongWhatDiskMemoryAllows) {
  JobConfig options;
  options.device = "cpu";
  const auto disk = [&](PlanMode mode) { return caps_of(options, Target(options), mode).disk_bytes; };
  options.disk_memory = 1000;
  options.found.disk_taken = 300;
  EXPECT_EQ(disk(PlanMode::Run), 700u);
  EXPECT_EQ(disk(PlanMode::Look), 700u);
  options.found.disk_taken = 1001;
  EXPECT_EQ(disk(PlanMode::Run), 0u);
  options.machine = "A100-40GB";  // it has another disk
  options.device = "cuda";
  EXPECT_EQ(disk(PlanMode::Look), 1000u);
}

TEST(Options, AJobFileOfANewerFormatIsRefused) {
  const auto refusal = [](const std::string& text) -> std::string {
    JobConfig options;
    try {
      parse_job(text, "job.yaml", options);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_TRUE(write_job_file(JobConfig()).starts_with("format: 1\n"));
  EXPECT_EQ(refusal("format: 1\nseed: 7\n"), "");
  EXPECT_EQ(refusal("seed: 7\n"), "") << "as files were before there was a format";
  EXPECT_EQ(refusal("format: 2\n"), "job.yaml, key 'format': found 2, expected 1 at most: a newer snug made it");
  EXPECT_EQ(refusal("new_key: 1\nformat: 2\n"),
            "job.yaml, key 'format': found 2, expected 1 at most: a newer snug made it");
  for (const char* wrong : {"0", "one", "[1]"})
    EXPECT_EQ(refusal("format: " + std::string(wrong)), "job.yaml, key 'format': expected 1, the format of job files");
}

std::string refusal_of(const std::string& job) {
  JobConfig options;
  try {
    parse_job(job, "job.yaml", options);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Options, AJobFileIsOneDocument) {
  EXPECT_EQ(refusal_of("seed: 7\n---\nseed: 8\n"),
            "job.yaml: found 2 documents, divided by '---', expected one: a job file is one list of keys and values");
  for (const char* one : {"---\nseed: 7\n", "# none\n---\nseed: 7\n...\n", "seed: 7\n---\n# nothing more\n"}) {
    JobConfig options;
    parse_job(one, "job.yaml", options);
    EXPECT_EQ(options.seed, 7u) << one;
  }
}

TEST(Options, AStrayCommaOrBracketIsRefused) {
  for (const char* stray : {", seed: 7\n", "seed: 7\n---\n, c\n", "---\n]\n", "}"})
    EXPECT_TRUE(refusal_of(stray).starts_with("job.yaml: not readable as YAML: "))
        << stray << ": " << refusal_of(stray);
}

TEST(Options, BooleansAreReadAsYamlWasWritten) {
  for (const auto& [word, value] :
       {std::pair("True", true), {"yes", true}, {"On", true}, {"False", false}, {"no", false}}) {
    JobConfig options;
    options.packing = !value;
    parse_job(std::string("packing: ") + word, "job.yaml", options);
    EXPECT_EQ(options.packing, value) << word;
    EXPECT_EQ(find_option("packing", "test").get(options), value ? "true" : "false");
  }
  EXPECT_EQ(refusal_of("packing: maybe"), "job.yaml, packing: found 'maybe', expected true or false");
}

TEST(Options, WhatIsSaidTwiceIsRefused) {
  const char* twice = "job.yaml, columns: found 'output' twice, as 'a' and 'b', expected it once";
  EXPECT_EQ(refusal_of("columns: {output: a, output: b}"), twice);
  EXPECT_EQ(refusal_of("columns: output=a,output=b"), twice);
  EXPECT_EQ(refusal_of("roles: {bot: user, bot: assistant}"),
            "job.yaml, roles: found 'bot' twice, as 'user' and 'assistant', expected it once");
  EXPECT_NE(refusal_of("lora_targets: all,q_proj").find("expected 'all' alone, which means every linear"),
            std::string::npos);
  EXPECT_EQ(refusal_of("lora_targets: [q_proj, v_proj]"), "");
}

TEST(Options, DataWhereAJobFileStandsIsSaidToBeData) {
  const TempDirectory directory;
  const auto refused = [&](const std::string& name, const std::string& text) {
    const std::string path = directory.path() / name;
    write_text(path, text);
    JobConfig options;
    try {
      read_job_file(path, options);
    } catch (const UserError& error) {
      return std::string(error.what()).find("found the data file '" + path + "'") != std::string::npos;
    }
    return false;
  };
  EXPECT_TRUE(refused("b.jsonl", "{}"));
  EXPECT_TRUE(refused("b.csv", "a,b"));
  EXPECT_TRUE(refused("b.txt.gz", ""));
  EXPECT_TRUE(refused("b.json", "[{}]"));
  EXPECT_FALSE(refused("job.json", "{\"seed\": 7}")) << "YAML too";
}

std::vector<std::string> keys() {
  std::vector<std::string> all;
  for (const OptionSpec& spec : option_specs()) all.push_back(spec.key);
  return all;
}

// No name is an option of snug's own or stands there twice, each says something, and what it names is an option.
TEST(Options, NamesOfOtherProgramsLeadToOptionsThatAreThere) {
  const std::vector<std::string> known = keys();
  std::set<std::string_view> seen;
  for (const OtherName& other : other_names()) {
    EXPECT_EQ(std::ranges::count(known, other.name), 0) << other.name;
    EXPECT_TRUE(seen.insert(other.name).second) << other.name;
    EXPECT_FALSE(other.ours.empty() && other.remark.empty()) << other.name;
    std::istringstream ours{std::string(other.ours)};
    for (std::string one; std::getline(ours, one, ',');) EXPECT_EQ(std::ranges::count(known, one), 1) << other.name;
  }
}

TEST(Options, UnknownNamesAreExplained) {
  const std::vector<std::string> known = keys();
  const std::pair<const char*, const char*> said[] = {
      {"lr", "; here it is 'learning_rate'"},
      {"LR", "; here it is 'learning_rate'"},
      {"per_device_train_batch_size",
       "; here it is 'micro_batch_size': 'batch_size' is of all ranks and passes together"},
      {"warmup", "; known are 'warmup_steps', 'warmup_ratio'"},
      {"flash_attn", "; attention needs no choice: it goes by tiles and keeps no matrix of scores"},
      {"roles_to_train", "; here it is 'train_on': 'assistant' (the default) or 'all'"},
      {"train_on_prompt", "; here it is 'train_on': 'assistant' (the default) or 'all'"},
      {"train_on_eos", "; an end-of-turn token carries loss where its reply does"},
      {"mask_history", "; every reply carries loss but one whose message has 'train: false'"},
      {"field_messages", "; here it is 'columns': columns: {messages: NAME}"},
      {"message_field_role", "; here it is 'columns': columns: {role: NAME}"},
      {"message_field_content", "; here it is 'columns': columns: {content: NAME}"},
      {"message_property_mappings", "; here it is 'columns': columns: {role: NAME, content: NAME}"},
      {"assistant_tag", "; here it is 'roles': roles: {NAME: assistant}"},
      {"chat_template", "; here it is 'template'"},
      {"mix_strategy", "; samples of all files are shuffled together; 'max_samples' takes fewer of each"},
      {"learnin_rate", "; the nearest known one is 'learning_rate'"},
      {"epoch", "; the nearest known one is 'epochs'"},
      {"outt", "; the nearest known one is 'out'"},
      {"outdir", "; here it is 'out'"},
      {"pissa_init", "; here it is 'lora_init': 'pissa'"},
      {"n_gpu", "; here it is 'ranks': mpirun, or nothing, starts the processes: 'ranks' says how many GPUs"},
      {"foo", ""},
      {"max_frobs", ""},
      {"", ""}};
  for (const auto& [name, advice] : said) EXPECT_EQ(advice_on_name(name, known), advice) << name;
  const std::vector<std::string> of_generate{"model", "max_new_tokens"};
  EXPECT_EQ(advice_on_name("max_length", of_generate),
            "; here it is 'max_new_tokens', the tokens of a reply beside its prompt's");
  EXPECT_EQ(advice_on_name("lr", of_generate), "; elsewhere it is 'learning_rate', which this command does not take");
}

TEST(Options, WhatChangesNothingIsSaid) {
  const auto lines = [](const std::vector<std::pair<std::string, std::string>>& asked, const Circumstances& seen) {
    JobConfig options;
    for (const auto& [key, value] : asked) {
      find_option(key, "test").set(options, value);
      options.flags.insert(key);
    }
    return options_without_effect(options, seen);
  };
  using Lines = std::vector<std::string>;
  const Cut one{.sequence_length = 64, .micro_batch = 1, .passes = 1, .ranks = 1};
  EXPECT_EQ(lines({{"eval_every", "2"}}, {.cut = one}),
            Lines{"--eval-every 2 changes nothing: without --validation nothing is evaluated"});
  EXPECT_EQ(lines({{"eval_every", "2"}, {"validation", "0.1"}}, {.cut = one}), Lines{});
  EXPECT_EQ(lines({{"schedule", "constant"}, {"min_learning_rate_ratio", "0.1"}}, {.cut = one}),
            Lines{"--min-learning-rate-ratio 0.1 changes nothing: the rate of --schedule constant does not fall"});
  EXPECT_EQ(
      lines({{"warmup_steps", "3"}, {"warmup_ratio", "0.1"}, {"zero", "3"}, {"order", "layer"}}, {.cut = one}).size(),
      3u);
  const RecordKinds texts{.texts = true}, chats{.conversations = true};
  EXPECT_EQ(lines({{"template", "chatml"}, {"train_on", "assistant"}, {"text_split", "line"}}, {.kinds = texts}),
            (Lines{"--text-split line changes nothing: no file is a .txt",
                   "--template chatml changes nothing: no record is a conversation",
                   "--train-on assistant changes nothing: every token of a text carries loss"}));
  EXPECT_EQ(lines({{"template", "chatml"}, {"train_on", "all"}}, {.kinds = chats}), Lines{});
  EXPECT_EQ(lines({{"text_split", "line"}, {"data", "a.txt"}}, {.kinds = texts}), Lines{});
  EXPECT_EQ(lines({{"seed", "3"}}, {.draws_nothing = true}), Lines{"--seed 3 changes nothing: nothing is drawn"});
  EXPECT_EQ(lines({{"packing", "false"}}, {.shows_samples = true}),
            Lines{"--packing false changes nothing: samples are shown whole"});
  JobConfig of_a_file;
  parse_job("eval_every: 0\ntrain_on: assistant\nschedule: constant\n", "job.yaml", of_a_file);
  EXPECT_EQ(options_without_effect(of_a_file, {.kinds = texts, .cut = one}), Lines{}) << "as usual";
}

}  // namespace
}  // namespace snug
