#include "api/prompting.h"

#include "api/images.h"
#include "api/job.h"
#include "api/new_tokens.h"
#include "base/say.h"
#include "model/spec_fields.h"
#include "plan/lowering/fingerprint.h"
#include "plan/spec/sources.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

PromptFiles prompt_files(const PromptFormat& format, const RecordKinds& taught) {
  PromptFiles files;
  if (taught.conversations || format.template_of_adapter) {
    files.jinja = format.jinja;
    files.jinja_for_tools = format.jinja_for_tools;
  }
  if (taught.conversations || taught.texts || format.template_of_adapter || format.ends_of_adapter)
    files.end_tokens = format.end_tokens;
  return files;
}

SnugFacts facts_of(const JobConfig& options, const Corpus& corpus, const JobSpec& spec) {
  SnugFacts facts{.version = SNUG_VERSION,
                  .train_on = options.train_on,
                  .base = hash_of_base(spec.table, spec.sources, *spec.rules.adapter)};
  Fields fields;
  add_fields(fields, kModelFields, spec.model);
  for (const Field& field : fields)
    if (!field.is_default()) facts.model[field.name] = field.value;
  const PromptFormat& format = corpus.prompt_format;
  const bool conversations = corpus.training.kinds().conversations;
  if ((conversations || format.template_of_adapter) && format.chat) facts.template_name = format.chat->name();
  if (conversations) facts.prompt_pattern = options.prompt_pattern;
  facts.images = corpus.training.has_images() ? image_sizes(corpus.images.value().processor)
                 : !options.adapter.empty()   ? read_image_sizes(options.adapter)
                                              : ImageSizes();
  return facts;
}

}  // namespace

WriteExtraFiles write_prompt_format(const JobConfig& options, const Corpus& corpus, const JobSpec& spec) {
  PromptFiles files = prompt_files(corpus.prompt_format, corpus.training.kinds());
  if (corpus.training.has_images()) files.images = image_sizes(options);
  if (options.method == "full")
    return [files, options](const fs::path& directory) {
      write_tokenizer(options, directory);
      write_model_format(directory, files);
    };
  const auto texts = adapter_format_files(options.model, files, facts_of(options, corpus, spec));
  return [texts, options](const fs::path& directory) {
    write_tokenizer(options, directory);
    for (const auto& [name, text] : texts) {
      fs::create_directories((directory / name).parent_path());
      write_text(directory / name, text);
    }
  };
}

WriteExtraFiles write_adapters_format(const JobConfig& options) {
  const bool named = options.chat_template != "auto";
  std::optional<Tokenizer> tokenizer;
  try {
    tokenizer = load_tokenizer(options);
  } catch (const UserError&) {  // there is none, or none of a kind that is read: merging needs none
    if (named) throw;
  }
  const PromptFormat format = prompt_format_of(options, model_tokens(options), tokenizer ? &*tokenizer : nullptr);
  if (named) format.for_conversations();
  say_lines(format.notes);
  PromptFiles files = prompt_files(format, {.conversations = named});
  files.images = image_sizes(options);
  return [files, options](const fs::path& directory) {
    write_tokenizer(options, directory);
    write_model_format(directory, files);
  };
}

std::string how_asked(const JobConfig& options, const Corpus& corpus) {
  const PromptFormat& format = corpus.prompt_format;
  if (!corpus.training.kinds().conversations || !format.chat) return "";
  const std::string end = format.chat->end_of_turn(), call = format.chat->end_of_call();
  std::string line = fmt::format("template {}: {}{}; tokens that end one: {}", format.chat->name(),
                                 end.empty() ? "nothing ends a reply" : fmt::format("replies end with {}", end),
                                 call.empty() || call == end ? "" : fmt::format(", calls with {}", call),
                                 fmt::join(format.end_tokens, ", "));
  if (format.chat->says_loss()) line += "; its generation blocks say what carries loss";
  if (options.method == "full" && format.jinja.empty()) line += "; the model keeps the chat template that its base has";
  return line;
}

}  // namespace snug
