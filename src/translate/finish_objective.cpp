// Makes keys of what is minimised: the objective, its loss and its numbers, its reference.
#include <algorithm>
#include <array>

#include "base/ascii.h"
#include "translate/translator.h"

namespace snug {
namespace {

// What options of objectives are held by. Where nothing below judges one, its objective has no use for it.
constexpr std::array kHeld = {"beta",        "trl_beta",    "orpo_alpha",        "preference_loss", "loss_weights",
                              "dpo_norm",    "nll_weight",  "label_smoothing",   "simpo_gamma",     "desirable",
                              "undesirable", "reference",   "reference_adapter", "ranking",         "center",
                              "margin",      "reward_model"};

// Returns the loss of dpo that a name of theirs means; empty if snug has none.
std::string_view loss_of(std::string_view theirs) {
  for (const std::string_view loss : {"sigmoid", "hinge", "ipo", "robust", "sigmoid_norm", "apo_zero", "apo_down"})
    if (loss == theirs) return loss;
  return "";
}

// Returns a value without what YAML or a shell leaves of a list around it.
std::string without_brackets(std::string text) {
  std::erase_if(text, [](char c) { return c == '[' || c == ']' || c == '"' || c == '\''; });
  return text;
}

std::string word_of(const Translator& t, const char* held) { return lower_case(without_brackets(t.value(held))); }

double number_or(const Translator& t, const char* held, double otherwise) { return t.number(held).value_or(otherwise); }

// ---- Which objective ------------------------------------------------------------------------------------------------

// Judges what the program is asked for, and returns the objective; empty if snug has none such.
std::string find_objective(Translator& t) {
  const std::string& task = t.task();
  const Setting* asked = t.held(t.on("reward_model") ? "reward_model" : "task");
  t.judge_all("task", Mark::Decided, "another one counts");
  const auto judge = [&](Mark mark, const std::string& text) {
    if (asked) t.judge(*asked, mark, text);
  };
  if (t.distills()) {
    judge(Mark::Same, "objective: distill");
    t.set("objective", "distill", asked ? asked->written : task);
    return "distill";
  }
  if (!t.learns_preferences()) {
    const bool known = task == "sft" || task == "pt";
    judge(known ? Mark::Same : Mark::Refused, task == "pt" ? "data_format: text, train_on: all"
                                              : known      ? "as here"
                                                           : std::string(say::kObjective));
    return known ? "sft" : "";
  }
  std::string objective = task == "ipo" ? "dpo" : t.scores() ? "reward" : task;
  const std::string loss = word_of(t, "preference_loss");
  if (t.program() == Dialect::LlamaFactory && task == "dpo" && (loss == "orpo" || loss == "simpo")) objective = loss;
  if (task == "cpo") {
    objective = "simpo";
    if (loss != "simpo") {
      judge(Mark::Refused, "of CPO's losses, which have no reference, snug has simpo");
      return "";
    }
  }
  judge(Mark::Same, "objective: " + objective);
  t.set("objective", objective, asked ? asked->written : task);
  return objective;
}

// Judges options of objectives where there is none that they are of.
void judge_without_objective(Translator& t, bool sft) {
  const bool strict = t.program() == Dialect::Trl || t.program() == Dialect::OpenRlhf;
  for (const char* held : kHeld)
    for (const Setting* setting : t.all_held(held)) {
      if (is_off(setting->value) || setting->is_default)
        t.judge(*setting, Mark::Same, "off, as here");
      else if (!sft)
        t.judge(*setting, Mark::Left, "of an objective that is not translated");
      else if (strict || setting->name == "ranking")
        t.judge(*setting, Mark::Refused,
                setting->name == "ranking"
                    ? "its samples are pairs, and no objective on pairs is asked for"
                    : "sft has no such option: the command says the objective, as in 'trl dpo --config FILE'");
      else
        t.judge(*setting, Mark::Decided, "of an objective that is not asked for");
    }
  if (const Setting* loss = t.held("preference_loss"); sft && loss && t.program() == Dialect::Trl) {
    const std::string word = word_of(t, "preference_loss");
    const bool same = word.empty() || word == "nll" || word == "chunked_nll";
    t.judge(*loss, same ? Mark::Same : Mark::Refused, same ? "as here" : filled(say::kLoss, *loss));
  }
}

// ---- Losses ---------------------------------------------------------------------------------------------------------

struct Loss {
  std::string name;           // of dpo; empty if it is refused
  std::optional<double> nll;  // of a list with sft
};

// Reads one loss, or a list of one and sft with weights.
Loss read_losses(Translator& t, const Setting& setting) {
  const std::vector<std::string> names = items_of(lower_case(without_brackets(setting.value)));
  const Setting* weights = t.held("loss_weights");
  std::vector<std::string> numbers;
  if (weights && !is_off(weights->value)) numbers = items_of(without_brackets(weights->value));
  const auto refuse = [&](const std::string& why) {
    t.judge(setting, Mark::Refused, why);
    if (weights) t.judge(*weights, Mark::Left, "of a loss_type that is not translated");
    return Loss();
  };
  if (!numbers.empty() && numbers.size() != names.size())
    return refuse(fmt::format("found {} losses with {} weights, expected as many", names.size(), numbers.size()));
  Loss result;
  double weight = 1;
  std::optional<double> nll;
  for (size_t i = 0; i < names.size(); i++) {
    const std::optional<double> number = numbers.empty() ? 1 : read_number(numbers[i]);
    if (!number || *number <= 0) return refuse(fmt::format("found weight {}, expected more than 0", numbers[i]));
    const std::string_view ours = loss_of(names[i]);
    if (names[i] == "sft" && !nll) {
      nll = number;
    } else if (ours.empty() || !result.name.empty()) {
      return refuse(ours.empty() ? fmt::format("snug has no preference_loss {}: sigmoid, cdpo, robust, hinge, ipo, "
                                               "sigmoid_norm, apo_zero and apo_down it has",
                                               one_line(names[i]))
                                 : "snug minimises one loss of pairs, with nll_weight beside it");
    } else {
      result.name = ours, weight = *number;
    }
  }
  if (result.name.empty()) return refuse("expected a loss of pairs");
  if (nll) result.nll = *nll / weight;
  if (weights)
    t.judge(*weights, weight == 1 ? Mark::Same : Mark::Changed,
            weight == 1
                ? "nll_weight"
                : fmt::format("all is divided by {}, which AdamW does not see, but max_grad_norm and epsilon do",
                              number_text(weight)));
  return result;
}

constexpr std::string_view kNllMean =
    "the chosen replies' cross-entropy, a mean over the step's tokens here, and of pairs or passes there";

// Writes the loss of dpo, and the weight of the cross-entropy that its list may have.
std::string finish_preference_loss(Translator& t) {
  const Setting* setting = t.held("preference_loss");
  const bool ipo = t.task() == "ipo", norm = t.on("dpo_norm");
  if (ipo || norm) {
    const std::string loss = ipo ? "ipo" : "sigmoid_norm";
    if (const Setting* from = ipo ? t.held("task") : t.held("dpo_norm"))
      t.put("preference_loss", loss, *from, Mark::Same, ipo ? "objective: dpo" : "log-ratios are means a token");
    return loss;
  }
  if (!setting || is_off(setting->value)) {
    if (setting) t.judge(*setting, Mark::Same, "preference_loss: sigmoid");
    return "sigmoid";
  }
  const Loss loss = read_losses(t, *setting);
  if (loss.name.empty()) return "";
  t.put("preference_loss", loss.name, *setting);
  if (loss.nll && t.put("nll_weight", number_text(*loss.nll), *setting))
    t.judge(*setting, Mark::Changed,
            fmt::format("preference_loss: {}, nll_weight: {}; {}", loss.name, number_text(*loss.nll), kNllMean));
  return loss.name;
}

// Label smoothing is a loss of its own here; with sigmoid what it does there depends on the program and its version.
void finish_label_smoothing(Translator& t, const std::string& objective, const std::string& loss) {
  const Setting* setting = t.held("label_smoothing");
  if (!setting) return;
  if (is_off(setting->value)) return t.judge(*setting, Mark::Same, "off, as here");
  if (objective == "dpo" && number_or(t, "label_smoothing", 0) >= 0.5)
    return t.judge(*setting, Mark::Refused,
                   filled("expected less than 0.5: more are no share that is wrong", *setting));
  const bool versions = t.program() == Dialect::Trl || t.program() == Dialect::Axolotl;
  if (objective == "simpo" && t.task() == "cpo") {
    t.judge(*setting, Mark::Refused, "label_smoothing is of preference_loss cdpo and robust, not of simpo");
  } else if (objective != "dpo") {
    return;  // no use there either
  } else if (loss == "robust") {
    t.put("label_smoothing", setting->value, *setting);
  } else if (loss == "sigmoid") {
    const std::string text = versions ? "preference_loss: cdpo, which it meant in TRL before 1.0; since 1.0 it does "
                                        "nothing with sigmoid: leave it out for that"
                                      : "preference_loss: cdpo";
    if (t.put("label_smoothing", setting->value, *setting, versions ? Mark::Changed : Mark::Same, text))
      t.set("preference_loss", "cdpo", setting->written);
  } else {
    t.judge(*setting, Mark::Decided, "this loss has no use for it, there as here");
  }
}

// Transformers' option, of the cross-entropy of its own trainer.
void finish_smoothing_factor(Translator& t, const std::string& objective) {
  for (const Setting* setting : t.all_held("smoothing_factor")) {
    if (is_off(setting->value))
      t.judge(*setting, Mark::Same, "off, as here");
    else if (objective == "sft")
      t.put("label_smoothing", setting->value, *setting, Mark::Same,
            "what is held out has the cross-entropy alone here");
    else
      t.judge(*setting, objective.empty() ? Mark::Left : Mark::Decided,
              objective.empty() ? "of an objective that is not translated"
                                : "this objective has no use for it, there as here");
  }
}

// ---- Numbers --------------------------------------------------------------------------------------------------------

void finish_beta(Translator& t, const std::string& objective) {
  const Setting* counts = nullptr;
  for (const char* held : {"trl_beta", "beta", "orpo_alpha"}) {
    t.judge_all(held, Mark::Decided, "another one counts");
    const Setting* setting = t.held(held);
    if (setting && !setting->value.empty() && lower_case(setting->value) != "null" &&
        (!counts || (counts->is_default && !setting->is_default)))
      counts = setting;
  }
  if (counts) t.put("beta", counts->value, *counts, Mark::Same, objective == "orpo" ? "the weight of the odds" : "");
}

void finish_nll_weight(Translator& t, const std::string& objective) {
  const Setting* setting = t.held("nll_weight");
  if (!setting) return;
  const double weight = number_or(t, "nll_weight", 0);
  if (is_off(setting->value)) {
    t.judge(*setting, Mark::Same, "off, as here");
  } else if (objective == "kto") {
    t.judge(*setting, Mark::Refused, "kto has no cross-entropy beside its loss here");
  } else if (objective == "orpo" && weight > 0) {  // LLaMA-Factory's, on top of what the loss has
    t.put("nll_weight", number_text(1 + weight), *setting, Mark::Changed, "with the 1 that orpo has by itself");
  } else {
    t.put("nll_weight", setting->value, *setting, setting->is_default ? Mark::Same : Mark::Changed,
          std::string(kNllMean));
  }
}

void finish_number(Translator& t, const char* held, std::string_view key) {
  if (const Setting* setting = t.held(held)) {
    if (setting->value.empty())
      t.judge(*setting, Mark::Same, "nothing stands there");
    else
      t.put(key, setting->value, *setting);
  }
}

void finish_kto_loss(Translator& t) {
  const Setting* loss = t.held("preference_loss");
  if (!loss || t.program() == Dialect::LlamaFactory) return;
  const bool same = is_off(loss->value) || word_of(t, "preference_loss") == "kto";
  t.judge(*loss, same ? Mark::Same : Mark::Refused, same ? "as here" : filled("snug's loss of kto is kto", *loss));
}

// ---- References -----------------------------------------------------------------------------------------------------

std::string model_of(const Translator& t) { return t.has("model") ? t.value_of("model") : ""; }

void finish_reference(Translator& t) {
  const Setting *model = t.held("reference"), *adapter = t.held("reference_adapter");
  const bool same = !model || is_off(model->value) || yaml_text(model->value) == model_of(t);
  if (model && same)
    t.judge(*model, Mark::Same, "the model as it is before the first step");
  else if (model)
    t.put("reference", yaml_text(model->value), *model);
  if (!adapter) return;
  if (is_off(adapter->value))
    t.judge(*adapter, Mark::Same, "none");
  else if (same && t.has("adapter") && adapter->value == t.value("adapter"))
    t.put("reference", "adapter", *adapter);
  else
    t.judge(*adapter, Mark::Refused,
            filled("the reference has the adapter that is continued, or none; another is not supported yet", *adapter));
}

// ---- Scores ---------------------------------------------------------------------------------------------------------

void finish_scores(Translator& t) {
  finish_number(t, "center", "center_coefficient");
  if (const Setting* margin = t.held("margin"))
    t.judge(*margin, is_off(margin->value) ? Mark::Decided : Mark::Same,
            is_off(margin->value) ? "a pair's margin counts where the data has one" : "a pair's margin counts");
  if (t.program() == Dialect::LlamaFactory)
    t.remark(
        "the score is a head of its own beside the language model's there (a value head); here it takes that one's "
        "place, as in transformers' sequence classifiers");
  if (t.program() == Dialect::OpenRlhf && !t.held("margin"))
    t.remark("a margin that the data gives a pair counts here; there only with --margin_loss");
}

// ---- What is otherwise ----------------------------------------------------------------------------------------------

void remark_on_objective(Translator& t, const std::string& objective) {
  const bool trl = t.program() == Dialect::Trl || t.program() == Dialect::Axolotl;
  if (objective == "orpo" && trl)
    t.remark("the cross-entropy of orpo is of prompt and reply in TRL, of the chosen reply here");
  if (objective == "kto")
    t.remark(
        "kto takes a step's distance from the reference, once a step, of the replies that come next in the data; "
        "theirs "
        "takes it in each pass of each rank, of that pass's replies");
  if (t.learns_pairs())
    t.remark(t.has("long_samples") && t.value_of("long_samples") == "drop"
                 ? "a pair is left out where both halves together are too long here, where either is there"
                 : "of a pair that is too long both prompts lose tokens at their beginning here; theirs cuts ends, or "
                   "leaves it out");
  if (t.program() == Dialect::Axolotl && t.on("adapter") && (objective == "dpo" || objective == "kto"))
    t.remark("the reference is the model without an adapter; reference: adapter takes the one that is continued");
}

}  // namespace

void finish_objective(Translator& t) {
  const std::string objective = find_objective(t);
  finish_smoothing_factor(t, objective);
  if (objective != "distill") judge_without_distillation(t);
  if (objective.empty() || objective == "sft") return judge_without_objective(t, objective == "sft");
  for (const char* held : kHeld)
    for (const Setting* setting : t.all_held(held))
      t.judge(*setting, is_off(setting->value) ? Mark::Same : Mark::Decided,
              is_off(setting->value) ? "off, as here" : fmt::format("objective {} has no use for it", objective));
  if (objective == "distill") return finish_distillation(t);
  t.judge_all("ranking", t.learns_pairs() ? Mark::Same : Mark::Refused,
              t.learns_pairs() ? "found by looking" : "its samples are pairs, and replies with labels are asked for");
  std::string loss;
  if (objective == "dpo") {
    loss = finish_preference_loss(t);
  } else if (objective == "kto") {
    finish_kto_loss(t);
  } else if (const Setting* from = t.held("preference_loss")) {
    t.judge(*from, Mark::Same, "objective: " + objective);
  }
  finish_beta(t, objective);
  finish_label_smoothing(t, objective, loss);
  finish_nll_weight(t, objective);
  if (objective == "simpo") finish_number(t, "simpo_gamma", "simpo_gamma");
  if (objective == "kto") {
    finish_number(t, "desirable", "desirable_weight");
    finish_number(t, "undesirable", "undesirable_weight");
  }
  if (objective == "dpo" || objective == "kto") finish_reference(t);
  if (objective == "reward") finish_scores(t);
  // What is said of other data is of no use beside pairs and labels.
  for (const char* key : {"train_on", "data_format"})
    if (t.has(key)) t.drop(key, "replies are what is judged");
  remark_on_objective(t, objective);
}

}  // namespace snug
