#include "format/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "expect_error.h"
#include "format/json.h"

namespace snug {
namespace {

std::string fixture(const std::string& file) {
  return read_text(std::string(SNUG_FIXTURES "/templates/") + file, 1 << 20);
}

std::string text_of(const std::vector<Piece>& pieces) {
  std::string text;
  for (const Piece& piece : pieces) text += piece.text;
  return text;
}

ChatRole role_of(const std::string& name) {
  return name == "system" ? ChatRole::System : name == "user" ? ChatRole::User : ChatRole::Assistant;
}

ChatTemplate own(const std::string& name, SpecialTexts special = {"<s>", "</s>"}) {
  return ChatTemplate::choose("auto", fixture(name + ".jinja"), std::move(special));
}

const std::vector<Message> kTurn = {{ChatRole::User, "Hello"}, {ChatRole::Assistant, "Hi there"}};

TEST(ChatTemplate, RendersAsTransformersDoes) {
  const Json cases = parse_json(fixture("renderings.json"), "renderings.json");
  ASSERT_GT(cases.size(), 150u);
  for (const Json& entry : cases) {
    SCOPED_TRACE(entry["template"].get<std::string>() + ", " + entry["conversation"].get<std::string>());
    const ChatTemplate chat = own(entry["template"], {entry["bos"], entry["eos"]});
    std::vector<Message> messages;
    for (const Json& m : entry["messages"]) messages.push_back({role_of(m["role"]), m["content"]});
    for (const bool for_generation : {false, true}) {
      const Json& expected = entry[for_generation ? "prompt" : "text"];
      if (expected.is_null()) {
        EXPECT_TRUE(fails_with<UserError>([&] { chat.render(messages, for_generation); }, "it refuses"));
      } else {
        EXPECT_EQ(text_of(chat.render(messages, for_generation)), expected.get<std::string>());
      }
    }
  }
}

TEST(ChatTemplate, TakesTheLossOnRepliesAndTheirEndOfTurn) {
  using Pieces = std::vector<Piece>;
  EXPECT_EQ(
      own("chatml").render(kTurn, false),
      (Pieces{{"<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"}, {"Hi there<|im_end|>", true}, {"\n"}}));
  EXPECT_EQ(own("llama3").render(kTurn, true), (Pieces{{"<s><|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>"
                                                        "<|start_header_id|>assistant<|end_header_id|>\n\n"},
                                                       {"Hi there<|eot_id|>", true},
                                                       {"<|start_header_id|>assistant<|end_header_id|>\n\n"}}));
  EXPECT_EQ(own("llama2").render(kTurn, false), (Pieces{{"<s>[INST] Hello [/INST]"}, {" Hi there </s>", true}}));
  EXPECT_EQ(own("mistral").render(kTurn, false), (Pieces{{"<s>[INST] Hello [/INST]"}, {"Hi there</s>", true}}));
  EXPECT_EQ(ChatTemplate::choose("none", "", {"<s>", "</s>"}).render(kTurn, false),
            (Pieces{{"Hello"}, {"Hi there</s>", true}}));
}

TEST(ChatTemplate, AMessageMaySayWhetherItCarriesLoss) {
  using Pieces = std::vector<Piece>;
  const std::vector<Message> turns = {{ChatRole::System, "s", false},
                                      {ChatRole::User, "q", true},
                                      {ChatRole::Assistant, "a", false},
                                      {ChatRole::User, "r"},
                                      {ChatRole::Assistant, "b", true}};
  EXPECT_EQ(own("chatml").render(turns, false), (Pieces{{"<|im_start|>system\n"},
                                                        {"s<|im_end|>", false, true},
                                                        {"\n<|im_start|>user\n"},
                                                        {"q<|im_end|>", true},
                                                        {"\n<|im_start|>assistant\n"},
                                                        {"a<|im_end|>", false, true},
                                                        {"\n<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n"},
                                                        {"b<|im_end|>", true},
                                                        {"\n"}}));
  for (const char* name : {"llama3", "llama3.1", "mistral", "llama2"}) {
    const size_t first = std::string_view(name).starts_with("llama3") ? 0 : 1;
    const std::vector<Piece> pieces = own(name).render(std::span(turns).subspan(first), false);
    std::string loss, masked;
    for (const Piece& piece : pieces) (piece.loss ? loss : masked) += piece.loss || piece.masked ? piece.text : "";
    EXPECT_THAT(loss, testing::MatchesRegex(".*q.*b.*")) << name;
    EXPECT_THAT(masked, testing::MatchesRegex(first == 0 ? ".*s.*a.*" : ".*a.*")) << name;
    EXPECT_EQ(masked.find('b'), std::string::npos) << name;
  }
  // A system text within the first turn is a piece of its own.
  EXPECT_EQ(own("llama2").render(turns, false)[1], (Piece{"s", false, true}));
}

TEST(ChatTemplate, FindsTheModelsDefaultSystemText) {
  EXPECT_EQ(own("smollm2").default_system(), "You are a helpful AI assistant named SmolLM, trained by Hugging Face");
  EXPECT_EQ(own("qwen2").default_system(), "You are a helpful assistant.");
  EXPECT_EQ(own("qwen2.5").default_system(), "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.");
  EXPECT_EQ(own("chatml").default_system(), "");
  const std::string quoted =
      R"({%- for message in messages %}{%- if loop.first and messages[0].role != "system" %})"
      R"({{- "<|im_start|>system\nYou're \"it\".\n<|im_end|>\n" }}{%- endif %})"
      R"({{- "<|im_start|>" + message["role"] + "\n" + message["content"] + "<|im_end|>\n" }}{%- endfor %})"
      R"({%- if add_generation_prompt %}{{- "<|im_start|>assistant\n" }}{%- endif %})";
  EXPECT_EQ(ChatTemplate::choose("auto", quoted, {}).default_system(), "You're \"it\".\n");
}

TEST(ChatTemplate, ANameTakesItsDetailsFromTheModelsOwnTemplateOfThatFamily) {
  const auto default_system = [](const std::string& name, const std::string& model) {
    return ChatTemplate::choose(name, model.empty() ? "" : fixture(model + ".jinja"), {}).default_system();
  };
  EXPECT_EQ(default_system("chatml", "smollm2"), own("smollm2").default_system());
  EXPECT_EQ(default_system("chatml", "llama3"), "");
  EXPECT_EQ(default_system("chatml", ""), "");
  EXPECT_EQ(default_system("qwen", ""), "You are a helpful assistant.");
  EXPECT_EQ(default_system("qwen", "qwen2.5"), own("qwen2.5").default_system());
  const std::string dated =
      text_of(ChatTemplate::choose("llama3", fixture("llama3.1.jinja"), {"<s>", ""}).render(kTurn, false));
  EXPECT_NE(dated.find("Today Date: 26 Jul 2024"), std::string::npos);
  EXPECT_EQ(text_of(ChatTemplate::choose("llama3", "", {"<s>", ""}).render(kTurn, false)).find("Date"),
            std::string::npos);
}

// What other programs are given renders as what a model was trained with, and is recognised as that.
TEST(ChatTemplate, TemplatesThatAreNamedAreWrittenAsJinja) {
  for (const std::string name : {"chatml", "qwen", "llama3", "llama2", "mistral"}) {
    SCOPED_TRACE(name);
    const ChatTemplate named = ChatTemplate::choose(name, "", {"<s>", "</s>"});
    EXPECT_EQ(named.jinja(), fixture("named/" + name + ".jinja"));
    EXPECT_TRUE(named.renders_as(ChatTemplate::choose("auto", named.jinja(), {"<s>", "</s>"})));
  }
  EXPECT_EQ(ChatTemplate::choose("none", "", {}).jinja(), "");
  EXPECT_EQ(ChatTemplate::choose("chatml", fixture("smollm2.jinja"), {}).jinja(), fixture("smollm2.jinja"));
  EXPECT_EQ(ChatTemplate::choose("chatml", fixture("llama3.jinja"), {}).jinja(), fixture("named/chatml.jinja"));
  const ChatTemplate qwen = ChatTemplate::choose("qwen", "{{ bos_token }}" + fixture("chatml.jinja"), {"<s>", ""});
  EXPECT_TRUE(text_of(qwen.render(kTurn, false)).starts_with("<s><|im_start|>system\nYou are a helpful assistant."));
  EXPECT_TRUE(qwen.renders_as(ChatTemplate::choose("auto", qwen.jinja(), {"<s>", ""})));
}

// Prompts may go on with something that replies in a conversation do not have, such as a <think>. What a prompt has up
// to there is never learnt, in the last turn and in others.
TEST(ChatTemplate, WhatThePromptHasCarriesNoLoss) {
  const std::string program =
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
      "{% if m.role == 'assistant' and loop.last %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
      "{{ m.content + '<|im_end|>\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}";
  const ChatTemplate chat = ChatTemplate::choose("auto", program, {"", "<|im_end|>"});
  const std::vector<Message> messages = {
      {ChatRole::User, "U1"}, {ChatRole::Assistant, "A1"}, {ChatRole::User, "U2"}, {ChatRole::Assistant, "A2"}};
  EXPECT_EQ(chat.render(messages, false),
            (std::vector<Piece>{{"<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\n"},
                                {"A1<|im_end|>", true},
                                {"\n<|im_start|>user\nU2<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"},
                                {"A2<|im_end|>", true},
                                {"\n"}}));
  // White space that no prompt has is learnt, as it is what a model writes first.
  EXPECT_EQ(ChatTemplate::choose("auto",
                                 "{% for m in messages %}<{{ m.role }}>{{ ' ' + m.content }}</>{% endfor %}"
                                 "{% if add_generation_prompt %}<assistant>{% endif %}",
                                 {"", "</>"})
                .render({{{ChatRole::User, "U"}, {ChatRole::Assistant, "A"}}}, false)[1],
            (Piece{" A</>", true}));
}

// A template that takes too long for one short conversation is not tried on the next ones.
TEST(ChatTemplate, ATemplateThatTakesTooLongIsRefusedAtOnce) {
  const std::string turns = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}";
  for (const std::string slow :
       {"{% set ns = namespace(x='a'*1000*1000, y='a'*1000*1000) %}{% for i in range(1000) %}{% for j in range(1000) %}"
        "{% if ns.x == ns.y %}{% endif %}{% endfor %}{% endfor %}",
        "{{ '<|' * 1000 * 1000 }}|>"}) {
    const std::clock_t begin = std::clock();  // of this process alone, however busy the machine is
    try {
      ChatTemplate::choose("auto", slow + turns, {"<s>", "</s>"});
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("line 1: found a template that takes too many steps"));
    }
    EXPECT_LT((std::clock() - begin) / CLOCKS_PER_SEC, 10) << slow;
  }
}

