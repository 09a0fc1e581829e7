// README.md's table of what works with which family is what is shown here and in tests/parity_test.cpp.
//   support_test --gtest_also_run_disabled_tests --gtest_filter=*Rewrite*     writes the table
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>

#include "format/gguf_architecture.h"
#include "format/gguf_import.h"
#include "gguf_wholes.h"
#include "model/families.h"
#include "temp_directory.h"
#include "tiny_families.h"
#include "tiny_model.h"
#include "train/gguf_export.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

const fs::path kPage = fs::path(SNUG_DOCS).parent_path() / "README.md";
constexpr std::string_view kHeader =
    "| `model_type` | full | LoRA | int8 base | nf4 base | fp8 base | GGUF read | GGUF written | CPU | GPU |\n"
    "|---|---|---|---|---|---|---|---|---|---|\n";

std::string type_of(const fs::path& model) { return read_json(model / "config.json")["model_type"]; }

// Returns whether the family's fixture holds transformers' numbers of this kind, with which parity_test compares: the
// weights after ten steps of all weights ("final."), or the adapter ("lora_final.").
bool stores(const std::string& family, std::string_view kind) {
  const auto numbers = read_tensors(models() / family / "reference.safetensors");
  return std::ranges::any_of(numbers, [&](const auto& one) { return one.first.starts_with(kind); });
}

// Returns a tiny model in sizes of which every format of a base has whole blocks.
ModelSpec in_whole_blocks(const std::string& family) {
  nlohmann::json config = read_json(models() / family / "config.json");
  nlohmann::json& text = config.contains("text_config") ? config["text_config"] : config;
  const std::map<std::string, int64_t> sizes{
      {"hidden_size", 64},        {"intermediate_size", 128}, {"shared_intermediate_size", 128},
      {"num_attention_heads", 4}, {"num_key_value_heads", 2}, {"head_dim", 16}};
  for (const auto& [key, size] : sizes)
    if (text.contains(key)) text[key] = size;
  return parse_model_config(config.dump(), family).spec;
}

// Returns the gradients of an adapter whose base is drawn from the seed and kept so.
std::vector<float> adapter_gradients(const ModelSpec& model, BaseFormat format) {
  const auto samples = tiny_samples();
  JobSpec spec;
  spec.model = model;
  spec.rules.adapter = PeftConfig{.rank = 4, .alpha = 8, .target_modules = linear_names(model)};
  spec.table = trained_parameters(model, spec.rules);
  spec.sources = find_sources(spec.table, {"", true, 1, std::nullopt});
  spec.numerics.compute = spec.numerics.base = DType::F32;
  spec.numerics.logits_chunk_rows = 32;
  spec.numerics.base_format = format;
  spec.cut.sequence_length = 40;
  spec.cut.micro_batch = std::ssize(samples);
  spec.strategy = plain_strategy(spec.table);
  TinySession session(spec, 1);
  session.load();
  TinyTrainer(session).passes(samples, 1, 0);
  std::vector<float> all;
  for (size_t i = 0; i < spec.table.params.size(); i++)
    if (spec.table.params[i].adapter) {
      const std::vector<float> some = values(session, session.compiled().owned[i].gradient);
      all.insert(all.end(), some.begin(), some.end());
    }
  return all;
}

// What bits fewer move an adapter's gradients by; wired wrongly, they move by their size.
constexpr std::array kFormats{std::pair{BaseFormat::Int8, 0.15}, std::pair{BaseFormat::Nf4, 0.6},
                              std::pair{BaseFormat::Fp8, 0.4}};

// Types of models that a GGUF file of the fixtures became, and those of which one was written, with the type that what
// was written is read as.
struct GgufTypes {
  std::set<std::string> read;
  std::map<std::string, std::string> written;

  std::string read_cell(const std::string& type) const {
    if (read.contains(type)) return "yes";
    return written.contains(type) ? fmt::format("as `{}`", written.at(type)) : "no";
  }
};

// Writes a model as a GGUF file and reads that.
void add_written(GgufTypes& types, const fs::path& model, const std::string& name) {
  const fs::path file = model.parent_path() / "x.gguf", again = model.parent_path() / (name + ".again");
  try {
    export_gguf_model(read_model_config(model), model, model, file, GgufFileType::BF16, name);
  } catch (const UserError&) {
    return;  // gguf_export_test and gguf_wholes_test say of which files that is expected
  }
  import_gguf(file, again, Existing::Refuse);
  types.written[type_of(model)] = type_of(again);
}

