#include "format/prompt_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "expect_error.h"
#include "format/jinja_json.h"
#include "format/json.h"
#include "temp_directory.h"

namespace snug {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint64_t kMost = 1 << 20;

// Letters and the tokens of ChatML: ids 0 to 5 are a, b, <|endoftext|>, <|im_start|>, <|im_end|>, <s>.
constexpr const char* kTokenizer = R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
  "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
  "added_tokens": [
    {"id": 2, "content": "<|endoftext|>", "special": true, "normalized": false, "single_word": false, "lstrip": false, "rstrip": false},
    {"id": 3, "content": "<|im_start|>", "special": true, "normalized": false, "single_word": false, "lstrip": false, "rstrip": false},
    {"id": 4, "content": "<|im_end|>", "special": true, "normalized": false, "single_word": false, "lstrip": false, "rstrip": false},
    {"id": 5, "content": "<s>", "special": true, "normalized": false, "single_word": false, "lstrip": false, "rstrip": false}]})";

Tokenizer tokenizer_with(const std::string& config, const std::string& jinja = "") {
  return Tokenizer::parse({.tokenizer = kTokenizer, .config = config, .chat_template = jinja});
}

ModelTokens model_with(std::vector<int64_t> end_tokens, int64_t vocabulary = 6) {
  return {vocabulary, std::move(end_tokens)};
}

std::string text_of(const fs::path& path) { return read_text(path, kMost); }
Json json_of(const fs::path& path) { return parse_json(text_of(path), path.string()); }

const char* const kBase = R"({"bos_token": "<s>", "eos_token": "<|endoftext|>"})";
const std::string kChatMl(ChatTemplate::choose("chatml", "", {}).jinja());

TEST(PromptFormat, ABaseThatIsGivenATemplateStopsAtItsEndOfTurnToo) {
  const Tokenizer tokenizer = tokenizer_with(kBase);
  const PromptFormat format = decide_prompt_format("chatml", model_with({2}), &tokenizer, nullptr);
  EXPECT_EQ(format.for_conversations().name(), "chatml");
  EXPECT_EQ(format.jinja, kChatMl);
  EXPECT_THAT(format.end_tokens, ElementsAre(4, 2));
  EXPECT_THAT(format.notes, IsEmpty());
}

TEST(PromptFormat, WhatEndsACallEndsAReply) {
  const Tokenizer tokenizer = tokenizer_with(
      kBase,
      "{% for m in messages %}<|im_start|>{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}<s>"
      "{% else %}<|im_end|>{% endif %}{% endfor %}");
  const PromptFormat format = decide_prompt_format("auto", model_with({2}), &tokenizer, nullptr);
  EXPECT_THAT(format.end_tokens, ElementsAre(4, 5, 2));
}

// What transformers does with a template named "tool_use" beside the one named "default".
const char* const kNamed = R"({"bos_token": "<s>", "eos_token": "<|endoftext|>", "pad_token": "<|im_end|>",
  "image_token": {"content": "[img]"}, "extra_special_tokens": {"call_mark": "[c]"}, "add_bos_token": false,
  "chat_template": [
    {"name": "tool_use", "template": "{% for m in messages %}T{{ m.content }}{{ pad_token }}{% endfor %}{{ tools | tojson }}"},
    {"name": "rag", "template": "no"},
    {"name": "default", "template": "{% for m in messages %}{{ m.content }}<|im_start|>{% endfor %}"}]})";

std::string rendered(const PromptFormat& format, std::vector<jinja::Value> tools) {
  const std::vector<Message> turn = {{ChatRole::User, "q"}, {ChatRole::Assistant, "a"}};
  std::string text;
  for (const Piece& piece : format.for_conversations().render(turn, false, tools)) text += piece.text;
  return text;
}

