#include "format/modelfile.h"

#include <gtest/gtest.h>

#include "base/file.h"

namespace snug {
namespace {

std::string template_of(const std::string& program, std::string_view bos = "") {
  const auto found = ollama_template(ChatTemplate::choose("auto", program, {.bos = "<s>", .eos = "</s>"}), bos);
  return found ? found->text : "none";
}

OllamaTemplate::System system_of(const std::string& program) {
  return ollama_template(ChatTemplate::choose("auto", program, {.bos = "<s>", .eos = "</s>"}), "").value().system;
}

constexpr std::string_view kMessages =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

// By hand, of the language of Go's templates.
TEST(OllamaTemplate, RendersAsTheModelsOwn) {
  EXPECT_EQ(template_of(std::string(kMessages)),
            "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ else }}{{ end }}"
            "{{ range .Messages }}{{ if eq .Role \"user\" }}<|im_start|>user\n{{ .Content }}<|im_end|>\n"
            "<|im_start|>assistant\n{{ else if eq .Role \"assistant\" }}{{ .Content }}<|im_end|>\n{{ end }}{{ end }}");
}

TEST(OllamaTemplate, HasTheDefaultSystemTextWhereThereIsNoOther) {
  const std::string text =
      template_of("{% if messages[0].role != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}" +
                  std::string(kMessages));
  EXPECT_EQ(text.substr(0, text.find("{{ range")),
            "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n"
            "{{ else }}<|im_start|>system\nBe kind.<|im_end|>\n{{ end }}");
}

TEST(OllamaTemplate, LeavesOutATokenThatIsPutBeforeATextAnyway) {
  const std::string program = "{{ bos_token }}" + std::string(kMessages);
  EXPECT_EQ(template_of(program, "<s>"), template_of(std::string(kMessages)));
  EXPECT_EQ(template_of(program).substr(0, 37), "{{ if .System }}<s><|im_start|>system");
}

TEST(OllamaTemplate, OfATemplateThatRefusesSystemTextsHasNone) {
  EXPECT_EQ(
      template_of("{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
                  "{% for m in messages %}{% if m.role == 'user' %}[U]{{ m.content }}[/U]{% else %}{{ m.content }}"
                  "</s>{% endif %}{% endfor %}"),
      "{{ range .Messages }}{{ if eq .Role \"user\" }}[U]{{ .Content }}[/U]"
      "{{ else if eq .Role \"assistant\" }}{{ .Content }}</s>{{ end }}{{ end }}");
}

TEST(OllamaTemplate, SaysWhereASystemTextHasNoPlace) {
  using System = OllamaTemplate::System;
  EXPECT_EQ(system_of(std::string(kMessages)), System::Taken);
  EXPECT_EQ(
      system_of("{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + std::string(kMessages)),
      System::Refused);
  // It goes into the last question, as Mistral's templates have it.
  const std::string last =
      "{% for m in messages %}{% if m.role == 'user' %}[U]{% if loop.last and messages[0].role == 'system' %}"
      "{{ messages[0].content + '\\n\\n' }}{% endif %}{{ m.content }}[/U]{% elif m.role == 'assistant' %}"
      "{{ m.content }}</s>{% endif %}{% endfor %}";
  EXPECT_EQ(system_of(last), System::LeftOut);
  EXPECT_EQ(template_of(last),
            "{{ range .Messages }}{{ if eq .Role \"user\" }}[U]{{ .Content }}[/U]"
            "{{ else if eq .Role \"assistant\" }}{{ .Content }}</s>{{ end }}{{ end }}");
}

// The first question is rendered otherwise than the later ones; braces have a meaning of their own in Go's language.
TEST(OllamaTemplate, IsNoneWhereTurnsDependOnTheirPlace) {
  EXPECT_EQ(
      template_of("{% for m in messages %}{{ '[FIRST]' if loop.first }}<|{{ m.role }}|>{{ m.content }}<|end|>"
                  "{{ '[' ~ loop.index ~ ']' }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"),
      "none");
  EXPECT_EQ(template_of("{% for m in messages %}<|{{ m.role }}|>{{ '{{' }}{{ m.content }}<|end|>{% endfor %}"
                        "{% if add_generation_prompt %}<|assistant|>{{ '{{' }}{% endif %}"),
            "none");
}

TEST(Modelfile, QuotesWhatItHolds) {
  EXPECT_EQ(write_modelfile({.from = "./model.gguf", .chat_template = "{{ .Prompt }}\n", .stops = {"</s>", "a\"b"}}),
            "FROM ./model.gguf\nTEMPLATE \"\"\"{{ .Prompt }}\n\"\"\"\nPARAMETER stop \"</s>\"\n"
            "PARAMETER stop \"\"\"a\"b\"\"\"\n");
  EXPECT_EQ(write_modelfile({.from = "/models/base", .adapter = "./adapter.gguf"}),
            "FROM /models/base\nADAPTER ./adapter.gguf\n");
}

}  // namespace
}  // namespace snug
