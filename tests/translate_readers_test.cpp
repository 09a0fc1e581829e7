// What snug translate reads: shell scripts, of which nothing is run, and files in YAML and JSON, which may be hostile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "expect_error.h"
#include "translate/settings.h"
#include "translate/shell.h"
#include "translate/tree.h"

namespace snug {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> words_of(const ShellCommand& command) {
  std::vector<std::string> words;
  for (const ShellWord& word : command.words) words.push_back(word.text);
  return words;
}

// The parts stand in the one message.
template <class Error, class Body>
void expect_error(Body&& body, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_TRUE(fails_with<Error>(body, part));
}

// Returns the words of a script's last command.
std::vector<std::string> last(const std::string& script) {
  return words_of(read_script(script, "x.sh").commands.back());
}

std::string unknown_of_last_word(const std::string& script) {
  return read_script(script, "x.sh").commands.back().words.back().unknown;
}

TEST(Shell, WordsAreCutAsAShellCutsThem) {
  EXPECT_THAT(last("run a\tb  c # not this\n"), ElementsAre("run", "a", "b", "c"));
  EXPECT_THAT(last("run a \\\n  b\\\n  c \\\n"), ElementsAre("run", "a", "b", "c"));
  EXPECT_THAT(last("run 'a  b' \"c d\" e\\ f '' \"g\\\"h\\.\""),
              ElementsAre("run", "a  b", "c d", "e f", "", "g\"h\\."));
  EXPECT_THAT(last("run $'a\\nb\\'c'"), ElementsAre("run", "a\nb'c"));
  EXPECT_THAT(last("run a#b 2>&1 > log.txt <in &>all"), ElementsAre("run", "a#b"));
  EXPECT_THAT(last("first; run a && second | run b"), ElementsAre("run", "b"));
  EXPECT_EQ(read_script("a\nb;c\n(d)\nif e; then f; fi\n", "x.sh").commands.size(), 5U);
  EXPECT_EQ(read_script("\n\na \\\n b\n", "x.sh").commands[0].line, 3);
}

TEST(Shell, VariablesOfPlainTextAreFollowed) {
  EXPECT_THAT(last("A=1\nB=\"$A 2\"\nrun $B \"$B\" ${A}x"), ElementsAre("run", "1", "2", "1 2", "1x"));
  EXPECT_THAT(last("ARGS=\"\n  --a 1 \\\n  --b 2\n\"\nrun $ARGS c"), ElementsAre("run", "--a", "1", "--b", "2", "c"));
  EXPECT_THAT(last("ARGS=(--a \"1 2\" # why\n --b)\nARGS+=(--c)\nrun \"${ARGS[@]}\""),
              ElementsAre("run", "--a", "1 2", "--b", "--c"));
  EXPECT_THAT(last("A=x\nA+=y\nrun $A ${N:-8} ${A:-9}"), ElementsAre("run", "xy", "8", "xy"));
  EXPECT_THAT(last("read -r -d '' cmd <<EOF\ntrain \\\n  --x $H\nEOF\nrun $cmd"),
              ElementsAre("run", "train", "--x", "$H"));
  EXPECT_THAT(last("A=1\nread -r -d '' cmd <<'EOF'\n--x $A\nEOF\nrun $cmd"), ElementsAre("run", "--x", "$A"));
}

TEST(Shell, WhatOnlyAShellKnowsIsUnknown) {
  EXPECT_EQ(unknown_of_last_word("run $HOME/x"), "$HOME");
  EXPECT_EQ(unknown_of_last_word("run \"$(nproc --all)\""), "$(nproc --all)");
  EXPECT_EQ(unknown_of_last_word("run `date`"), "`date`");
  EXPECT_EQ(unknown_of_last_word("run $1"), "$1");
  EXPECT_EQ(unknown_of_last_word("run ${A%.yaml}"), "${A%.yaml}");
  EXPECT_EQ(unknown_of_last_word("A=1\nif [ -z \"$B\" ]; then\n  A=2\nfi\nrun $A"), "$A") << "set in one branch alone";
  EXPECT_EQ(unknown_of_last_word("for lr in 1 2; do\n  run --lr $lr\ndone"), "$lr");
  EXPECT_EQ(unknown_of_last_word("run '$HOME'"), "") << "text in single quotes";
}

TEST(Shell, EnvironmentAndFilesOfHereDocuments) {
  const ShellScript script = read_script("export A=1\nB=2\nC=3 run\ncat > ds.json <<EOF\n{\"a\": $B}\nEOF\n", "x.sh");
  EXPECT_EQ(script.commands[0].environment.at("A").text, "1");
  EXPECT_EQ(script.commands[0].environment.at("C").text, "3");
  EXPECT_FALSE(script.commands[0].environment.contains("B"));
  EXPECT_EQ(script.files.at("ds.json"), "{\"a\": 2}\n");
}

TEST(Shell, HostileScriptsAreRefused) {
  expect_error<UserError>([] { read_script("run 'a", "x.sh"); }, {"x.sh, line 1", "no end"});
  expect_error<UserError>([] { read_script("a\nrun \"a", "x.sh"); }, {"line 2", "no end"});
  expect_error<UserError>([] { read_script("cat <<EOF\nx\n", "x.sh"); }, {"'EOF'"});
  expect_error<UserError>([] { read_script("run $(a", "x.sh"); }, {"no ')'"});
  std::string doubling = "A=aaaaaaaaaaaaaaaa\n";
  for (int i = 0; i < 40; i++) doubling += "A=\"$A$A\"\n";
  expect_error<UserError>([&] { read_script(doubling, "x.sh"); }, {"1048576 bytes"});
  EXPECT_NO_THROW(read_script(std::string(100'000, '('), "x.sh"));
  EXPECT_NO_THROW(read_script(std::string("run \0 a", 7), "x.sh"));
}

// ---- YAML and JSON --------------------------------------------------------------------------------------------------

TEST(TranslateTree, ValuesKeepTheirText) {
  const Tree tree = read_yaml("a: 1.0e-4\nb: [x, 'null', null]\nc:\n  d: no\ne: \"\"\nf:\n", "x.yaml");
  EXPECT_EQ(tree.find("a")->text, "1.0e-4");
  EXPECT_EQ(tree.find("b")->items[1].text, "null");
  EXPECT_EQ(tree.find("b")->items[2].kind, Tree::Kind::Null);
  EXPECT_EQ(tree.find("c")->find("d")->text, "no");
  EXPECT_EQ(tree.find("e")->kind, Tree::Kind::Text);
  EXPECT_EQ(tree.find("f")->kind, Tree::Kind::Null);
  EXPECT_EQ(tree.find("c")->line, 4);
  EXPECT_EQ(read_json("{\"a\": 5e8, \"b\": true}", "x.json").find("b")->text, "true");
  EXPECT_EQ(read_yaml("", "x.yaml").kind, Tree::Kind::Null);
}

TEST(TranslateTree, HostileFilesAreRefused) {
  expect_error<UserError>([] { read_yaml("a: &x 1\nb: *x\n", "x.yaml"); }, {"x.yaml, line 2", "alias"});
  expect_error<UserError>([] { read_yaml("a: 1\na: 2\n", "x.yaml"); }, {"line 2", "key 'a' twice"});
  expect_error<UserError>([] { read_yaml("? [a]\n: 1\n", "x.yaml"); }, {"as a key"});
  expect_error<UserError>([] { read_yaml("a: 1\n---\nb: 2\n", "x.yaml"); }, {"2 documents"});
  expect_error<UserError>([] { read_yaml("a: 1\n], b\n", "x.yaml"); }, {"x.yaml"});
  expect_error<UserError>([] { read_yaml("a: \xff\n", "x.yaml"); }, {"UTF-8"});
  expect_error<UserError>([] { read_yaml(std::string("a: b\0c\n", 7), "x.yaml"); }, {"byte 4", "control character"});
  expect_error<UserError>([] { read_yaml("a: \"\\ud800\"\n", "x.yaml"); }, {"x.yaml"});
  expect_error<UserError>([] { read_yaml(std::string(200, '[') + std::string(200, ']'), "x.yaml"); }, {"64 levels"});
  expect_error<UserError>([] { read_json(std::string(200, '[') + std::string(200, ']'), "x.json"); }, {"x.json"});
  std::string many = "a: [";
  for (int i = 0; i < 100'001; i++) many += "1,";
  expect_error<UserError>([&] { read_yaml(many + "]", "x.yaml"); }, {"100000 values"});
  expect_error<UserError>([] { read_yaml(std::string(kMaxTranslatedFile + 1, ' '), "x.yaml"); }, {"bytes"});
}

// ---- Commands -------------------------------------------------------------------------------------------------------

Invocation started(const std::string& line) {
  const auto found = read_command(read_script(line, "x.sh").commands.back(), std::nullopt, "command line");
  EXPECT_TRUE(found.has_value()) << line;
  return found.value_or(Invocation());
}

const Setting* find_setting(const Invocation& from, const std::string& name) {
  const auto found = std::ranges::find(from.settings, name, &Setting::name);
  return found == from.settings.end() ? nullptr : &*found;
}

TEST(TranslateCommand, ProgramsAreFoundBehindTheirLaunchers) {
  EXPECT_EQ(started("CUDA_VISIBLE_DEVICES=0 llamafactory-cli train a.yaml lr=1").program, Dialect::LlamaFactory);
  EXPECT_EQ(started("torchrun --nnodes 1 --nproc_per_node 2 a/finetuning.py --lr 1").program, Dialect::LlamaRecipes);
  EXPECT_EQ(started("python -m llama_recipes.finetuning --lr 1").program, Dialect::LlamaRecipes);
  EXPECT_EQ(started("deepspeed --module openrlhf.cli.train_sft --max_len 1").program, Dialect::OpenRlhf);
  EXPECT_EQ(started("accelerate launch --config_file c.yaml -m axolotl.cli.train a.yml").program, Dialect::Axolotl);
  EXPECT_EQ(started("nohup trl dpo --beta 1").command, "dpo");
  EXPECT_EQ(started("python -m torch.distributed.run --nproc_per_node=2 src/train.py a.yaml").starts_by, "torchrun");
  for (const char* other : {"pip install trl peft", "cd finetune", "git clone x/axolotl", "echo train", "mkdir sft"})
    EXPECT_FALSE(read_command(read_script(other, "x.sh").commands.back(), std::nullopt, "").has_value()) << other;
}

TEST(TranslateCommand, OptionsHaveTheWordsUpToTheNext) {
  const Invocation found =
      started("torchrun --nproc-per-node=4 sft.py --a-b 1 --betas 0.9 0.95 --on --neg -1 --eq=x=y key=v");
  EXPECT_EQ(find_setting(found, "nproc_per_node")->value, "4");
  EXPECT_EQ(find_setting(found, "nproc_per_node")->dialect, Dialect::Launcher);
  EXPECT_EQ(find_setting(found, "a_b")->value, "1");
  EXPECT_EQ(find_setting(found, "a_b")->written, "--a-b");
  EXPECT_EQ(find_setting(found, "betas")->value, "0.9,0.95");
  EXPECT_EQ(find_setting(found, "on")->value, "true");
  EXPECT_EQ(find_setting(found, "neg")->value, "-1");
  EXPECT_EQ(find_setting(found, "eq")->value, "x=y");
  EXPECT_EQ(find_setting(found, "key")->value, "v");
}

}  // namespace
}  // namespace snug