TEST(PromptFormat, ConversationsWithToolsTakeTheTemplateForTools) {
  const Tokenizer tokenizer = tokenizer_with(kNamed);
  const PromptFormat format = decide_prompt_format("auto", model_with({2}), &tokenizer, nullptr);
  EXPECT_EQ(rendered(format, {}), "q<|im_start|>a<|im_start|>");
  EXPECT_EQ(rendered(format, {jinja::value_of_json(R"({"name": "f"})")}), R"(Tq<|im_end|>Ta<|im_end|>[{"name": "f"}])");
  EXPECT_THAT(format.notes,
              ElementsAre("tokenizer_config.json: it has several chat templates: conversations with tools take "
                          "'tool_use', others 'default'; 'rag' is left"));
  EXPECT_THAT(format.end_tokens, ElementsAre(3, 4, 2));
  // An adapter has both beside it.
  TempDirectory directory;
  const auto files = adapter_format_files(directory.path(), {format.jinja, format.jinja_for_tools}, {.version = "1"});
  EXPECT_THAT(files.at("additional_chat_templates/tool_use.jinja"), HasSubstr("T{{ m.content }}"));
  for (const auto& [name, text] : files) {
    fs::create_directories((directory.path() / name).parent_path());
    write_text(directory.path() / name, text);
  }
  const AdapterFormat adapter = read_adapter_format(directory.path(), 6);
  const Tokenizer bare = tokenizer_with(kBase);
  const PromptFormat again = decide_prompt_format("auto", model_with({2}), &bare, &adapter);
  EXPECT_EQ(rendered(again, {}), "q<|im_start|>a<|im_start|>");
  EXPECT_EQ(rendered(again, {jinja::value_of_json("1")}), "TqTa[1]");  // this tokenizer has no pad_token
  // A template that is named renders all.
  const PromptFormat named = decide_prompt_format("chatml", model_with({2}), &tokenizer, nullptr);
  EXPECT_EQ(named.jinja_for_tools, "");
  EXPECT_THAT(named.notes, ElementsAre());
}

TEST(PromptFormat, ATemplateForToolsThatIsNotUnderstoodIsRefusedWhereItIsNeeded) {
  Json config = parse_json(kNamed, "x");
  config["chat_template"][0]["template"] = "{% include 'a' %}";
  const Tokenizer tokenizer = tokenizer_with(config.dump());
  const PromptFormat format = decide_prompt_format("auto", model_with({2}), &tokenizer, nullptr);
  EXPECT_EQ(rendered(format, {}), "q<|im_start|>a<|im_start|>");
  EXPECT_TRUE(fails_with<UserError>([&] { rendered(format, {jinja::value_of_json("1")}); },
                                    "the model's chat template for tools, line 1: found the tag 'include'"));
}

// transformers gives templates every special token that the files name.
TEST(PromptFormat, TemplatesAreToldTheNamedSpecialTokens) {
  const Tokenizer tokenizer = tokenizer_with(
      kNamed,
      "{% for m in messages %}{{ m.content }}{{ pad_token }}{{ image_token }}{{ call_mark }}{{ unk_token }}"
      "{{ eos_token }}{% endfor %}");
  const PromptFormat format = decide_prompt_format("auto", model_with({2}), &tokenizer, nullptr);
  EXPECT_EQ(rendered(format, {}), "q<|im_end|>[img][c]<|endoftext|>a<|im_end|>[img][c]<|endoftext|>");
}

TEST(PromptFormat, WithoutATemplatePromptsAreBareAndConversationsRefused) {
  const Tokenizer tokenizer = tokenizer_with(kBase);
  const PromptFormat format = decide_prompt_format("auto", model_with({1}), &tokenizer, nullptr);
  EXPECT_EQ(format.for_prompts(), nullptr);
  EXPECT_TRUE(fails_with<UserError>([&] { format.for_conversations(); }, "the model has no chat template; name one"));
  EXPECT_THAT(format.end_tokens, ElementsAre(1, 2));
  const PromptFormat none = decide_prompt_format("none", model_with({1}), &tokenizer, nullptr);
  ASSERT_NE(none.for_prompts(), nullptr);
  EXPECT_TRUE(none.for_prompts()->bos_by_habit());
  EXPECT_EQ(none.jinja, "");
}