TEST(ChatTemplate, SaysWhichMarkersATokenizerLacks) {
  const auto lacking = [](const ChatTemplate& chat) {
    return chat.lacking([](std::string_view text) { return text == "<|im_end|>"; });
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(lacking(own("chatml")), Texts{"'<|im_start|>'"});
  EXPECT_EQ(lacking(own("llama3.1", {})), (Texts{"'<|start_header_id|>'", "'<|end_header_id|>'", "'<|eot_id|>'"}));
  EXPECT_EQ(lacking(own("llama2", {})), (Texts{"a bos_token", "an eos_token"}));
  EXPECT_EQ(lacking(own("mistral", {})), Texts{"an eos_token"});
  EXPECT_EQ(lacking(own("llama2")), Texts{});
}

TEST(ChatTemplate, SaysWhatEndsAReply) {
  EXPECT_EQ(own("qwen2").end_of_turn(), "<|im_end|>");
  EXPECT_EQ(own("llama3.2").end_of_turn(), "<|eot_id|>");
  EXPECT_EQ(own("llama2").end_of_turn(), "</s>");
}

TEST(ChatTemplate, RefusesWhatItDoesNotKnow) {
  const auto choose = [](std::string_view name, std::string_view program) {
    return [=] { ChatTemplate::choose(name, program, {}); };
  };
  EXPECT_TRUE(fails_with<UserError>(choose("chatlm", ""), "'chatlm', expected one of auto, chatml, llama2, llama3"));
  EXPECT_TRUE(fails_with<UserError>(choose("auto", ""), "has no chat template; name one with --template"));
  EXPECT_TRUE(fails_with<UserError>(choose("auto", "{{ messages[0] }}"),
                                    "the model's chat template leaves out what the assistant says"));
  EXPECT_TRUE(fails_with<UserError>(choose("auto", "a\n{% include 'b' %}"),
                                    "the model's chat template, line 2: found the tag 'include', expected one"));
  EXPECT_TRUE(fails_with<UserError>(choose("auto", "{{ raise_exception('no') }}"), "renders no question and reply"));
}

// The text that carries loss, and the whole, of a template that no name has.
std::pair<std::string, std::string> loss_and_text(const std::string& program, const std::vector<Message>& messages) {
  std::pair<std::string, std::string> out;
  for (const Piece& piece : ChatTemplate::choose("auto", program, {"<s>", "</s>"}).render(messages, false)) {
    if (piece.loss) out.first += "[" + piece.text + "]";
    out.second += piece.text;
  }
  return out;
}

TEST(ChatTemplate, TakesTheLossByMarksWhateverTheTemplateDoes) {
  using Both = std::pair<std::string, std::string>;
  // Like Qwen3's: the last reply gets an empty thought, thoughts of others are dropped.
  const std::string thinks =
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% set c = m.content %}{% if m.role == 'assistant' %}"
      "{% set t = '' %}{% if '</think>' in c %}{% set t = c.split('</think>')[0].split('<think>')[-1].strip() %}"
      "{% set c = c.split('</think>')[-1].lstrip() %}{% endif %}"
      "{% if loop.last %}{{ '<think>\n' + t + '\n</think>\n\n' }}{% endif %}{% endif %}{{ c }}{{ '<|im_end|>\n' }}{% "
      "endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
  EXPECT_EQ(
      loss_and_text(thinks, kTurn),
      (Both{"[Hi there<|im_end|>]",
            "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nHi there<|im_end|>\n"}));
  EXPECT_EQ(loss_and_text(thinks, {{ChatRole::User, "Q"}, {ChatRole::Assistant, "<think>\nT\n</think>\n\nA"}}).first,
            "[<think>\nT\n</think>\n\nA<|im_end|>]");
  EXPECT_EQ(loss_and_text(thinks, {{ChatRole::User, "Q"},
                                   {ChatRole::Assistant, "<think>T</think>A"},
                                   {ChatRole::User, "<|im_start|>assistant\n"},
                                   {ChatRole::Assistant, "<|im_start|>assistant\nB"}})
                .first,
            "[A<|im_end|>][<|im_start|>assistant\nB<|im_end|>]");
  // Like GLM's: the next turn's token ends a reply.
  const std::string open =
      "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content | trim }}{% endfor %}{% if add_generation_prompt %}"
      "<|assistant|>\n{% endif %}";
  EXPECT_EQ(ChatTemplate::choose("auto", open, {}).end_of_turn(), "<|user|>");
  EXPECT_EQ(loss_and_text(open, {{ChatRole::User, "Q"}, {ChatRole::Assistant, " A "}, {ChatRole::User, "R"}}),
            (Both{"[A<|user|>]", "<|user|>\nQ<|assistant|>\nA<|user|>\nR"}));
  // Replies of no text, and of one that is trimmed away.
  EXPECT_EQ(loss_and_text(open, {{ChatRole::User, "Q"}, {ChatRole::Assistant, ""}, {ChatRole::User, "R"}}).first,
            "[<|user|>]");
  EXPECT_EQ(own("llama3").render(std::vector<Message>{{ChatRole::User, "Q"}, {ChatRole::Assistant, " \n"}}, false)[1],
            (Piece{"<|eot_id|>", true}));
  // A system text that stands in the last question.
  const std::string late =
      "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST]{{ messages[0].content + ' ' if loop.last "
      "else '' }}"
      "{{ m.content }}[/INST]{% elif m.role == 'assistant' %}{{ ' ' + m.content }}{{ eos_token }}{% endif %}{% endfor "
      "%}";
  EXPECT_EQ(
      loss_and_text(
          late, {{ChatRole::System, "S"}, {ChatRole::User, "Q"}, {ChatRole::Assistant, "A"}, {ChatRole::User, "R"}}),
      (Both{"[ A</s>]", "<s>[INST]Q[/INST] A</s>[INST]S R[/INST]"}));
  EXPECT_TRUE(fails_with<UserError>(
      [&] {
        loss_and_text(
            "{% for m in messages %}{{ m.content }}{% endfor %}{{ messages[1].content }}{{ messages[0].content }}{{ "
            "messages[1].content }}",
            kTurn);
      },
      "found message 2 repeated or within another"));
  // A reply that the template leaves out, changes or repeats.
  const std::string last =
      "{% for m in messages %}{% if loop.last or loop.index < 3 %}{{ m.role }}: {{ m.content | upper }};\n{% endif "
      "%}{% endfor %}";
  EXPECT_EQ(loss_and_text(last, kTurn).first, "[ HI THERE;]");
  EXPECT_TRUE(fails_with<UserError>(
      [&] {
        loss_and_text(
            last,
            {{ChatRole::User, "Q"}, {ChatRole::Assistant, "A"}, {ChatRole::Assistant, "B"}, {ChatRole::User, "R"}});
      },
      "key 'content' of message 3: found a text that carries loss, which the chat template leaves out"));
}

