// What a run is resumed under: every field counts, is said by name, and is kept in state.json.
#include "plan/lowering/fingerprint.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "data/packing_fields.h"
#include "expect_error.h"
#include "format/peft_fields.h"
#include "model/spec_fields.h"
#include "tiny_model.h"
#include "train/checkpoint.h"

namespace snug {
namespace {

// Other values than the field has.
void perturb(bool& value) { value = !value; }
template <class T>
requires std::is_arithmetic_v<T>
void perturb(T& value) { value = value + T{1}; }
template <class T>
requires std::is_enum_v<T>
void perturb(T& value) { value = static_cast<T>(static_cast<int>(value) == 0 ? 1 : 0); }
void perturb(std::vector<std::string>& values) { values.emplace_back("o_proj"); }
void perturb(std::string& value) { value += "x"; }
void perturb(std::vector<int>& values) { values.push_back(4); }
void perturb(std::vector<double>& values) { values.push_back(4); }
void perturb(std::vector<int64_t>& values) { values.push_back(4); }
void perturb(std::vector<LinearPart>& parts) { parts.emplace_back(); }
void perturb(std::optional<std::vector<int64_t>>& values) { values = {3}; }
template <class T>
void perturb(std::vector<std::pair<Pattern, T>>& values) {
  values.emplace_back(pattern_of_ends("q_proj", "test"), T{3});
}
template <class Record>
Fields fields_with(const Record& record) {
  Fields fields;
  add_fields(fields, "group", record);
  return fields;
}

// As many members as braces of an aggregate take.
struct Anything {
  template <class T>
  operator T() const {
    std::abort();
  }
};
template <class Record, size_t count>
constexpr bool takes() {
  return []<size_t... i>(std::index_sequence<i...>) {
    return requires { Record{(static_cast<void>(i), Anything{})...}; };
  }
  (std::make_index_sequence<count>());
}
template <class Record, size_t count = 0>
constexpr size_t member_count() {
  if constexpr (takes<Record, count + 1>())
    return member_count<Record, count + 1>();
  else
    return count;
}

// A record's visitor visits every member but those that decide nothing, which the caller names.
template <class Record>
void expect_every_member_visited(const Record& used, const std::vector<std::string>& decide_nothing) {
  size_t visited = 0;
  visit_fields(used, [&](std::string_view, const auto&) { visited++; });
  EXPECT_EQ(visited + decide_nothing.size(), member_count<Record>())
      << fmt::format("{}", fmt::join(decide_nothing, ", "));
}

// Changes each field that is visited, one at a time, of a record with default values and of `used`: the hash is another
// and the difference is said by that field's name with both values, whether or not the file has the field.
template <class Record>
void expect_every_field_counts(const Record& used) {
  for (const Record& record : {Record{}, used}) {
    const Fields before = fields_with(record);
    Fields stored = before;
    std::erase_if(stored, [](const Field& field) { return field.is_default(); });
    size_t count = 0;
    visit_leaves(record, [&](const std::string&, const auto&) { count++; });
    for (size_t i = 0; i < count; i++) {
      Record other = record;
      size_t next = 0;
      visit_leaves(other, [&](const std::string&, auto& field) {
        if (next++ == i) perturb(field);
      });
      const Fields now = fields_with(other);
      EXPECT_NE(hash_of_fields(now), hash_of_fields(before)) << before[i].name;
      const auto shown = [&](const std::string& value) {
        const auto word = now[i].words.find(value);
        return word != now[i].words.end() ? word->second : value.empty() ? "nothing" : value;
      };
      EXPECT_EQ(differences(now, stored, {"group"}),
                std::vector<std::string>{fmt::format("{}: found {}, expected {}", before[i].name, shown(now[i].value),
                                                     shown(before[i].value))});
    }
    EXPECT_EQ(differences(before, stored, {"group"}), std::vector<std::string>{});
  }
}

TEST(Fingerprint, EveryFieldOfEveryRecordCounts) {
  const ModelSpec model = read_model_config(models() / "llama").spec;
  expect_every_field_counts<ModelSpec>(model);
  expect_every_field_counts(model.layers[0]);
  expect_every_field_counts(model.layers[0].qkv);
  expect_every_field_counts(LinearPart{"self_attn.q_proj", 576, "self_attn.qkv"});
  expect_every_field_counts(NormSpec{"input_layernorm.weight", 1e-5});
  expect_every_field_counts(NormSpec{"norm.weight", 1e-5, false, NormKind::Layer, "norm.bias"});
  expect_every_field_counts(HeadShape{4, 2, 16});
  expect_every_field_counts(read_model_config(vision() / "qwen2_5_vl").spec.tower);
  const ModelSpec resampled = read_model_config(vision() / "minicpmv").spec;
  expect_every_field_counts(resampled.tower);
  expect_every_field_counts(resampled.projector());
  const ModelSpec one_size = read_model_config(vision() / "omnilmm").spec;
  expect_every_field_counts(one_size.tower);
  expect_every_field_counts(one_size.projector());
  expect_every_field_counts(one_size.layers[0].qkv);
  expect_every_field_counts(LinearPart{"attn.in_proj", 384, "", "attn.in_proj_{}"});
  expect_every_field_counts(RopeParameters{.type = RopeType::LongRope, .short_factor = {1, 2}, .long_factor = {3, 4}});
  expect_every_field_counts(PeftConfig{.rank = 4, .alpha = 8, .init = LoraInit::Olora, .target_modules = {"q_proj"}});
  expect_every_field_counts(ParamRules{.train = {"norm"}, .freeze = {"lm_head"}, .lora_plus_ratio = 16});
  Numerics numerics;
  numerics.weight_decay = 0.1;
  numerics.base_format = BaseFormat::Nf4;
  expect_every_field_counts(numerics);
  expect_every_field_counts(ObjectiveOptions{.kind = ObjectiveKind::Dpo, .label_smoothing = 0.1});
  expect_every_field_counts(Cut{40, 2, 3, 4});
  PackingOptions packing;
  packing.sequence_length = 40;
  expect_every_field_counts(packing);
}

TEST(Fingerprint, EveryMemberOfEveryRecordIsVisitedOrSaidToDecideNothing) {
  expect_every_member_visited(ModelSpec{}, {"layers, which are added one by one", "positions"});
  expect_every_member_visited(LayerSpec{}, {});
  expect_every_member_visited(LinearSpec{}, {});
  expect_every_member_visited(LinearPart{"self_attn.q_proj", 576, "self_attn.qkv", "qkv_{}"}, {});
  expect_every_member_visited(NormSpec{}, {});
  expect_every_member_visited(HeadShape{}, {});
  expect_every_member_visited(RopeParameters{}, {});
  expect_every_member_visited(PeftConfig{},
                              {"base_model", "target_expression", "exclude_modules", "layers_pattern", "bias",
                               "trainable_token_indices", "spelling"});  // plain_adapter() leaves none of the last six
  expect_every_member_visited(ParamRules{}, {"adapter, whose fields are added by themselves"});
  expect_every_member_visited(Numerics{}, {});
  expect_every_member_visited(ObjectiveOptions{}, {});
  expect_every_member_visited(Cut{}, {});
  expect_every_member_visited(PackingOptions{}, {"seed, which Numerics has", "heartbeat", "name"});
}

TEST(Fingerprint, TextsAreThoseOfModels) {
  ModelSpec model = read_model_config(models() / "qwen2").spec;
  model.rope = {.type = RopeType::Llama3, .factor = 8};
  model.layers.resize(4, model.layers[0]);
  for (size_t layer = 0; layer < 3; layer++) model.layers[layer].window = 4096;
  Fields fields;
  add_fields(fields, "model", model);
  std::map<std::string, std::string> texts;
  for (const Field& field : fields) texts[field.name] = field.value;
  EXPECT_EQ(texts["rope.factor"], "8");
  EXPECT_EQ(texts["num_hidden_layers"], "4");
  EXPECT_EQ(texts["sliding_window"], "4096 x3, 0");
  EXPECT_EQ(texts["o.parts"], "module self_attn.o_proj, rows 72");
  model.layers[0].o.parts[0].stored_in = "self_attn.out";
  fields.clear();
  add_fields(fields, "model", model);
  EXPECT_TRUE(std::ranges::any_of(fields, [](const Field& field) {
    return field.name == "o.parts" &&
           field.value.starts_with("module self_attn.o_proj, rows 72, stored_in self_attn.out");
  }));
  EXPECT_EQ(texts["o.in"], "72");
  EXPECT_EQ(texts["architecture"], "Qwen2ForCausalLM");
  EXPECT_EQ(fields_with(Numerics{})[0].value, "bf16");
}

// Files keep the numbers that they always had.
TEST(Fingerprint, FormatsAreSaidInWords) {
  Numerics bf16, eight_bits, nf4;
  bf16.state = StateFormat::Bf16;
  eight_bits.state = StateFormat::Bit8;
  nf4.base_format = BaseFormat::Nf4;
  const auto said = [](const Numerics& now, const Fields& saved) {
    return fmt::format("{}", fmt::join(differences(fields_with(now), saved, {"group"}), "; "));
  };
  EXPECT_EQ(said(bf16, {{"group", "state_format", "2"}}), "state_format: found bf16, expected 8bit");
  EXPECT_EQ(said(eight_bits, {}), "state_format: found 8bit, expected fp32");
  EXPECT_EQ(said(nf4, {}), "base_format: found nf4, expected numbers, as base_format bf16 and fp32 keep them");
  EXPECT_EQ(said(bf16, {{"group", "state_format", "1"}}), "");
}

// Of every layer, and of the layers' number.
TEST(Fingerprint, EveryLayerOfAModelCounts) {
  const auto hash = [](const ModelSpec& model) {
    Fields fields;
    add_fields(fields, "model", model);
    return hash_of_fields(fields);
  };
  const ModelSpec model = read_model_config(models() / "llama").spec;
  for (size_t layer = 0; layer < model.layers.size(); layer++) {
    ModelSpec other = model;
    other.layers[layer].window = 16;
    EXPECT_NE(hash(other), hash(model)) << layer;
    ModelSpec normed = model;
    normed.layers[layer].query_norm = {"q_norm.weight", 1e-6};
    EXPECT_NE(hash(normed), hash(model)) << layer;
    ModelSpec owned = normed;
    owned.layers[layer].own_head_gains = true;
    EXPECT_NE(hash(owned), hash(normed)) << layer;
    ModelSpec unturned = model;
    unturned.layers[layer].rope = false;
    EXPECT_NE(hash(unturned), hash(model)) << layer;
  }
  ModelSpec longer = model;
  longer.layers.push_back(model.layers[0]);
  EXPECT_NE(hash(longer), hash(model));
}

// A field that a later version adds is at its default in what was made before.
TEST(Fingerprint, ANewFieldAtItsDefaultOrphansNothing) {
  const Fields before{{"model", "heads", "4", "0"}};
  Fields now = before;
  now.push_back({"model", "softcap", "0", "0"});
  EXPECT_EQ(hash_of_fields(now), hash_of_fields(before));
  EXPECT_TRUE(differences(now, before, {"model"}).empty());
  now.back().value = "30";
  EXPECT_NE(hash_of_fields(now), hash_of_fields(before));
  EXPECT_EQ(differences(now, before, {"model"}), (std::vector<std::string>{"softcap: found 30, expected 0"}));
}

TEST(Fingerprint, AllRecordsOfAJobAreInIt) {
  const JobSpec job = tiny_job("qwen2", "adapter_init", DType::BF16);
  const auto differs = [&](const JobSpec& other, const std::string& field) {
    const auto words =
        differences(fields_of(other), fields_of(job), {kMethodFields, kModelFields, kNumericsFields, kCutFields});
    return words.size() == 1 && words[0].starts_with(field + ": found ");
  };
  JobSpec other = job;
  other.model.rope.theta *= 2;
  EXPECT_TRUE(differs(other, "rope.theta"));
  other = job;
  other.numerics.beta2 = 0.5;
  EXPECT_TRUE(differs(other, "beta2"));
  other = job;
  other.rules.adapter->alpha += 1;
  EXPECT_TRUE(differs(other, "lora_alpha"));
  other = job;
  other.cut.passes++;
  EXPECT_TRUE(differs(other, "gradient_accumulation_steps"));
}

// The base that an adapter is for, by what its files hold; where all is trained, it is in the checkpoint.
TEST(Fingerprint, WeightsThatAreNotTrainedCount) {
  const auto value = [](const JobSpec& job) { return weights_field(job, {}).value; };
  const JobSpec job = tiny_job("llama", "adapter_init", DType::F32);
  JobSpec full = tiny_job("llama", std::nullopt, DType::F32), drawn = job, other_adapter = job;
  drawn.sources = find_sources(drawn.table, {models() / "llama", true, 1, std::nullopt});
  other_adapter.sources = find_sources(job.table, {models() / "llama", false, 1, std::nullopt});
  EXPECT_EQ(value(job).size(), 16u);
  EXPECT_EQ(value(other_adapter), value(job)) << "an adapter is in the checkpoint";
  EXPECT_NE(value(tiny_job("qwen2", "adapter_init", DType::F32)), value(job));
  EXPECT_EQ(value(drawn), "init random");
  EXPECT_EQ(value(full), "");
}

CheckpointState some_state() {
  return {12,
          {{"model", "rope_theta", "10000", "0"}, {"numerics", "seed", "42", "42"}, {"data", "samples", "40"}},
          0x9abc,
          2.5,
          8};
}

TEST(State, KeepsItsFieldsButThoseAtTheirDefaults) {
  const std::string text = write_state(some_state());
  EXPECT_EQ(nlohmann::json::parse(text)["fields"],
            nlohmann::json::parse(R"({"model": {"rope_theta": "10000"}, "data": {"samples": "40"}})"));
  EXPECT_EQ(nlohmann::json::parse(text)["format"], 2);
  const CheckpointState read = parse_state(text, "state.json");
  EXPECT_EQ(write_state(read), text);
  EXPECT_EQ(read.step, 12);
  EXPECT_EQ(read.best_step, 8);
  EXPECT_TRUE(differences(some_state().fields, read.fields, {"model", "numerics", "data"}).empty());
}

// As another version would have written it.
std::string with_format(const nlohmann::ordered_json& format) {
  auto json = nlohmann::ordered_json::parse(write_state(some_state()));
  json.erase("checksum");
  if (format.is_null())
    json.erase("format");
  else
    json["format"] = format;
  json["checksum"] = hex(hash_of(json.dump()));
  return json.dump(2) + "\n";
}

TEST(State, OtherVersionsAreNamed) {
  const auto refused = [](const std::string& text, const char* why) {
    return fails_with<UserError>([&] { parse_state(text, "state.json"); }, why);
  };
  EXPECT_NO_THROW(parse_state(with_format(2), "state.json"));
  EXPECT_TRUE(refused(with_format(3), "state.json: found format 3, expected 2 at most: a newer snug made it"));
  EXPECT_TRUE(refused(with_format(1), "state.json: found format 1, expected format 2: an earlier snug made it"));
  EXPECT_TRUE(
      refused(with_format(nullptr), "state.json: found no 'format', expected format 2: an earlier snug made it"));
  std::string edited = with_format(2);
  edited.replace(edited.find("10000"), 5, "20000");
  EXPECT_TRUE(refused(edited, "damaged"));
}

TEST(Resuming, SaysWhatIsOtherwise) {
  const auto of = [](const std::string& theta, const std::string& tokens, const std::string& file) {
    return Fields{{"model", "rope_theta", theta}, {"data", "tokens", tokens}, {"options", "data", file}};
  };
  Fields saved = of("10000", "70", "a.jsonl");
  const auto said = [&](const Fields& now) -> std::string {
    try {
      refuse_other_fields(now, saved, "run/step-3");
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(said(saved), "");
  EXPECT_EQ(said(of("5000", "70", "a.jsonl")), "run/step-3: rope_theta: found 5000, expected 10000, as the run has it");
  EXPECT_EQ(said(of("10000", "70", "b.jsonl")), "") << "the same tokens from elsewhere";
  EXPECT_EQ(said(of("10000", "71", "b.jsonl")), "run/step-3: data: found b.jsonl, expected a.jsonl, as the run has it");
  EXPECT_EQ(said(of("10000", "71", "a.jsonl")),
            "run/step-3: the content of the data has changed, or what the model's tokenizer and template make of it "
            "(tokens: found 71, expected 70), as the run has it");
  Fields now = saved;
  now.push_back({"data", "images", "12"});
  EXPECT_EQ(said(now), "") << "a checkpoint of an earlier version does not say what bytes its images have";
  saved.push_back({"data", "images", "34"});
  EXPECT_EQ(said(now),
            "run/step-3: the content of the data has changed, or what the model's tokenizer and template make of it "
            "(images: found 12, expected 34), as the run has it");
}

}  // namespace
}  // namespace snug