TEST(PromptFormat, ATemplateThatIsNotUnderstoodIsNoBareText) {
  const Tokenizer tokenizer = tokenizer_with(kBase, "{% include 'a' %}");
  const PromptFormat format = decide_prompt_format("auto", model_with({2}), &tokenizer, nullptr);
  EXPECT_TRUE(fails_with<UserError>([&] { format.for_prompts(); },
                                    "the model's chat template, line 1: found the tag 'include'"));
  EXPECT_EQ(format.jinja, "{% include 'a' %}");
}

TEST(PromptFormat, ATemplateWhoseMarkersAreNoTokensIsRefusedByTheirNames) {
  const Tokenizer tokenizer = tokenizer_with(R"({"eos_token": "<|endoftext|>"})");
  const auto refusal = [&](const char* name) {
    return decide_prompt_format(name, model_with({2}), &tokenizer, nullptr).refusal;
  };
  EXPECT_THAT(refusal("llama3"), HasSubstr("template llama3: the tokenizer lacks '<|start_header_id|>', "
                                           "'<|end_header_id|>', '<|eot_id|>', a bos_token, expected single tokens"));
  EXPECT_THAT(refusal("llama2"), HasSubstr("lacks a bos_token, expected"));
  EXPECT_EQ(refusal("mistral"), "");
  EXPECT_EQ(refusal("chatml"), "");
  EXPECT_EQ(refusal("none"), "");
  const Tokenizer own = tokenizer_with("{}", text_of(SNUG_FIXTURES "/templates/mistral.jinja"));
  const PromptFormat format = decide_prompt_format("auto", model_with({2}), &own, nullptr);
  EXPECT_TRUE(fails_with<UserError>([&] { format.for_prompts(); }, "template mistral: the tokenizer lacks an eos_"));
}

TEST(PromptFormat, EndsBeyondTheVocabularyEndNothingAndAreSaid) {
  const Tokenizer tokenizer = tokenizer_with(kBase);
  const PromptFormat format = decide_prompt_format("chatml", model_with({1}, 4), &tokenizer, nullptr);
  EXPECT_THAT(format.end_tokens, ElementsAre(1, 2));
  EXPECT_THAT(format.notes, ElementsAre("'<|im_end|>', the template's end of turn, is token 4, beyond the model's 4 "
                                        "rows: it ends no reply"));
  const Tokenizer bare = tokenizer_with("{}");
  EXPECT_THAT(decide_prompt_format("none", model_with({}), &bare, nullptr).notes,
              ElementsAre(HasSubstr("names a token that ends a reply")));
}

TEST(PromptFormat, AnAdapterIsAskedAsItWasTrained) {
  const Tokenizer tokenizer = tokenizer_with(kBase);
  const AdapterFormat adapter{
      .directory = "run/adapter", .jinja = kChatMl, .end_tokens = {{4, 2}}, .by_snug = true, .template_name = "chatml"};
  const PromptFormat format = decide_prompt_format("auto", model_with({2}), &tokenizer, &adapter);
  EXPECT_EQ(format.for_prompts()->name(), "chatml");
  EXPECT_THAT(format.end_tokens, ElementsAre(4, 2));
  EXPECT_TRUE(format.template_of_adapter && format.ends_of_adapter);
  EXPECT_THAT(format.notes, IsEmpty());
  EXPECT_THAT(decide_prompt_format("chatml", model_with({2}), &tokenizer, &adapter).notes, IsEmpty());
  EXPECT_THAT(decide_prompt_format("qwen", model_with({2}), &tokenizer, &adapter).notes,
              ElementsAre("run/adapter was trained with template chatml of other texts; without --template it is asked "
                          "as trained"));
  EXPECT_THAT(decide_prompt_format("none", model_with({2}), &tokenizer, &adapter).notes,
              ElementsAre("run/adapter was trained with template chatml; without --template it is asked as trained"));
  const AdapterFormat unknown{.directory = "run/adapter", .jinja = "{% include 'a' %}"};
  EXPECT_THAT(decide_prompt_format("chatml", model_with({2}), &tokenizer, &unknown).notes,
              ElementsAre("run/adapter was trained with a chat template that cannot be used here"));
}

