#include "format/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
        EXPECT_TRUE(fails_with<UserError>([&] { chat.render(messages, for_generation); }, "in turn"));
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
  EXPECT_TRUE(fails_with<UserError>([&] { own("llama2").render(turns, false); }, "carry loss unequally"));
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
  const std::string dated = text_of(ChatTemplate::choose("llama3", fixture("llama3.1.jinja"), {}).render(kTurn, false));
  EXPECT_NE(dated.find("Today Date: 26 Jul 2024"), std::string::npos);
  EXPECT_EQ(text_of(ChatTemplate::choose("llama3", "", {}).render(kTurn, false)).find("Date"), std::string::npos);
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
  EXPECT_TRUE(fails_with<UserError>(choose("auto", "{{ messages[0] }}"), "of no family known here"));
  const auto changed = [](const std::string& model, std::string_view from, std::string_view to) {
    std::string program = fixture(model + ".jinja");
    const size_t at = program.find(from);
    EXPECT_NE(at, std::string::npos) << model << ": " << from;
    return at == std::string::npos ? program : program.replace(at, from.size(), to);
  };
  // Programs that look like a family's and render something else.
  for (const std::string& program : {
           changed("llama3.1", "<|start_header_id|>system", "<|start_header_id|>Metadata"),
           changed("llama3.1", "December 2023", "January 2025"),
           changed("llama3", "| trim", ""),
           changed("llama3", "{% set loop_messages = messages %}", "{{ '<|start_header_id|>system' }}"),
           changed("qwen2.5", "message.content + '<|im_end|>'", "message.content | trim + '<|im_end|>'"),
           changed("qwen2", "{% endfor %}", "{% endfor %}{% if enable_thinking %}{% endif %}"),
           changed("llama2", "system_message = false", "system_message = 'Be nice.'"),
           changed("mistral", "+ eos_token}}", "+ eos_token + ' '}}"),
           changed("chatml", "{% endfor %}", "{% endfor %}{{ eos_token }}"),
           changed("chatml", "{% endfor %}", "{% endfor %}{% if eos_token %}{{ eos_token }}{% endif %}"),
           changed("chatml", "{% endfor %}", "\n{% endfor %}"),
           changed("chatml", "{% endfor %}", " {%+ endfor %}"),
           changed("chatml", "{% endfor %}", "Bye{% endfor %}"),
           changed("chatml", "{% endfor %}", "{% endfor +%}\n"),
           changed("chatml", "in messages", "in messages[1:]"),
           changed("chatml", "if add_generation_prompt", "if true"),
           changed("smollm2", "if loop.first", "if loop.last"),
           changed("smollm2", "You are", "\\tYou are"),
           changed("qwen2.5", "{%- endfor %}", "{{ '' + eos_token }}{%- endfor %}"),
           changed("llama3", "{% if add_generation_prompt %}", ""),
           changed("llama3.1", "{{- \"<|eot_id|>\" }}", "{{ \"<|eot_id|>\" }}"),
           changed("llama2", "loop.index0 == 0 and", ""),
       }) {
    EXPECT_TRUE(fails_with<UserError>([&] { ChatTemplate::choose("auto", program, {}); }, "of no family known here"));
  }
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
  EXPECT_EQ(text_of(ChatTemplate::choose("llama3", "", {}).render(broken, false)),
            "<|start_header_id|>user<|end_header_id|>\n\n \xe2\x80<|eot_id|>");
}

TEST(ChatTemplate, ReadsAnyBytesAsATemplate) {
  for (const std::string& program :
       {std::string("{#"), std::string("{{'"), std::string("{{'\\"), std::string("{{-"), std::string("{"),
        std::string("'<|im_start|>system\\n"), std::string(1000, '{'), std::string("{{ '\\n", 5)}) {
    EXPECT_THROW(ChatTemplate::choose("auto", program, {}), UserError) << program;
  }
  const std::string whole = fixture("qwen2.5.jinja");
  for (size_t bytes = 0; bytes + 60 < whole.size(); ++bytes) {
    EXPECT_THROW(ChatTemplate::choose("auto", whole.substr(0, bytes), {}), UserError);
  }
}

}  // namespace
}  // namespace snug