GgufTypes gguf_types() {
  GgufTypes types;
  const TempDirectory directory;
  for (const auto& entry : fs::directory_iterator(fs::path(SNUG_FIXTURES) / "gguf")) {
    const std::string name = entry.path().stem();
    if (entry.path().extension() != ".gguf" || !is_file(entry.path().parent_path() / (name + ".expected.safetensors")))
      continue;
    const fs::path model = directory.path() / name;
    import_gguf(entry.path(), model, Existing::Refuse);
    types.read.insert(type_of(model));
    add_written(types, model, name);
    const fs::path whole = directory.path() / (name + ".whole");
    if (name == "gemma3") put_in_multimodal(model, whole, "gemma3", "Gemma3ForConditionalGeneration", false);
    if (name == "ministral3") put_in_multimodal(model, whole, "mistral3", "Mistral3ForConditionalGeneration", false);
    if (name == "granite4") become_granite4(model, whole);
    if (fs::exists(whole)) add_written(types, whole, name + ".whole");
  }
  return types;
}

// Returns the tiny models that were compared with transformers on a card.
std::set<std::string> compared_on_cards() {
  std::set<std::string> names;
  std::istringstream text(read_text(kPage.parent_path() / "bench/results/parity_on_cards.txt", 1 << 16));
  for (std::string line; std::getline(text, line);)
    if (!line.starts_with('#')) names.insert(line);
  for (const std::string& name : names)
    EXPECT_EQ(std::ranges::count(kTinyFamilies, name), 1) << name << " is no tiny model";
  return names;
}

std::string table() {
  const std::set<std::string> on_cards = compared_on_cards();
  std::map<std::string, std::vector<std::string>> models;  // by type
  for (const std::string family : kTinyFamilies) models[type_of(snug::models() / family)].push_back(family);
  for (const Family& family : all_families())
    EXPECT_TRUE(models.contains(std::string(family.config.model_type))) << family.config.model_type;
  const GgufTypes gguf = gguf_types();
  const auto yes = [](bool is) { return is ? "yes" : "no"; };
  std::string text(kHeader);
  for (const auto& [type, families] : models) {
    const auto all_store = [&families = families](std::string_view kind) {
      return std::ranges::all_of(families, [&](const std::string& family) { return stores(family, kind); });
    };
    text += fmt::format("| `{}` | {} | {} |", type, yes(all_store("final.")), yes(all_store("lora_final.")));
    for (const auto& [format, bound] : kFormats) {
      for (const std::string& family : families) {
        const ModelSpec model = in_whole_blocks(family);
        const double error =
            relative_error(adapter_gradients(model, format), adapter_gradients(model, BaseFormat::Plain));
        EXPECT_GT(error, 1e-4) << family << " in " << name(format);
        EXPECT_LT(error, bound) << family << " in " << name(format);
      }
      text += " yes |";
    }
    const bool compared = std::ranges::all_of(families, [&](const auto& family) { return on_cards.contains(family); });
    text += fmt::format(" {} | {} | yes | {} |\n", gguf.read_cell(type), yes(gguf.written.contains(type)),
                        compared ? "yes" : "not yet");
  }
  return text;
}

// Returns where the table begins and ends in the page.
std::pair<size_t, size_t> place_in(const std::string& page) {
  const size_t begin = page.find(kHeader.substr(0, kHeader.find('\n')));
  if (begin == page.npos) return {page.size(), page.size()};
  const size_t end = page.find("\n\n", begin);
  return {begin, end == page.npos ? page.size() : end + 1};
}

TEST(Support, TheReadmesTableIsWhatIsShown) {
  const std::string page = read_text(kPage, 1 << 20);
  const auto [begin, end] = place_in(page);
  EXPECT_EQ(page.substr(begin, end - begin), table());
}

TEST(Support, DISABLED_Rewrite) {
  std::string page = read_text(kPage, 1 << 20);
  const auto [begin, end] = place_in(page);
  page.replace(begin, end - begin, table());
  write_text(kPage, page);
}

}  // namespace
}  // namespace snug