TEST(ChatTemplate, KnowsAProgramHoweverItIsLaidOut) {
  const std::string message = "{{ '<|im_start|>' + message.role\n+ \"\\n\" + message['content'] + '<|im_end|>\n' }}";
  const std::string start = "{{\"<|im_start|>assistant\\n\"-}}";
  for (const std::string& program : {
           "{# Ours #}\n{%- for message in messages -%}\n  " + message +
               "\n{%- endfor %}\n\n{%- if add_generation_prompt %}" + start + " \n{% endif %}\n",
           "\n{%- for message in messages %}\r\n" + message + "{% endfor %}\r\n  {% if add_generation_prompt %}\r\n" +
               start + "\t{# Now reply #}\n  {% endif %}\n",
       }) {
    EXPECT_EQ(ChatTemplate::choose("auto", program, {}).render(kTurn, true), own("chatml").render(kTurn, true));
  }
  const std::string bos =
      "{{ bos_token }}{% if not add_generation_prompt is defined %}"
      "{% set add_generation_prompt = false %}{% endif %}" +
      fixture("smollm2.jinja");
  EXPECT_EQ(text_of(ChatTemplate::choose("auto", bos, {"<s>", ""}).render(kTurn, true)),
            "<s>" + text_of(own("smollm2").render(kTurn, true)));
}

TEST(ChatTemplate, LeavesTextThatIsNotUtf8ToTheTokenizer) {
  const std::vector<Message> broken = {{ChatRole::User, " \xe2\x80"}};
  EXPECT_EQ(text_of(ChatTemplate::choose("llama3", "", {"<s>", ""}).render(broken, false)),
            "<s><|start_header_id|>user<|end_header_id|>\n\n\xe2\x80<|eot_id|>");
}

TEST(ChatTemplate, ReadsAnyBytesAsATemplate) {
  for (const std::string& program :
       {std::string("{#"), std::string("{{'"), std::string("{{'\\"), std::string("{{-"), std::string("{"),
        std::string("'<|im_start|>system\\n"), std::string(1000, '{'), std::string("{{ '\\n", 5)}) {
    EXPECT_THROW(ChatTemplate::choose("auto", program, {}), UserError) << program;
  }
  const std::string whole = fixture("qwen2.5.jinja");
  for (size_t bytes = 0; bytes + 60 < whole.size(); ++bytes) {
    try {
      ChatTemplate::choose("auto", whole.substr(0, bytes), {}).render(kTurn, true);
    } catch (const UserError&) {
    }
  }
}

}  // namespace
}  // namespace snug
