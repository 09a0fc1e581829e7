// Makes keys of what is learnt from: lengths, data sets, templates, held-out data; and of when what is saved.
#include <algorithm>
#include <cmath>
#include <set>

#include "base/ascii.h"
#include "translate/data_sets.h"
#include "translate/translator.h"

namespace snug {
namespace {

// Puts a key even where its value is snug's default, as theirs may be another one.
void put_always(Translator& t, std::string_view key, const std::string& value, const Setting& from,
                Mark mark = Mark::Same, const std::string& text = "") {
  if (t.put(key, value, from, mark, text))
    t.set(key, *our_value(our_key(key), value), from.is_default ? from.written + ", their default" : from.written);
}

bool raw_text(const Translator& t) {
  return t.task() == "pt" || t.on("pretrain_mode") || t.on("pretraining") || t.program() == Dialect::Trainer;
}

// Nobody packs preferences; a block of a pair is one of two replies with their prompts.
void finish_unpacked(Translator& t) {
  for (const char* name : {"neat_packing", "packing_strategy"})
    t.judge_all(name, Mark::Decided, "preferences are not packed there");
  for (const char* name : {"packing", "or_packing"})
    for (const Setting* setting : t.all_held(name)) {
      const bool off = is_off(setting->value);
      put_always(t, "packing", "false", *setting, off ? Mark::Same : Mark::Changed,
                 off ? "" : "a step keeps its number of samples; packing: true would put more in one");
    }
}

void finish_packing(Translator& t) {
  if (t.learns_preferences()) return finish_unpacked(t);
  if (const Setting* batching = t.held("batching")) {
    if (lower_case(batching->value) == "packing") {
      put_always(t, "packing", "true", *batching, Mark::Changed, "samples of a block do not see each other here");
      t.set("long_samples", "split", "its packing goes on in the next block");
    } else {
      put_always(t, "packing", "false", *batching, Mark::Changed,
                 "samples are cut at sequence_length, which there none are");
    }
  }
  const Setting *packing = t.held("packing"), *neat = t.held("neat_packing");
  const bool neatly = neat && is_on(neat->value);
  if (neat) t.judge(*neat, Mark::Same, neatly ? "packed samples do not see each other" : "off");
  if (packing) {
    const bool forced = raw_text(t) && t.program() == Dialect::LlamaFactory && packing->is_default;
    const bool on = is_on(packing->value) || neatly || forced;
    const bool isolated =
        neatly || t.program() == Dialect::Axolotl || lower_case(t.value("packing_strategy")) != "wrapped";
    const bool mixes = on && !neatly && (t.program() == Dialect::LlamaFactory || !isolated);
    put_always(t, "packing", on ? "true" : "false", *packing, mixes ? Mark::Changed : Mark::Same,
               mixes ? fmt::format("{}samples of a block do not see each other here, and see each other there",
                                   forced ? "its stage packs by itself; " : "")
                     : "");
    if (mixes && raw_text(t)) t.set("long_samples", "split", "its packing goes on in the next block");
  } else if (t.program() == Dialect::MiniCpm) {
    t.set("packing", "false", "one sample a row");
  } else if (t.program() == Dialect::Trainer) {
    t.set("packing", "true", "texts end to end");
    t.set("long_samples", "split", "texts end to end");
    t.remark("data is read as run_clm.py reads it, texts end to end, which see each other there and do not here");
  }
  if (const Setting* strategy = t.held("packing_strategy")) {
    const std::string word = lower_case(strategy->value);
    if (word == "bfd")
      t.judge(*strategy, Mark::Same, "what is too long is cut");
    else
      t.put("long_samples", "split", *strategy, word == "wrapped" ? Mark::Changed : Mark::Same);
  }
  if (const Setting* packing_of_passes = t.held("or_packing")) {
    put_always(t, "packing", "false", *packing_of_passes, is_off(packing_of_passes->value) ? Mark::Same : Mark::Changed,
               is_off(packing_of_passes->value)
                   ? ""
                   : "a step keeps its number of samples; packing: true would put more in one");
    t.remark(
        "samples whose prompt fills max_len are dropped there; here they are cut, and those without a loss dropped");
  }
}

}  // namespace

void finish_sequence(Translator& t) {
  for (const Setting* setting : t.all_held("sequence_length")) {
    const std::optional<double> half = t.learns_pairs() ? read_number(setting->value) : std::nullopt;
    if (is_off(setting->value))
      t.judge(*setting, Mark::Changed, "samples are cut at sequence_length, 2048 unless it is said");
    else if (half)
      t.put("sequence_length", number_text(2 * *half), *setting, Mark::Changed,
            fmt::format("of both replies with their prompts together, of which each has {} there", setting->value));
    else
      t.put("sequence_length", setting->value, *setting);
  }
  finish_packing(t);
  if (t.program() == Dialect::Axolotl) {
    const Setting* excess = t.held("excess");
    if (!excess || is_off(excess->value) || lower_case(excess->value) == "drop")
      t.set("long_samples", "drop", "axolotl drops what is too long");
    if (excess && lower_case(excess->value) == "truncate")
      t.put("long_samples", "cut", *excess);
    else if (excess)
      t.judge(*excess, lower_case(excess->value) == "raise" ? Mark::Changed : Mark::Same,
              lower_case(excess->value) == "raise" ? "what is too long is dropped, and counted" : "long_samples: drop");
  }
}

// ---- Templates ------------------------------------------------------------------------------------------------------

namespace {

void finish_template(Translator& t) {
  const std::vector<const Setting*>& all = t.all_held("template");
  for (const Setting* setting : all) {
    const std::string word = lower_case(setting->value);
    const std::set<std::string_view> ours{"chatml", "llama3", "llama2", "mistral", "qwen"};
    if (setting != all.back()) {
      t.judge(*setting, Mark::Decided, "another one counts");
    } else if (is_off(word) || word == "tokenizer_default") {
      t.judge(*setting, Mark::Same, "the model's own");
    } else if (word == "empty") {
      t.put("template", "none", *setting);
    } else if (ours.contains(word)) {
      t.put("template", word, *setting, Mark::Changed,
            "system texts, joints and ends of turns differ by version: snug tokenize --json shows a sample");
    } else if (word == "default" || word == "alpaca" || word == "vicuna" || word == "jinja" || word == "metharme") {
      t.judge(*setting, Mark::Refused, filled("no template of snug's; prompt says a pattern", *setting));
    } else if (t.put("template", "auto", *setting, Mark::Changed,
                     "taken for the model's own: snug tokenize --json shows a sample")) {
      t.set("template", "auto", setting->written + ": " + setting->value);
    }
  }
}

// Returns a pattern of theirs, with {} for the prompt, as snug spells it: a new line is a backslash and an n, and a
// backslash two.
std::string spelt_pattern(std::string text, std::string_view field) {
  if (is_off(text)) text = "{}";
  if (const size_t place = text.find("{}"); place != std::string::npos) text.replace(place, 2, field);
  std::string spelt;
  for (const char c : text) spelt += c == '\n' ? "\\n" : c == '\\' ? "\\\\" : std::string{c};
  return spelt;
}

// OpenRLHF's fields of preferences, whose prompts a chat template or a pattern makes.
void finish_openrlhf_preferences(Translator& t) {
  const bool pairs = t.learns_pairs(), chat = t.on("apply_chat_template");
  const Setting* pattern = t.held("input_template");
  for (const char* name : {"apply_chat_template", "multiturn", "pretrain_mode"})
    t.judge_all(name, Mark::Same, t.on(name) ? "as the data's shape says" : "off");
  for (const char* name : {"input_key", "output_key", "label_key", "chosen_key", "rejected_key", "prompt_key"})
    t.judge_all(name, Mark::Decided, "it is of other data");
  t.judge_all("input_template", Mark::Decided, "it is of other data");
  std::map<std::string, std::string> columns;
  const auto name_field = [&](const char* held, const std::string& ours) {
    const Setting* setting = t.held(held);
    if (!setting || is_off(setting->value)) return;
    t.judge(*setting, Mark::Same, setting->value == ours ? "found by looking" : "columns");
    if (setting->value != ours) columns[ours] = setting->value;
  };
  const char* prompt = pairs ? "prompt_key" : t.on("prompt_key") ? "prompt_key" : "input_key";
  if (pairs) {
    name_field("chosen_key", "chosen");
    name_field("rejected_key", "rejected");
  } else {
    name_field("output_key", "completion");
    name_field("label_key", "label");
  }
  const bool asks = t.on(prompt) && (pairs || t.on("output_key"));
  if (asks && (pairs || !chat)) name_field(prompt, "prompt");
  if (!chat && asks && pattern && !is_off(pattern->value)) {
    t.set("prompt", yaml_text(spelt_pattern(pattern->value, "{prompt}")),
          pattern->is_default ? "their default" : pattern->written);
    t.judge(*pattern, Mark::Changed, "prompt; it begins with BOS here, and the reply ends without a space before EOS");
  }
  if (!chat && pairs && !asks && !t.scores())
    t.remark(
        "without prompt_key and a chat template all of a text carries loss in OpenRLHF; here what both texts begin "
        "with "
        "is the prompt");
  if (!columns.empty()) t.set_map("columns", columns, "fields by other names");
}

// OpenRLHF's ways to make a prompt: a chat template, or a pattern around one field.
void finish_openrlhf_prompt(Translator& t) {
  const Setting *input = t.held("input_key"), *output = t.held("output_key"), *pattern = t.held("input_template");
  const bool chat = t.on("apply_chat_template");
  std::map<std::string, std::string> columns;
  for (const char* name : {"apply_chat_template", "multiturn", "pretrain_mode"})
    t.judge_all(name, Mark::Same, t.on(name) ? "as the data's shape says" : "off");
  for (const char* name : {"chosen_key", "rejected_key", "prompt_key", "label_key"})
    t.judge_all(name, t.task() == "sft" ? Mark::Refused : Mark::Left,
                t.task() == "sft" ? "sft has no such option" : "of an objective that is not translated");
  t.judge_all("input_key", Mark::Same, "columns");
  t.judge_all("output_key", Mark::Same, "columns");
  t.judge_all("input_template", Mark::Decided, "it is of other data");
  if (t.on("pretrain_mode")) {
    t.set("data_format", "text", "pretrain_mode");
    t.set("train_on", "all", "pretrain_mode");
    if (input && input->value != "text") columns["text"] = input->value;
  } else if (chat) {
    if (input && input->value != "messages" && (t.on("multiturn") || !t.on("output_key")))
      columns["messages"] = input->value;
    if (t.on("output_key") && !t.on("multiturn")) {
      columns["instruction"] = input ? input->value : "input";
      columns["output"] = output->value;
    }
  } else if (t.on("output_key")) {
    columns["instruction"] = input ? input->value : "input";
    columns["output"] = output->value;
    const std::string text = spelt_pattern(pattern ? pattern->value : "", "{instruction}");
    t.set("prompt", yaml_text(text), pattern && !pattern->is_default ? pattern->written : "their default");
    t.set("data_format", "alpaca", "input_key, output_key");
    if (pattern)
      t.judge(*pattern, Mark::Changed,
              "prompt; it begins with BOS here, and the reply ends without a space before EOS");
  }
  if (!columns.empty() && t.task() == "sft") t.set_map("columns", columns, "input_key, output_key");
}

void finish_loss(Translator& t) {
  if (const Setting* only = t.held("assistant_only"))
    put_always(t, "train_on", is_on(only->value) ? "assistant" : "all", *only);
  for (const Setting* setting : t.all_held("completion_only")) {
    const bool off = lower_case(setting->value) == "false";
    t.judge(*setting, off ? Mark::Changed : Mark::Same,
            off ? "a prompt beside a completion carries no loss here" : "as here");
  }
  if (raw_text(t) && t.program() != Dialect::OpenRlhf) {
    t.set("data_format", "text", "texts as they are");
    t.set("train_on", "all", "texts as they are");
  }
}

void finish_counts(Translator& t) {
  for (const Setting* setting : t.all_held("or_samples")) {
    const std::optional<double> most = read_number(setting->value);
    if (most && *most >= 1e6)
      t.judge(*setting, Mark::Same, "all of it");
    else
      t.put("max_samples", setting->value, *setting, Mark::Changed, "the first of each file, not of all together");
  }
}

}  // namespace

void finish_data(Translator& t) {
  finish_loss(t);
  if (t.program() == Dialect::OpenRlhf && t.learns_preferences())
    finish_openrlhf_preferences(t);
  else if (t.program() == Dialect::OpenRlhf)
    finish_openrlhf_prompt(t);
  finish_template(t);
  finish_data_sets(t);
  finish_counts(t);
}

// ---- Held-out data, and saving --------------------------------------------------------------------------------------

namespace {

// Puts how often something happens by a strategy (no, steps, epoch) and a number of steps.
void put_cadence(Translator& t, const char* strategy_name, const char* steps_name, std::string_view key,
                 std::string_view otherwise) {
  const Setting *strategy = t.held(strategy_name), *steps = t.held(steps_name);
  std::string word = strategy ? lower_case(strategy->value) : std::string(otherwise);
  if (const size_t dot = word.rfind('.'); dot != word.npos) word.erase(0, dot + 1);
  const double number = steps ? read_number(steps->value).value_or(0) : 0;
  t.judge_all(strategy_name, Mark::Same, is_off(word) ? "at the end only" : "as here");
  t.judge_all(steps_name, Mark::Decided, "its strategy has no steps");
  if (strategy && (word == "epoch" || word == "best" || is_off(word))) {
    t.put(key, word == "epoch" ? "epoch" : "0", *strategy, word == "best" ? Mark::Changed : Mark::Same,
          word == "best" ? "the checkpoint with the best evaluation is kept" : "");
    if (is_off(word)) t.set(key, "0", strategy->written);
  } else if (strategy && word != "steps" && !word.empty()) {
    t.judge(*strategy, Mark::Left, filled("expected no, steps or epoch", *strategy));
  } else if (steps && word == "steps") {
    if (number > 0 && number < 1)
      t.judge(*steps, Mark::Left, filled("it is a share of the run; give it in steps", *steps));
    else if (number < 0)
      t.put(key, key == "eval_every" ? "epoch" : "0", *steps, Mark::Same, key == "eval_every" ? "" : "at the end only");
    else if (!steps->value.empty())
      t.put(key, steps->value, *steps);
    else
      t.judge(*steps, Mark::Same, "nothing stands there");
    if (number < 0) t.set(key, key == "eval_every" ? "epoch" : "0", steps->written);
  }
}

}  // namespace

void finish_validation(Translator& t) {
  const bool always = t.program() == Dialect::OpenRlhf || t.program() == Dialect::Axolotl;
  if (const Setting* run = t.held("run_validation")) {
    if (is_off(run->value))
      t.judge(*run, Mark::Same, "no validation");
    else
      put_always(t, "eval_every", "epoch", *run);
  } else {
    put_cadence(t, "eval_strategy", "eval_steps", "eval_every", always ? "steps" : "");
  }
  const Setting* size = t.held("val_size");
  t.judge_all("val_size", Mark::Same, "none");
  const double share = size ? read_number(size->value).value_or(0) : 0;
  if (share > 0 && share < 1)
    t.put("validation", size->value, *size, Mark::Changed, "other samples are drawn than there");
  else if (size && !is_off(size->value))
    t.judge(*size, Mark::Refused, filled("it counts samples: give validation as their share of all", *size));
  // Of llama-recipes' data sets each has a held-out part, which is yet to be given.
  if (t.has("eval_every") && !t.has("validation") && !t.held("run_validation"))
    t.drop("eval_every", "nothing is held out");
}

namespace {

// Says by which metric a step is the best, and when a run ends without a better one.
void finish_best(Translator& t) {
  for (const Setting* setting : t.all_held("best_metric")) {
    std::string name = setting->value;
    if (!name.starts_with("eval_")) name = "eval_" + name;
    const bool of_preferences = name.starts_with("eval_rewards/") || name.starts_with("eval_logps/");
    if (is_off(setting->value) || name == "eval_loss")
      t.judge(*setting, Mark::Same, "eval_loss, as here");
    else if (of_preferences && t.learns_preferences() && !t.scores() && t.has("validation"))
      t.put("best_metric", name, *setting);
    else
      t.judge(*setting, Mark::Left, std::string(say::kBest));
  }
  for (const Setting* setting : t.all_held("early_stopping")) {
    if (is_off(setting->value))
      t.judge(*setting, Mark::Same, "off, as here");
    else if (!t.has("validation") || !t.has("eval_every"))
      t.judge(*setting, Mark::Decided, "nothing is evaluated on the way");
    else
      t.put("early_stopping", setting->value, *setting);
  }
}

}  // namespace

void finish_saving(Translator& t) {
  finish_best(t);
  put_cadence(t, "save_strategy", "save_steps", "save_every", "steps");
  const Setting* keep = t.held("keep");
  t.judge_all("keep", Mark::Same, "nothing stands there");
  const bool trainer = t.held("save_steps") || t.held("save_strategy");
  if (keep && !is_off(keep->value))
    t.put("keep", keep->value, *keep);
  else if (trainer && t.program() != Dialect::OpenRlhf)
    t.set("keep", "all", "theirs keeps all");
  for (const char* name : {"lc_out", "lc_root", "lc_folder"})
    t.judge_all(name, Mark::Decided, "another directory counts");
  const Setting *out = t.held("lc_out"), *root = t.held("lc_root");
  if (out && (!root || t.on("use_peft")))
    t.put("out", out->value, *out);
  else if (root)
    t.put("out", root->value + "/" + (t.on("lc_folder") ? t.value("lc_folder") : "fine-tuned"), *root);
}

void finish_remarks(Translator& t) {
  if (t.program() == Dialect::DeepSpeed || t.program() == Dialect::Accelerate) return;
  const bool by_pass = t.program() == Dialect::LlamaRecipes || t.program() == Dialect::MiniCpm;
  if (t.program() == Dialect::LlamaFactory && t.task() != "pt" && !t.learns_pairs())
    t.remark(
        "of a sample that is too long LLaMA-Factory cuts prompt and reply by their shares, and leaves out turns that "
        "begin "
        "behind the limit; here its end is cut");
  if (t.program() == Dialect::LlamaFactory && !t.has("overwrite") && !t.has("resume"))
    t.remark("where output_dir holds a checkpoint LLaMA-Factory goes on with it; here resume: true does");
  if (t.program() == Dialect::Axolotl && !t.held("warmup_steps") && !t.held("warmup_ratio"))
    t.remark("no warm-up is named: axolotl takes 3 % of all steps, at most 100, snug 3 %");
  if (by_pass) t.remark("a step's loss is the mean over its tokens, where theirs is the mean of the passes' means");
  t.remark("data's order and initial adapters are drawn otherwise than there: losses compare, and are not equal");
}

}  // namespace snug
