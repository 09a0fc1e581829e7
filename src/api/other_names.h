// Lists what other programs call their options, and what snug calls them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace snug {

// Holds an option as transformers, TRL, PEFT, LLaMA-Factory, axolotl, torchtune, DeepSpeed and others spell it.
struct OtherName {
  std::string_view name;    // with underscores, in lower case
  std::string_view ours;    // snug's option or options, with commas; empty if none is similar
  std::string_view remark;  // what else to say, with {method} for that option's name; may be empty if `ours` is not
};

// Returns all names; none is an option of snug.
std::span<const OtherName> other_names();

// Returns the end of an error on the unknown option `name`: "; here it is 'learning_rate'", or what snug does if it has
// no similar option; else which of the `known` ones begin with it or differ from it by at most a letter in four;
// nothing if none does. If snug's option is none of the `known`, it says that other commands take it.
std::string advice_on_name(std::string_view name, const std::vector<std::string>& known);

}  // namespace snug
