// 'snug export' as a process.
#include "cli_fixture.h"
#include "format/gguf.h"

namespace snug {
namespace {

class Export : public Cli {
 protected:
  void SetUp() override {
    ASSERT_EQ(run({"import", fs::path(SNUG_FIXTURES) / "gguf/smollm.gguf", "--out", "m"}).code, 0);
  }
  void expect_refused(const Words& words, const std::string& part) const {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(part));
    EXPECT_FALSE(fs::exists(at("out")));
    EXPECT_FALSE(fs::exists(at("out.partial")));
  }
};

TEST_F(Export, WritesAFileAndAModelfileAndNothingElse) {
  const Outcome outcome = run({"export", "--model", "m", "--out", "out"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith("out/model.gguf: "));
  EXPECT_THAT(outcome.err, HasSubstr("note: tensors: 3 F32, 8 Q8_0\n"));
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(at("out"))) names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"Modelfile", "model.gguf"}));
  EXPECT_THAT(text_of(at("out/Modelfile")), StartsWith("FROM ./model.gguf\n"));
  EXPECT_THAT(text_of(at("out/Modelfile")), HasSubstr("PARAMETER stop \"<|eos|>\"\n"));
  EXPECT_EQ(read_gguf({at("out/model.gguf")}).string("general.name"), "m");
}

TEST_F(Export, SaysWhyAModelfileHasNoTemplateAndWhatItsTemplateLeavesOut) {
  const auto said = [&](const std::string& program) {
    put(at("m/chat_template.jinja"), program);
    const Outcome outcome = run({"export", "--model", "m", "--out", "out", "--overwrite"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(
      said("{{ functions | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}"),
      HasSubstr("note: Modelfile: without a template, as the model's chat template renders no question and reply"));
  EXPECT_THAT(
      said("{{ tools | first | tojson }}{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"),
      HasSubstr("note: Modelfile: the chat template has no form in Ollama's language"));
  EXPECT_THAT(said("{% for m in messages %}{% if m.role == 'user' %}[{{ messages[0].content if loop.last and "
                   "messages[0].role == 'system' }}{{ m.content }}]"
                   "{% elif m.role == 'assistant' %}{{ m.content }};{% endif %}{% endfor %}"),
              HasSubstr("note: Modelfile: its template leaves out system texts"));
}

TEST_F(Export, AModelOfAnUnknownTypeIsWrittenAsTheFamilyThatIsNamed) {
  ASSERT_EQ(run({"export", "--model", "m", "--out", "known"}).code, 0);
  auto config = nlohmann::json::parse(text_of(at("m/config.json")));
  const std::string family = config["model_type"];
  config["model_type"] = "vicuna_next";
  put(at("m/config.json"), config.dump());
  expect_refused({"export", "--model", "m", "--out", "out"}, "'model_type': found \"vicuna_next\", expected");
  const Outcome outcome = run({"export", "--model", "m", "--family", family, "--out", "out"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("ASSUMED by --family: "));
  EXPECT_EQ(text_of(at("out/model.gguf")), text_of(at("known/model.gguf")));
}

TEST_F(Export, OverwritesWhatAnExportWroteAlone) {
  const Words words{"export", "--model", "m", "--out", "out", "--format", "BF16", "--json"};
  ASSERT_EQ(run(words).code, 0);
  EXPECT_EQ(run(words).code, 2);
  const Outcome again = run(with(words, {"--overwrite"}));
  ASSERT_EQ(again.code, 0) << again.err;
  const auto json = nlohmann::json::parse(again.out);
  EXPECT_EQ(json["file"], "out/model.gguf");
  EXPECT_EQ(json["bytes"], fs::file_size(at("out/model.gguf")));
  put(at("out/thesis.txt"), "mine");
  const Outcome kept = run(with(words, {"--overwrite"}));
  EXPECT_EQ(kept.code, 2);
  EXPECT_THAT(kept.err, HasSubstr("holds 'thesis.txt', which no export wrote"));
}

// What merging writes, exported, is what exporting base and adapter writes.
TEST_F(Export, OfModelAndAdapterIsOfTheMergedModel) {
  put(at("a.txt"), "ab abc c b a ab abc\n");
  const Outcome trained =
      run({"train", "--model", "m", "--data", "a.txt", "--out", "run", "--max-steps", "3", "--sequence-length", "16",
           "--batch-size", "1", "--learning-rate", "1e-1", "--threads", "1", "--lora-rank", "2"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  ASSERT_EQ(run({"merge", "--model", "m", "--adapter", "run/adapter", "--out", "n/m"}).code, 0);
  ASSERT_EQ(run({"export", "--model", "n/m", "--out", "apart", "--format", "f16"}).code, 0);
  ASSERT_EQ(run({"export", "--model", "m", "--adapter", "run/adapter", "--out", "out", "--format", "f16"}).code, 0);
  EXPECT_EQ(text_of(at("out/model.gguf")), text_of(at("apart/model.gguf")));
  EXPECT_EQ(text_of(at("out/Modelfile")), text_of(at("apart/Modelfile")));
  ASSERT_EQ(run({"export", "--model", "m", "--out", "base", "--format", "f16"}).code, 0);
  EXPECT_NE(text_of(at("out/model.gguf")), text_of(at("base/model.gguf")));

  const Outcome alone =
      run({"export", "--model", "m", "--adapter", "run/adapter", "--out", "lora", "--format", "adapter"});
  ASSERT_EQ(alone.code, 0) << alone.err;
  EXPECT_THAT(alone.err, HasSubstr("note: adapters of 7 linears in F32"));
  EXPECT_THAT(text_of(at("lora/Modelfile")),
              StartsWith("FROM " + fs::canonical(at("m")).string() + "\nADAPTER ./adapter.gguf\n"));
}

TEST_F(Export, RefusesByName) {
  expect_refused({"export", "--model", "m"}, "--out is required");
  expect_refused({"export", "--model", "m", "--out", "out", "--format", "q2_k"},
                 "--format: found 'q2_k', expected f16, bf16, q8_0, q4_k_m or adapter");
  expect_refused({"export", "--model", "m", "--out", "out", "--format", "adapter"}, "--adapter is required");
  expect_refused({"export", "--model", "m", "--out", "out", "--base-format", "int8"},
                 "base_format: found it beside a model without an adapter");
  fs::remove(at("m/tokenizer.json"));
  expect_refused({"export", "--model", "m", "--out", "out"}, "m: ");
}

}  // namespace
}  // namespace snug
