// Makes keys of what is trained and in which numbers.
#include <algorithm>

#include "base/ascii.h"
#include "translate/translator.h"

namespace snug {
namespace {

// Puts a number of DeepSpeed's, where "auto" is the trainer's.
void put_number(Translator& t, const char* name, const char* key) {
  t.judge_all(name, Mark::Decided, "the trainer's own number counts");
  if (const Setting* setting = t.held(name); setting && read_number(setting->value))
    t.put(key, setting->value, *setting);
}

void put_betas(Translator& t, const char* name) {
  const Setting* setting = t.held(name);
  if (!setting) return;
  const std::vector<std::string> betas = items_of(setting->value);
  if (setting->value == "auto" || betas.empty()) {
    t.judge(*setting, Mark::Decided, "the trainer's own numbers count");
  } else if (betas.size() != 2) {
    t.judge(*setting, Mark::Refused, filled("expected two numbers", *setting));
  } else if (t.put("beta1", betas[0], *setting) && t.put("beta2", betas[1], *setting)) {
    t.judge(*setting, Mark::Same, fmt::format("beta1: {}, beta2: {}", betas[0], betas[1]));
  }
}

// Returns how many bits an optimizer keeps its state in, 0 if it is none of AdamW's kind.
int bits_of(std::string_view optimizer) {
  std::string word = lower_case(optimizer);
  if (const size_t dot = word.rfind('.'); dot != word.npos) word.erase(0, dot + 1);
  if (word == "anyprecision" || word == "adamw_anyprecision") return 16;
  if (word != "adam" && word.find("adamw") == std::string::npos) return 0;
  for (const char* other :
       {"ademamix", "adopt", "4bit", "fp8", "stable", "schedule_free", "layerwise", "galore", "apollo"})
    if (word.find(other) != std::string::npos) return 0;
  return word.find("8bit") != std::string::npos ? 8 : 32;
}

bool is_lion(const std::string& optimizer) {
  const std::string word = lower_case(optimizer);
  return word == "lion" || word == "lion_32bit" || word == "paged_lion_32bit" || word == "lion_pytorch";
}

// Theirs hands AdamW's numbers to Lion, where nothing says others; DeepSpeed has Lion's.
void put_lion(Translator& t, const Setting& setting, bool with_adams_numbers) {
  t.put("optimizer", "lion", setting);
  if (with_adams_numbers && !t.has("beta2"))
    t.put("beta2", "0.999", setting, Mark::Same, "with AdamW's beta2 of 0.999");
}

// Their warm-up is the schedule's and, in steps, the optimizer's besides.
void put_schedule_free(Translator& t, const Setting& setting) {
  const bool twice = t.has("warmup_steps");
  t.put("optimizer", "schedule_free_adamw", setting, twice ? Mark::Changed : Mark::Same,
        twice ? "the rate warms up once, theirs by schedule and optimizer both" : "");
}

void put_muon(Translator& t, const Setting& setting) {
  t.put("optimizer", "muon", setting, Mark::Changed,
        "rates of matrices times 0.2 sqrt(max(rows, columns)), whatever theirs are multiplied by");
}

// Puts what is held of APOLLO, and else `defaults`, theirs: names of snug's keys without "apollo_", and values.
void put_apollo(Translator& t, const Setting& setting, const std::map<std::string, std::string>& defaults,
                const std::string& text) {
  t.put("optimizer", "apollo", setting, Mark::Changed, text);
  for (const auto& [name, value] : defaults) {
    const std::string key = "apollo_" + name;
    if (const Setting* const given = t.held(key))
      t.put(key, given->value, *given);
    else
      t.set(key, value, setting.written + ", their default");
  }
}

// Theirs updates a layer as soon as its gradient is there, and so clips nothing.
void put_layerwise(Translator& t, const Setting& setting, const std::string& verdict) {
  if (t.has("max_grad_norm")) t.drop("max_grad_norm", "layer by layer theirs clips nothing");
  t.set("max_grad_norm", "0", setting.written);
  t.judge(setting, Mark::Changed, verdict + "max_grad_norm: 0, as theirs clips nothing layer by layer");
}

// Transformers' trainer hands APOLLO no weight decay, and an untied head too.
void put_transformers_apollo(Translator& t, const Setting& setting) {
  const std::string text =
      "projections are drawn otherwise; an untied head has adamw, and what has adamw has its numbers, where theirs "
      "has 0.9, 0.999 and 1e-6";
  put_apollo(t, setting, {{"rank", "128"}, {"update_interval", "200"}, {"scale", "1"}, {"scale_type", "channel"}},
             text);
  if (t.has("weight_decay")) t.drop("weight_decay", "theirs does not hand it to apollo");
  if (lower_case(setting.value).ends_with("layerwise")) put_layerwise(t, setting, "optimizer: apollo; " + text + "; ");
}

void put_llama_factory_apollo(Translator& t) {
  t.judge_all("use_apollo", Mark::Same, "off, as here");
  t.judge_all("apollo_layerwise", t.on("apollo_layerwise") ? Mark::Left : Mark::Same, "off, as here");
  if (!t.on("use_apollo")) return;
  put_apollo(t, *t.held("use_apollo"),
             {{"rank", "16"}, {"update_interval", "200"}, {"scale", "32"}, {"scale_type", "channel"}},
             "projections are drawn otherwise, and weights decay before a step");
  if (t.on("apollo_layerwise")) put_layerwise(t, *t.held("apollo_layerwise"), "");
}

// Reads transformers' "rank=128,scale=1.0" for APOLLO; for Adafactor theirs reads nothing there.
void finish_optimizer_arguments(Translator& t, const std::string& optimizer) {
  const Setting* const setting = t.held("optim_args");
  if (!setting) return;
  if (optimizer == "adafactor") return t.judge(*setting, Mark::Same, "theirs reads nothing here for adafactor");
  const std::map<std::string, std::string> keys{{"rank", "apollo_rank"},
                                                {"update_proj_gap", "apollo_update_interval"},
                                                {"scale", "apollo_scale"},
                                                {"scale_type", "apollo_scale_type"}};
  std::string shown;
  for (const std::string& item : items_of(setting->value)) {
    const size_t equals = item.find('=');
    const std::string name = item.substr(0, equals), value = equals == item.npos ? "" : item.substr(equals + 1);
    const auto key = keys.find(name);
    if (optimizer != "apollo") return t.judge(*setting, Mark::Refused, filled(say::kOptimizer, *setting));
    if ((name == "proj" && value == "random") || (name == "proj_type" && value == "std")) continue;
    if (key == keys.end())
      return t.judge(*setting, Mark::Refused,
                     fmt::format("apollo projects at random, the smaller side: found {}", item));
    if (!t.put(key->second, value, *setting)) return;
    shown += fmt::format("{}{}: {}", shown.empty() ? "" : ", ", key->second, value);
  }
  t.judge(*setting, Mark::Same, shown.empty() ? "as here" : shown);
}

bool is_transformers_apollo(const std::string& optimizer) {
  const std::string word = lower_case(optimizer);
  return word == "apollo_adamw" || word == "apollo_adamw_layerwise";
}

std::string optimizer_of(const Translator& t) { return t.has("optimizer") ? t.value_of("optimizer") : "adamw"; }

void finish_one_optimizer(Translator& t, const char* name) {
  for (const Setting* setting : t.all_held(name)) {
    const int bits = bits_of(setting->value);
    if (setting->value.empty())
      t.judge(*setting, Mark::Same, "nothing stands there");
    else if (is_lion(setting->value))
      put_lion(t, *setting, name == std::string_view("optimizer"));
    else if (lower_case(setting->value) == "schedule_free_adamw")
      put_schedule_free(t, *setting);
    else if (lower_case(setting->value) == "muon")
      put_muon(t, *setting);
    else if (lower_case(setting->value) == "adafactor")
      t.put("optimizer", "adafactor", *setting);
    else if (is_transformers_apollo(setting->value))
      put_transformers_apollo(t, *setting);
    else if (bits == 8)
      t.put("state_format", "8bit", *setting, Mark::Changed, "moments are codes of 8 bits in blocks of snug's own");
    else if (bits == 16)
      t.put("state_format", "bf16", *setting, Mark::Changed, "states are rounded stochastically");
    else if (bits == 32)
      t.judge(*setting, Mark::Same, "AdamW");
    else
      t.judge(*setting, Mark::Refused, filled(say::kOptimizer, *setting));
  }
}

}  // namespace

void finish_optimizer(Translator& t) {
  finish_one_optimizer(t, "optimizer");
  finish_one_optimizer(t, "ds_optimizer");
  t.judge_all("use_muon", Mark::Same, "off, as here");
  if (const Setting* const muon = t.held("use_muon"); muon && !is_off(muon->value)) put_muon(t, *muon);
  t.judge_all("adafactor", Mark::Same, "off, as here");
  if (t.on("adafactor")) t.put("optimizer", "adafactor", *t.held("adafactor"));
  put_llama_factory_apollo(t);
  finish_optimizer_arguments(t, optimizer_of(t));
  for (const char* key : {"apollo_rank", "apollo_update_interval", "apollo_scale", "apollo_scale_type"})
    if (optimizer_of(t) != "apollo") t.judge_all(key, Mark::Left, "it is of apollo");
  put_betas(t, "betas");
  put_betas(t, "ds_betas");
  put_number(t, "ds_lr", "learning_rate");
  put_number(t, "ds_eps", "epsilon");
  put_number(t, "ds_decay", "weight_decay");
  if (optimizer_of(t) == "adafactor")
    for (const char* key : {"beta1", "beta2", "epsilon"})
      if (t.has(key)) t.drop(key, "adafactor has none of AdamW's numbers, there as here");
  put_number(t, "ds_clipping", "max_grad_norm");
  t.judge_all("clipping_threshold", Mark::Decided, "gradient_clipping is off");
  t.judge_all("clipping", Mark::Same, "on");
  const Setting *clipping = t.held("clipping"), *threshold = t.held("clipping_threshold");
  if (clipping && is_off(clipping->value))
    t.put("max_grad_norm", "0", *clipping);
  else if (clipping)
    t.put("max_grad_norm", threshold ? threshold->value : "1.0", threshold ? *threshold : *clipping);
}

// ---- Numbers --------------------------------------------------------------------------------------------------------

void finish_numerics(Translator& t) {
  constexpr const char* kHalf =
      "there is no fp16: bf16 takes its place, without a loss scale, with 3 bits less in the mantissa";
  bool said = false;
  for (const char* name : {"mixed_precision", "ds_bf16", "bf16", "param_dtype"})
    for (const Setting* setting : t.all_held(name)) {
      const std::string word = lower_case(setting->value);
      if (word == "fp16" || word == "float16") {
        t.put("compute", "bf16", *setting, Mark::Changed, kHalf), said = true;
      } else if (word == "fp8") {
        t.put("compute", "fp8", *setting), said = true;
      } else if (is_on(word) || word == "bf16" || word == "bfloat16" ||
                 (word == "auto" && setting->dialect == Dialect::Axolotl)) {
        t.put("compute", "bf16", *setting), said = true;
      } else {
        t.judge(*setting, is_off(word) ? Mark::Same : Mark::Decided,
                is_off(word) ? "off" : "the trainer's word counts");
      }
    }
  for (const char* name : {"ds_fp16", "fp16"})
    for (const Setting* setting : t.all_held(name)) {
      if (is_on(setting->value))
        t.put("compute", "bf16", *setting, Mark::Changed, kHalf), said = true;
      else
        t.judge(*setting, is_off(setting->value) ? Mark::Same : Mark::Decided,
                is_off(setting->value) ? "off" : "the trainer's word counts");
    }
  for (const char* name : {"pure_bf16", "ds_pure_bf16"})
    for (const Setting* setting : t.all_held(name)) {
      if (is_on(setting->value))
        t.put("state_format", "bf16", *setting, Mark::Changed, "states are rounded stochastically"), said = true;
      else
        t.judge(*setting, Mark::Same, "off, as here");
    }
  for (const Setting* setting : t.all_held("fp8")) {
    if (is_off(setting->value))
      t.judge(*setting, Mark::Same, "off, as here");
    else
      t.put("compute", "fp8", *setting), said = true;
  }
  if (optimizer_of(t) != "adamw" && t.has("state_format"))
    t.drop("state_format", optimizer_of(t) + "'s states are in fp32, and so are weights in value");
  const bool asks = t.program() == Dialect::LlamaFactory || t.program() == Dialect::Trainer ||
                    t.program() == Dialect::MiniCpm || t.program() == Dialect::OpenRlhf;
  if (!said && asks)
    t.remark("neither bf16 nor fp16 is asked for: snug computes in bf16; compute: fp32 is the other choice");
}

// ---- Method ---------------------------------------------------------------------------------------------------------

namespace {

enum class Method : uint8_t { Lora, Full, Unknown };

Method judge_method(Translator& t, const Setting& setting, bool lora) {
  t.put("method", lora ? "lora" : "full", setting);
  if (setting.is_default) t.set("method", lora ? "lora" : "full", setting.written + ", their default");
  return lora ? Method::Lora : Method::Full;
}

Method find_method(Translator& t) {
  if (const Setting* use = t.held("use_peft")) return judge_method(t, *use, !is_off(use->value));
  if (const Setting* rank = t.held("or_rank")) {
    if (is_off(rank->value)) return judge_method(t, *rank, false);
    t.set("method", "lora", rank->written);
    t.put("lora_rank", rank->value, *rank);
    return Method::Lora;
  }
  if (const Setting* adapter = t.held("axolotl_adapter")) {
    const std::string word = lower_case(adapter->value);
    if (word.empty() || word == "lora" || word == "qlora") return judge_method(t, *adapter, !word.empty());
    t.judge(*adapter, Mark::Refused, filled(say::kAdapterKind, *adapter));
    return Method::Unknown;
  }
  if (const Setting* method = t.held("method")) {
    const std::string word = lower_case(method->value);
    if (word == "lora" || word == "full") return judge_method(t, *method, word == "lora");
    t.judge(*method, Mark::Refused, filled(word == "freeze" ? say::kParts : say::kAdapterKind, *method));
    return Method::Unknown;
  }
  const bool trains = t.program() != Dialect::DeepSpeed && t.program() != Dialect::Accelerate;
  if (trains) t.set("method", "full", "no adapter is asked for");
  return trains ? Method::Full : Method::Unknown;
}

// Returns the names that a regular expression ends with, as "...self_attn\.(q_proj|k_proj)" does; empty if it does not.
std::vector<std::string> names_at_end(std::string_view expression) {
  const size_t open = expression.rfind('(');
  if (open == std::string_view::npos || !expression.ends_with(')')) return {};
  std::string names(expression.substr(open + 1, expression.size() - open - 2));
  std::ranges::replace(names, '|', ',');
  const bool plain = std::ranges::all_of(
      names, [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == ','; });
  return plain ? items_of(names) : std::vector<std::string>();
}

void put_targets(Translator& t, const Setting& setting) {
  std::string text = setting.value;
  std::erase_if(text, [](char c) { return c == '[' || c == ']' || c == '"'; });
  const std::string word = lower_case(text);
  if (word == "all" || word == "all-linear" || word == "all_linear") {
    t.put("lora_targets", "all", setting);
    if (!t.has("lora_targets") || setting.is_default) t.set("lora_targets", "all", setting.written);
    t.set("lora_targets", "all", setting.written);
    return;
  }
  std::vector<std::string> names = text.find('(') != std::string::npos ? names_at_end(text) : items_of(text);
  const bool plain = !names.empty() && std::ranges::all_of(names, [](const std::string& name) {
    return name.find_first_of("*+?\\^$|(){}") == std::string::npos;
  });
  const bool outside = std::ranges::any_of(names, [](const std::string& name) {
    return name == "all" || name.find("embed") != std::string::npos || name.find("lm_head") != std::string::npos;
  });
  if (!plain || outside) {
    t.judge(setting, Mark::Refused,
            filled("expected names of linears of layers, such as q_proj,v_proj, or all", setting));
    return;
  }
  t.set_list("lora_targets", names, setting.is_default ? setting.written + ", their default" : setting.written);
  std::string shown;
  for (const std::string& name : names) shown += (shown.empty() ? "" : ", ") + name;
  t.judge(setting, Mark::Same, "lora_targets: " + one_line(shown));
}

void finish_targets(Translator& t) {
  const Setting *targets = t.held("lora_targets"), *linear = t.held("target_linear");
  t.judge_all("lora_targets", Mark::Same, "nothing stands there");
  t.judge_all("target_linear", Mark::Same, "off");
  if (linear && is_on(linear->value)) {
    t.put("lora_targets", "all", *linear);
    t.set("lora_targets", "all", linear->written);
  } else if (targets && !targets->value.empty()) {
    put_targets(t, *targets);
  } else {
    t.set_list("lora_targets", {"q_proj", "v_proj"}, "PEFT's own choice for such models");
    t.remark("no targets of adapters are named: PEFT's own choice for most models is written, q_proj and v_proj");
  }
}

// TRL and what is made of it switch every dropout off where preferences are learnt, that of adapters too.
bool drops_nothing(const Translator& t) {
  const bool keeps = t.held("disable_dropout") && !t.on("disable_dropout");
  return (t.learns_preferences() || t.distills()) && t.program() != Dialect::OpenRlhf && t.task() != "rm" && !keeps;
}

void finish_dropout(Translator& t) {
  for (const Setting* setting : t.all_held("lora_dropout")) {
    if (setting->value.empty())
      t.judge(*setting, Mark::Same, "nothing stands there");
    else if (drops_nothing(t) && !is_off(setting->value))
      t.put("lora_dropout", "0", *setting, Mark::Changed,
            t.distills() ? "GKD learns without any dropout there" : "preferences are learnt without any dropout there");
    else
      t.put("lora_dropout", setting->value, *setting);
  }
}

// Judges what adapters begin with: PEFT's init_lora_weights, or a switch for PiSSA.
void finish_lora_init(Translator& t, const Setting& setting) {
  const std::string word = lower_case(setting.value);
  const bool pissa = word.starts_with("pissa") || (setting.name == "pissa_init" && is_on(word));
  if (word.empty() || (is_off(word) && setting.name == "pissa_init") || (is_on(word) && !pissa))
    t.judge(setting, Mark::Same, "A is drawn, B is 0, as here");
  else if (pissa || word == "olora")
    t.put("lora_init", pissa ? "pissa" : "olora", setting);
  else
    t.judge(setting, Mark::Refused, filled("adapters begin as PEFT's default, PiSSA or OLoRA have it", setting));
}

void finish_adapter_options(Translator& t) {
  for (const Setting* setting : t.all_held("lora_rank")) {
    if (setting->value.empty())
      t.judge(*setting, Mark::Same, "nothing stands there");
    else
      t.put("lora_rank", setting->value, *setting);
  }
  finish_dropout(t);
  const Setting* alpha = t.held("lora_alpha");
  t.judge_all("lora_alpha", Mark::Same, "nothing stands there");
  if (alpha && !alpha->value.empty()) {
    t.put("lora_alpha", alpha->value, *alpha);
  } else if (t.program() == Dialect::LlamaFactory && t.number("lora_rank")) {
    t.set("lora_alpha", number_text(2 * *t.number("lora_rank")), "their default, twice the rank");
  }
  for (const auto& [name, key] : {std::pair("rslora", "lora_rslora"), std::pair("dora", "lora_dora")})
    for (const Setting* setting : t.all_held(name)) {
      if (is_off(setting->value))
        t.judge(*setting, Mark::Same, "off, as here");
      else
        t.put(key, "true", *setting);
    }
  for (const char* name : {"pissa", "lora_init"})
    for (const Setting* setting : t.all_held(name)) finish_lora_init(t, *setting);
  for (const Setting* setting : t.all_held("lora_plus")) {
    if (is_off(setting->value))
      t.judge(*setting, Mark::Same, "off, as here");
    else
      t.put("lora_plus_ratio", setting->value, *setting);
  }
  for (const Setting* setting : t.all_held("modules_to_save")) {
    std::string text = setting->value;
    std::erase_if(text, [](char c) { return c == '[' || c == ']' || c == '"' || c == '\''; });
    const std::vector<std::string> names = items_of(text);
    if (!is_off(text) && !names.empty()) t.set_list("modules_to_save", names, setting->written);
    t.judge(*setting, Mark::Same,
            is_off(text) || names.empty() ? "none" : fmt::format("modules_to_save: {}", one_line(text)));
  }
  finish_targets(t);
}

// Returns snug's format for bits or a word, empty if it has none.
std::string format_of(const std::string& value) {
  const std::string word = lower_case(value);
  for (const char* eight : {"8", "8bit", "int8", "true"})
    if (word == eight) return "int8";
  for (const char* four : {"4", "4bit", "int4", "nf4"})
    if (word == four) return "nf4";
  return "";
}

void finish_base(Translator& t, Method method) {
  const auto put = [&](const Setting& setting, const std::string& format) {
    if (method == Method::Full)
      t.judge(setting, Mark::Refused, filled("all weights are trained, and none can be quantised", setting));
    else if (format.empty())
      t.judge(setting, Mark::Refused, filled("snug's base_format is int8, nf4 or fp8", setting));
    else
      t.put("base_format", format, setting);
  };
  for (const Setting* setting : t.all_held("bits")) {
    if (is_off(setting->value))
      t.judge(*setting, Mark::Same, "off");
    else
      put(*setting, format_of(setting->value));
  }
  for (const auto& [held, format] : {std::pair("load_in_8bit", "int8"), {"load_in_4bit", "nf4"}})
    for (const Setting* setting : t.all_held(held)) {
      if (is_off(setting->value))
        t.judge(*setting, Mark::Same, "off");
      else
        put(*setting, format);
    }
  for (const Setting* setting : t.all_held("ds_quantized")) {
    if (is_off(setting->value))
      t.judge(*setting, Mark::Same, "off");
    else if (method == Method::Full)
      put(*setting, "int8");
    else
      t.put("base_format", "int8", *setting, Mark::Changed, "scales are of rows, not of its blocks");
  }
  const bool nf4 = t.has("base_format") && t.value_of("base_format") == "nf4";
  for (const Setting* setting : t.all_held("quant_type")) {
    const bool same = lower_case(setting->value) == "nf4" || is_off(setting->value);
    t.judge(*setting,
            !nf4   ? Mark::Decided
            : same ? Mark::Same
                   : Mark::Changed,
            !nf4   ? "nothing is in 4 bits"
            : same ? "as here"
                   : "nf4 takes its place, at the same size");
  }
  for (const Setting* setting : t.all_held("double_quant"))
    t.judge(*setting,
            !nf4                    ? Mark::Decided
            : is_on(setting->value) ? Mark::Same
                                    : Mark::Changed,
            !nf4                    ? "nothing is in 4 bits"
            : is_on(setting->value) ? "as here"
                                    : "scales of nf4 are always quantised in their turn");
}

void finish_start(Translator& t) {
  for (const Setting* setting : t.all_held("adapter")) {
    if (is_off(setting->value))
      t.judge(*setting, Mark::Same, "none");
    else if (setting->value.find(',') != std::string::npos)
      t.judge(*setting, Mark::Refused, filled("snug merge puts all but one into the model first", *setting));
    else
      t.put("adapter", setting->value, *setting);
  }
  for (const Setting* setting : t.all_held("from_scratch")) {
    if (is_off(setting->value))
      t.judge(*setting, Mark::Same, "off, as here");
    else
      t.put("init", "random", *setting);
  }
}

// Says which parts of MiniCPM-V are trained. Its finetune.py never freezes the resampler; beside adapters of the
// language model it trains whole modules: the embedding and the resampler, and the tower if that is tuned.
void finish_parts_of_minicpm(Translator& t, Method method) {
  const bool lora = method == Method::Lora;
  const Setting *vision = t.held("tune_vision"), *llm = t.held("tune_llm");
  const bool tuned = vision && !is_off(vision->value);
  if (vision && !lora)
    t.put("freeze_vision_tower", tuned ? "false" : "true", *vision);
  else if (vision)
    t.judge(*vision, Mark::Same, tuned ? "modules_to_save: vpm" : "the tower is frozen");
  t.set("freeze_projector", "false", "its resampler is always trained");
  if (lora)
    t.set_list("modules_to_save",
               tuned ? std::vector<std::string>{"embed_tokens", "vpm"} : std::vector<std::string>{"embed_tokens"},
               tuned ? "beside adapters, with tune_vision" : "beside adapters");
  if (!llm) return;
  if (lora)
    t.judge(*llm, Mark::Same, "the language model has adapters");
  else
    t.put("freeze_language_model", is_off(llm->value) ? "true" : "false", *llm);
}

}  // namespace

void finish_method(Translator& t) {
  const Method method = find_method(t);
  for (const char* name : {"use_peft", "or_rank", "axolotl_adapter", "method"})
    for (const Setting* setting : t.all_held(name))
      if (setting != t.held(name)) t.judge(*setting, Mark::Decided, "another one counts");
  if (method == Method::Lora) {
    finish_adapter_options(t);
  } else {
    for (const char* name : {"lora_rank", "lora_alpha", "lora_dropout", "lora_targets", "rslora", "dora",
                             "target_linear", "lora_plus", "modules_to_save", "pissa", "lora_init"})
      t.judge_all(name, Mark::Decided, "nothing has adapters");
  }
  for (const Setting* setting : t.all_held("neftune")) {
    if (is_off(setting->value))
      t.judge(*setting, Mark::Same, "off, as here");
    else
      t.put("neftune_noise_alpha", setting->value, *setting, Mark::Changed,
            "scaled by the tokens of a document; there by those of the longest of a pass, with padding");
  }
  t.judge_all("disable_dropout", Mark::Same, "dropout is on adapters alone");
  finish_base(t, method);
  finish_start(t);
  if (t.program() == Dialect::MiniCpm) finish_parts_of_minicpm(t, method);
}

}  // namespace snug