TEST(PromptFormat, AnAdapterThatWasTrainedWithoutATemplateIsAskedByBareText) {
  const Tokenizer tokenizer = tokenizer_with(kBase, kChatMl);
  AdapterFormat adapter{.directory = "run/adapter", .by_snug = true, .template_name = "none"};
  EXPECT_EQ(decide_prompt_format("auto", model_with({2}), &tokenizer, &adapter).for_prompts()->name(), "none");
  adapter.prompt_pattern = "Q: {q}";
  EXPECT_THAT(decide_prompt_format("auto", model_with({2}), &tokenizer, &adapter).notes,
              ElementsAre(HasSubstr("--prompt \"Q: {q}\"")));
  adapter = {.directory = "run/adapter", .by_snug = true};  // of texts: nothing was asked
  EXPECT_EQ(decide_prompt_format("auto", model_with({2}), &tokenizer, &adapter).for_prompts()->name(), "chatml");
}

class PromptFormatFiles : public testing::Test {
 protected:
  fs::path at(const std::string& name) const { return directory_.path() / name; }
  TempDirectory directory_;
};

TEST_F(PromptFormatFiles, AnAdapterSaysWhatItWasTrainedWith) {
  write_text(at("generation_config.json"), R"({"eos_token_id": 2, "pad_token_id": 0, "top_p": 0.5})");
  const auto files =
      adapter_format_files(directory_.path(), {.jinja = kChatMl, .end_tokens = {4, 2}},
                           {.version = "1.2", .template_name = "chatml", .train_on = "all", .base = 255});
  EXPECT_EQ(files.at("chat_template.jinja"), kChatMl);
  EXPECT_EQ(parse_json(files.at("generation_config.json"), "x"),
            (Json{{"eos_token_id", {4, 2}}, {"pad_token_id", 0}, {"top_p", 0.5}}));
  EXPECT_EQ(parse_json(files.at("snug.json"), "x"), (Json{{"format", 1},
                                                          {"version", "1.2"},
                                                          {"template", "chatml"},
                                                          {"train_on", "all"},
                                                          {"base", "00000000000000ff"}}));
  fs::create_directory(at("adapter"));
  for (const auto& [name, text] : files) write_text(at("adapter") / name, text);
  const AdapterFormat format = read_adapter_format(at("adapter"), 6);
  EXPECT_TRUE(format.by_snug);
  EXPECT_EQ(format.template_name, "chatml");
  EXPECT_EQ(format.jinja, kChatMl);
  EXPECT_EQ(format.end_tokens, (std::vector<int64_t>{4, 2}));
}

TEST_F(PromptFormatFiles, WhereNothingWasAskedAnAdapterNamesNoTemplate) {
  write_text(at("config.json"), R"({"bos_token_id": 5, "eos_token_id": 2, "pad_token_id": null, "hidden_size": 8})");
  const auto files = adapter_format_files(directory_.path(), {}, {.version = "1", .train_on = "assistant"});
  EXPECT_FALSE(files.contains("chat_template.jinja"));
  EXPECT_EQ(parse_json(files.at("generation_config.json"), "x"), (Json{{"bos_token_id", 5}, {"eos_token_id", 2}}));
  EXPECT_EQ(parse_json(files.at("snug.json"), "x")["template"], nullptr);
}

TEST_F(PromptFormatFiles, AnAdapterOfOthersIsAskedByTheTemplateBesideIt) {
  write_text(at("tokenizer_config.json"), R"({"chat_template": "old"})");
  EXPECT_EQ(read_adapter_format(directory_.path(), 6).jinja, "old");
  write_text(at("chat_template.jinja"), "new");
  const AdapterFormat format = read_adapter_format(directory_.path(), 6);
  EXPECT_EQ(format.jinja, "new");
  EXPECT_FALSE(format.by_snug);
  EXPECT_EQ(format.end_tokens, std::nullopt);
}

