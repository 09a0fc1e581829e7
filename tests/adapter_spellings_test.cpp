// Adapters of models of texts and images under the names that they had before transformers 4.52, against the losses
// that PEFT gets (tests/fixtures/README.md).
#include <gtest/gtest.h>

#include <cstring>

#include "api/inputs.h"
#include "api/job.h"
#include "api/rules.h"
#include "base/file.h"
#include "expect_error.h"
#include "format/peft_tensors.h"
#include "temp_directory.h"
#include "tiny_model.h"

namespace snug {
namespace {

const std::filesystem::path kFixtures = SNUG_FIXTURES, kSpellings = kFixtures / "spellings";

// What names begin with, and with what they begin instead.
using Prefixes = std::vector<std::pair<std::string, std::string>>;
const Prefixes kLlava{{"model.language_model.", "language_model.model."}};
const Prefixes kQwen{{"model.language_model.", "model."}, {"model.visual.", "visual."}};

struct Stored {
  const char* name;
  Prefixes older;
};
const std::vector<Stored>& stored() {
  static const std::vector<Stored> kStored{
      {"gemma3", kLlava}, {"mistral3", kLlava}, {"qwen2_vl", kQwen}, {"qwen2_5_vl", kQwen}};
  return kStored;
}

// A stored adapter under other names.
class Respelt {
 public:
  Respelt(const std::string& name, const Prefixes& prefixes) : name_(name), expected_(read(name)) {
    std::filesystem::copy_file(kSpellings / name / "adapter_config.json", at("adapter_config.json"));
    const std::string bytes = read_text(kSpellings / name / "adapter_model.safetensors", 1 << 24);
    uint64_t size = 0;
    std::memcpy(&size, bytes.data(), sizeof size);
    const auto header = nlohmann::json::parse(bytes.substr(8, size));
    nlohmann::json renamed;
    for (const auto& [tensor, entry] : header.items()) renamed[respelt(tensor, prefixes)] = entry;
    const std::string text = renamed.dump();
    const uint64_t length = text.size();
    write_text(at("adapter_model.safetensors"),
               std::string(reinterpret_cast<const char*>(&length), 8) + text + bytes.substr(8 + size));
  }

  Respelt& set(const char* key, const nlohmann::json& value) {
    auto config = read_json(at("adapter_config.json"));
    config[key] = value;
    write_text(at("adapter_config.json"), config.dump());
    return *this;
  }

  JobConfig options() const {
    JobConfig options;
    options.model = (kFixtures / expected_["base"].get<std::string>()).string();
    options.adapter = directory_.path().string();
    options.device = "cpu";
    options.compute = "fp32";
    options.base_format = "fp32";
    options.sequence_length = 32;
    find_inputs(options);
    return options;
  }

  // Returns the loss; `said` becomes what was noted.
  double loss(std::string* said = nullptr) const {
    std::vector<TinySample> samples;
    const auto texts = read_json(kSpellings / "samples.json");
    for (const auto& ids : texts) samples.push_back({ids.get<std::vector<int32_t>>(), ids.get<std::vector<int32_t>>()});
    JobSpec spec = make_job(options(), Purpose::Evaluate);
    if (said) *said = fmt::format("{}", fmt::join(spec.sources.notes, "\n"));
    spec.cut.micro_batch = std::ssize(samples);
    TinySession session(spec, 1);
    session.load();
    return TinyTrainer(session).evaluate(samples) / static_cast<double>(loss_tokens(samples));
  }

  double expected_loss() const { return expected_["loss"]; }

 private:
  static nlohmann::json read(const std::string& name) { return read_json(kSpellings / "expected.json")[name]; }
  static std::string respelt(const std::string& tensor, const Prefixes& prefixes) {
    const std::string peft = "base_model.model.";
    for (const auto& [from, to] : prefixes)
      if (tensor.starts_with(peft + from)) return peft + to + tensor.substr(peft.size() + from.size());
    return tensor;
  }
  std::filesystem::path at(const char* file) const { return directory_.path() / file; }

