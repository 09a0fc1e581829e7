// Writes the files by which other programs ask and stop as a model was trained.
#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "format/json.h"
#include "format/prompt_format.h"
#include "format/side_files.h"

namespace snug {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr const char* kTemplateFile = "chat_template.jinja";
const std::string kToolTemplateFile = fmt::format("{}/{}.jinja", kAdditionalTemplates, kToolTemplate);
constexpr const char* kGenerationFile = "generation_config.json";
constexpr const char* kTokenizerConfig = "tokenizer_config.json";
constexpr uint64_t kMaxTextBytes = uint64_t{64} << 20;

// Returns the object in a file; an empty one if there is no such file.
OrderedJson read_object(const fs::path& path) {
  if (!is_file(path)) return OrderedJson::object();
  const std::string text = read_text(path, kMaxTextBytes);
  JsonObject(parse_json(text, path.string()), path.string());  // refuses what is broken
  return OrderedJson::parse(text);
}

std::string text_of(const OrderedJson& json) { return json.dump(2) + "\n"; }

OrderedJson ends_json(const std::vector<int32_t>& ends) {
  return ends.size() == 1 ? OrderedJson(ends[0]) : OrderedJson(ends);
}

// Returns whether a configuration names all of these ends.
bool names(const OrderedJson& config, const std::vector<int32_t>& ends) {
  const OrderedJson found = config.value("eos_token_id", OrderedJson());
  return std::ranges::all_of(ends, [&](int32_t id) {
    return found.is_array() ? std::ranges::find(found, OrderedJson(id)) != found.end() : found == OrderedJson(id);
  });
}

// Returns a base's generation_config.json; if it has none, what config.json says of its special tokens.
OrderedJson generation_config_of(const fs::path& base) {
  if (is_file(base / kGenerationFile)) return read_object(base / kGenerationFile);
  const OrderedJson config = read_object(base / "config.json");
  OrderedJson made = OrderedJson::object();
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (config.contains(key) && !config[key].is_null()) made[key] = config[key];
  return made;
}

void write_ends(const fs::path& directory, const std::vector<int32_t>& ends) {
  OrderedJson generation = generation_config_of(directory);
  if (ends.empty() || names(generation, ends)) return;
  generation["eos_token_id"] = ends_json(ends);
  write_text(directory / kGenerationFile, text_of(generation));
  OrderedJson config = read_object(directory / "config.json");
  config["eos_token_id"] = ends_json(ends);
  write_text(directory / "config.json", text_of(config));
}

// Writes a template. transformers takes chat_template.jinja, and older programs the text in tokenizer_config.json: both
// get this text. Templates beside it (of a processor, or by names) belong to a model that was asked otherwise, but for
// the one for tools that is given.
void write_template(const fs::path& directory, const std::string& jinja, const std::string& for_tools) {
  OrderedJson tokenizer = read_object(directory / kTokenizerConfig);
  const fs::path file = directory / kTemplateFile;
  const bool within = tokenizer.contains("chat_template");
  if (jinja.empty()) return;
  ChatTemplateTexts old;
  try {
    if (within) old = parse_chat_template(tokenizer.dump(), (directory / kTokenizerConfig).string());
  } catch (const UserError&) {  // what is no template gives way to one
  }
  if (is_file(file)) old = {.text = read_text(file, kMaxTextBytes)};
  if (auto named = read_named_templates(directory); !named.empty()) old.named = std::move(named);
  if (old.text == jinja && old.for_tools() == for_tools) return;
  write_text(file, jinja);
  if (within) {
    tokenizer["chat_template"] = jinja;
    write_text(directory / kTokenizerConfig, text_of(tokenizer));
  }
  fs::remove(directory / "chat_template.json");
  fs::remove_all(directory / kAdditionalTemplates);
  if (for_tools.empty()) return;
  fs::create_directory(directory / kAdditionalTemplates);
  write_text(directory / kToolTemplateFile, for_tools);
}

// Puts a bound of pixels where an image processor of Qwen's reads it: in `size`, and beside it, which counts more.
void put_bound(OrderedJson& config, const char* key, const char* edge, const std::optional<int64_t>& pixels) {
  if (!pixels) return;
  const bool within = config.contains("size") && config["size"].is_object();
  if (within) {
    OrderedJson& size = config["size"];
    size[size.contains(edge) || !size.contains(key) ? edge : key] = *pixels;
  }
  if (!within || config.contains(key)) config[key] = *pixels;
}

// Returns whether another file than preprocessor_config.json says how frames of videos are resized.
bool has_video_processor(const fs::path& directory) {
  return is_file(directory / kVideoProcessorFile) ||
         read_object(directory / kProcessorFile).contains("video_processor");
}

void write_image_sizes(const fs::path& directory, const ImageSizes& sizes) {
  if (sizes == ImageSizes()) return;
  for (const char* name : {kImageProcessorFile, kProcessorFile}) {
    if (!is_file(directory / name)) continue;
    const OrderedJson before = read_object(directory / name);
    OrderedJson whole = before;
    OrderedJson& config = whole.contains("image_processor") ? whole["image_processor"] : whole;
    put_bound(config, "min_pixels", "shortest_edge", sizes.min_pixels);
    put_bound(config, "max_pixels", "longest_edge", sizes.max_pixels);
    if (sizes.max_slices) config["max_slice_nums"] = *sizes.max_slices;
    if (whole == before) return;
    if ((sizes.min_pixels || sizes.max_pixels) && name == kImageProcessorFile && !has_video_processor(directory))
      write_text(directory / kVideoProcessorFile, text_of(before));
    return write_text(directory / name, text_of(whole));
  }
  if (!sizes.max_slices) return;
  OrderedJson config = read_object(directory / "config.json");
  config["slice_config"]["max_slice_nums"] = *sizes.max_slices;
  write_text(directory / "config.json", text_of(config));
}

}  // namespace

