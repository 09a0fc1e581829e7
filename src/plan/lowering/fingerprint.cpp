#include "plan/lowering/fingerprint.h"

#include <algorithm>

#include "base/hash.h"
#include "format/peft_fields.h"
#include "model/spec_fields.h"

namespace snug {

namespace {

// Returns the names of linears of a quantised base that its files hold as numbers, and that therefore stay so.
std::string plain_linears(const JobSpec& spec) {
  if (!spec.numerics.quantized_base()) return "";
  const std::vector<Form> forms = forms_of(spec);
  std::vector<std::string_view> names;
  for (size_t i = 0; i < forms.size(); i++)
    if (spec.table.params[i].linear && forms[i] != Form::Quantized) names.push_back(spec.table.params[i].name);
  return names.empty() ? ""
                       : fmt::format("{} ({})", names.size(), hex(hash_of(fmt::format("{}", fmt::join(names, " ")))));
}

}  // namespace

Fields fields_of(const JobSpec& spec) {
  Fields fields;
  const bool adapters = std::ranges::any_of(spec.table.params, &ParamSpec::adapter);
  fields.push_back({std::string(kMethodFields), "method", adapters ? "lora" : "full"});
  if (spec.rules.adapter) add_fields(fields, kMethodFields, *spec.rules.adapter);
  add_fields(fields, kMethodFields, spec.rules);
  add_fields(fields, kModelFields, spec.model);
  add_fields(fields, kNumericsFields, spec.numerics);
  fields.push_back({std::string(kNumericsFields), "linears that are not quantised", plain_linears(spec), ""});
  add_fields(fields, kMethodFields, spec.objective);
  add_fields(fields, kCutFields, spec.cut);
  return fields;
}

Field weights_field(const JobSpec& spec, const Heartbeat& heartbeat) {
  Field field{std::string(kModelFields), "weights", ""};
  const auto frozen = [&](size_t i) { return !spec.table.params[i].trainable && !spec.table.params[i].adapter; };
  bool any = false, drawn = false;
  for (size_t i = 0; i < spec.table.params.size(); i++) {
    any = any || frozen(i);
    drawn = drawn || (frozen(i) && std::holds_alternative<RandomFill>(spec.sources.params[i]));
  }
  if (any) field.value = drawn ? "init random" : hex(hash_of_files(spec.sources, heartbeat, frozen));
  return field;
}

}  // namespace snug