  std::string name_;
  nlohmann::json expected_;
  TempDirectory directory_;
};

TEST(AdapterSpellings, OfEveryAgeAreReadAlike) {
  for (const auto& [name, older] : stored()) {
    const Respelt now(name, {}), then(name, older);
    EXPECT_NEAR(now.loss(), now.expected_loss(), 2e-5) << name;
    std::string said;
    EXPECT_NEAR(then.loss(&said), then.expected_loss(), 2e-5) << name;
    EXPECT_EQ(said.find("names none of"), std::string::npos) << said;
    EXPECT_EQ(said.find("passed over, as there are no images: ") != std::string::npos, older.size() == 2) << said;
  }
}

// As Gemma3ForCausalLM, which has the text model alone, had them.
TEST(AdapterSpellings, OfATextModelByItselfAreReadAsItsOwn) {
  Respelt alone("gemma3", {{"model.language_model.", "model."}});
  alone.set("target_modules", {"v_proj", "gate_proj"});
  EXPECT_NEAR(alone.loss(), alone.expected_loss(), 2e-5);
}

// Names and expressions of a configuration are of the paths that its adapter's tensors have.
TEST(AdapterSpellings, AreThoseOfTheConfigurationToo) {
  Respelt gemma("gemma3", kLlava), qwen("qwen2_vl", kQwen);
  gemma.set("target_modules", R"(language_model\.model\.layers\.\d\.(self_attn\.v_proj|mlp\.gate_proj))");
  gemma.set("rank_pattern", {{"^language_model.model.layers.0.self_attn.v_proj", 3}});
  std::string said;
  EXPECT_NEAR(gemma.loss(&said), gemma.expected_loss(), 2e-5);
  EXPECT_EQ(said.find("names none of"), std::string::npos) << said;
  qwen.set("target_modules", R"((model\.layers|visual\.blocks)\.\d\..*(v_proj|gate_proj|qkv))");
  qwen.set("rank_pattern", {{"model.layers.0.self_attn.v_proj", 3}});
  EXPECT_NEAR(qwen.loss(&said), qwen.expected_loss(), 2e-5);
  EXPECT_EQ(said.find("names none of"), std::string::npos) << said;
}

// As transformers before 5 saved adapters of its own: the names of the base's files, and the paths of the model's
// class.
TEST(AdapterSpellings, MayDifferBetweenTensorsAndConfiguration) {
  Respelt mixed("mistral3", kLlava);
  mixed.set("target_modules", R"(model\.language_model\.layers\.\d\.(self_attn\.v_proj|mlp\.gate_proj))");
  EXPECT_NEAR(mixed.loss(), mixed.expected_loss(), 2e-5);
}

TEST(AdapterSpellings, BecomeOursWhereAnAdapterIsContinued) {
  Respelt gemma("gemma3", kLlava);
  gemma.set("target_modules", R"(language_model\.model\.layers\.[01]\.(self_attn\.v_proj|mlp\.gate_proj))"
                              R"(|.*\.2\.self_attn\.v_proj|language_model\.model\.layers\.2\.mlp\.gate_proj)");
  gemma.set("rank_pattern", {{"^language_model.model.layers.0.self_attn.v_proj", 3}, {"layers.0.self_attn.v_proj", 3}});
  const PeftConfig adapter = adapter_of(gemma.options());
  EXPECT_TRUE(adapter.spelling.prefixes.empty());
  ASSERT_EQ(adapter.target_modules.size(), 6u);
  EXPECT_EQ(adapter.target_modules[0], "model.language_model.layers.0.mlp.gate_proj");
  EXPECT_EQ(
      written_patterns(adapter.rank_pattern),
      (std::vector<std::string>{"model.language_model.layers.0.self_attn.v_proj=3", "layers.0.self_attn.v_proj=3"}));
  EXPECT_EQ(target_of(adapter, "model.language_model.layers.0.self_attn.v_proj")->rank, 3);
  EXPECT_EQ(target_of(adapter, "model.language_model.layers.1.self_attn.v_proj")->rank, 2);
  EXPECT_NO_THROW(make_job(gemma.options(), Purpose::Train));
}

// An expression that left Qwen2-VL's tower out does so still, though today all names begin with "model".
TEST(AdapterSpellings, KeepWhatAnExpressionMeant) {
  PeftConfig config{.rank = 2, .alpha = 2};
  config.target_expression.emplace(R"(model\..*)", "target_modules");
  const auto adapts = [&](const char* path) { return target_of(config, path).has_value(); };
  EXPECT_TRUE(adapts("model.visual.blocks.0.attn.qkv"));
  config.spelling = {{{"model.language_model.", "model."}, {"model.visual.", "visual."}}};
  EXPECT_FALSE(adapts("model.visual.blocks.0.attn.qkv"));
  EXPECT_TRUE(adapts("model.language_model.layers.0.mlp.gate_proj"));
}

// A module that is saved whole, under either name.
TEST(AdapterSpellings, OfModulesToSaveAreOursToo) {
  const PeftConfig theirs{.modules_to_save = {"language_model.lm_head", "language_model.model.embed_tokens"},
                          .spelling = {{{"model.language_model.", "language_model.model."}, {"", "language_model."}}}};
  EXPECT_TRUE(saves_whole(theirs, "lm_head.weight"));
  EXPECT_TRUE(saves_whole(theirs, "model.language_model.embed_tokens.weight"));
  EXPECT_FALSE(saves_whole(theirs, "model.language_model.norm.weight"));
  const PeftTensor head =
      parse_peft_tensor("base_model.model.language_model.lm_head.modules_to_save.default.weight", theirs.spelling);
  EXPECT_EQ(head.kind, PeftTensorKind::Whole);
  EXPECT_EQ(head.param, "lm_head.weight");
}

// Names that no version gave them.
TEST(AdapterSpellings, OfNoAgeAreRefused) {
  Respelt gemma("gemma3", {{"model.language_model.", "language_model."}});
  EXPECT_TRUE(fails_with<UserError>([&] { gemma.loss(); }, "language_model.layers.0"));
}

}  // namespace
}  // namespace snug