std::map<std::string, std::string> adapter_format_files(const fs::path& base, const PromptFiles& files,
                                                        const SnugFacts& facts) {
  std::map<std::string, std::string> texts;
  if (!files.jinja.empty()) texts[kTemplateFile] = files.jinja;
  if (!files.jinja.empty() && !files.jinja_for_tools.empty()) texts[kToolTemplateFile] = files.jinja_for_tools;
  OrderedJson generation = generation_config_of(base);
  if (!files.end_tokens.empty()) generation["eos_token_id"] = ends_json(files.end_tokens);
  if (!generation.empty()) texts[kGenerationFile] = text_of(generation);
  const auto or_null = [](const std::string& text) { return text.empty() ? OrderedJson() : OrderedJson(text); };
  OrderedJson snug{{"format", 1},
                   {"version", facts.version},
                   {"template", or_null(facts.template_name)},
                   {"train_on", facts.train_on},
                   {"base", facts.base ? OrderedJson(fmt::format("{:016x}", *facts.base)) : OrderedJson()}};
  if (!facts.model.empty()) snug["model"] = facts.model;
  if (!facts.prompt_pattern.empty()) snug["prompt"] = facts.prompt_pattern;
  const auto put_size = [&](const char* key, const std::optional<int64_t>& value) {
    if (value) snug["images"][key] = *value;
  };
  put_size("min_pixels", facts.images.min_pixels);
  put_size("max_pixels", facts.images.max_pixels);
  put_size("max_slices", facts.images.max_slices);
  texts[kSnugFile] = text_of(snug);
  return texts;
}

void write_model_format(const fs::path& directory, const PromptFiles& files) {
  write_template(directory, files.jinja, files.jinja_for_tools);
  write_ends(directory, files.end_tokens);
  write_image_sizes(directory, files.images);
}

}  // namespace snug
