#include "cli/options.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "cli/job.h"
#include "cli/other_names.h"

namespace snug {
namespace {

TEST(Options, DefaultsAreReadBackAsWritten) {
  const std::string written = write_job_file(Options());
  Options read;
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
  Options options;
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

TEST(Options, AJobFileOfANewerFormatIsRefused) {
  const auto refusal = [](const std::string& text) -> std::string {
    Options options;
    try {
      parse_job(text, "job.yaml", options);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_TRUE(write_job_file(Options()).starts_with("format: 1\n"));
  EXPECT_EQ(refusal("format: 1\nseed: 7\n"), "");
  EXPECT_EQ(refusal("seed: 7\n"), "") << "as files were before there was a format";
  EXPECT_EQ(refusal("format: 2\n"), "job.yaml, key 'format': found 2, expected 1 at most: a newer snug made it");
  EXPECT_EQ(refusal("new_key: 1\nformat: 2\n"),
            "job.yaml, key 'format': found 2, expected 1 at most: a newer snug made it");
  for (const char* wrong : {"0", "one", "[1]"})
    EXPECT_EQ(refusal("format: " + std::string(wrong)), "job.yaml, key 'format': expected 1, the format of job files");
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
      {"foo", ""},
      {"max_frobs", ""},
      {"", ""}};
  for (const auto& [name, advice] : said) EXPECT_EQ(advice_on_name(name, known), advice) << name;
}

}  // namespace
}  // namespace snug