TEST_F(PromptFormatFiles, AModelIsWrittenSoThatOthersAskAndStopAsTrained) {
  write_text(at("config.json"), R"({"hidden_size": 8, "eos_token_id": 2})");
  write_text(at("tokenizer_config.json"), R"({"eos_token": "<|endoftext|>", "chat_template": "old"})");
  write_text(at("chat_template.json"), R"({"chat_template": "old"})");
  fs::create_directory(at("additional_chat_templates"));
  write_text(at("additional_chat_templates") / "tool_use.jinja", "old");
  write_model_format(directory_.path(), {.jinja = kChatMl, .end_tokens = {4, 2}});
  EXPECT_EQ(text_of(at("chat_template.jinja")), kChatMl);
  EXPECT_EQ(json_of(at("tokenizer_config.json")), (Json{{"eos_token", "<|endoftext|>"}, {"chat_template", kChatMl}}));
  EXPECT_EQ(json_of(at("config.json")), (Json{{"hidden_size", 8}, {"eos_token_id", {4, 2}}}));
  EXPECT_EQ(json_of(at("generation_config.json")), (Json{{"eos_token_id", {4, 2}}}));
  EXPECT_FALSE(fs::exists(at("chat_template.json")) || fs::exists(at("additional_chat_templates")));
}

TEST_F(PromptFormatFiles, TemplatesWithNamesStayBesideTheirOwn) {
  const Json list{{{"name", "default"}, {"template", kChatMl}}, {{"name", "tool_use"}, {"template", "T"}}};
  const std::string tokenizer = Json{{"chat_template", list}}.dump();
  write_text(at("tokenizer_config.json"), tokenizer);
  write_model_format(directory_.path(), {.jinja = kChatMl, .jinja_for_tools = "T"});
  EXPECT_EQ(text_of(at("tokenizer_config.json")), tokenizer);
  EXPECT_FALSE(fs::exists(at("chat_template.jinja")));
  write_model_format(directory_.path(), {.jinja = kChatMl, .jinja_for_tools = "U"});
  EXPECT_EQ(text_of(at("additional_chat_templates/tool_use.jinja")), "U");
  EXPECT_EQ(json_of(at("tokenizer_config.json"))["chat_template"], kChatMl);
}

TEST_F(PromptFormatFiles, AModelThatSaysSoAlreadyStaysAsItIs) {
  const std::string config = R"({"eos_token_id":2})", generation = R"({"eos_token_id":[2,4]})";
  const std::string tokenizer = Json{{"chat_template", kChatMl}}.dump();
  write_text(at("config.json"), config);
  write_text(at("generation_config.json"), generation);
  write_text(at("tokenizer_config.json"), tokenizer);
  write_model_format(directory_.path(), {.jinja = kChatMl, .end_tokens = {4, 2}});
  write_model_format(directory_.path(), {});
  EXPECT_EQ(text_of(at("config.json")), config);
  EXPECT_EQ(text_of(at("generation_config.json")), generation);
  EXPECT_EQ(text_of(at("tokenizer_config.json")), tokenizer);
  EXPECT_FALSE(fs::exists(at("chat_template.jinja")));
}

TEST(SnugFile, OfANewerProgramOrAnotherKindIsRefused) {
  const auto parse = [](const char* json) {
    return [=] {
      AdapterFormat format;
      parse_snug_file(json, "snug.json", format);
    };
  };
  EXPECT_TRUE(
      fails_with<UserError>(parse(R"({"format": 2})"), "key 'format': found 2, expected 1: it was made by a new"));
  EXPECT_TRUE(fails_with<UserError>(parse("{}"), "key 'format' is missing"));
  EXPECT_TRUE(fails_with<UserError>(parse(R"({"format": 1, "template": 3})"), "key 'template': found 3"));
}

}  // namespace
}  // namespace snug
