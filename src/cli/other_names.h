// What other programs call their options, and what snug calls them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace snug {

// An option as transformers, TRL, PEFT, LLaMA-Factory, axolotl, torchtune, DeepSpeed and others spell it.
struct OtherName {
  std::string_view name;    // with underscores, in lower case
  std::string_view ours;    // snug's option or options, by commas; empty where nothing is alike
  std::string_view remark;  // what else is to be said; may be empty where `ours` is not
};

// All of them; no name is an option of snug.
std::span<const OtherName> other_names();

// Returns what an error on the unknown option `name` goes on with: "; here it is 'learning_rate'", or what snug does
// where nothing is alike; else which of the `known` ones begin with it or differ from it by a letter in four at most;
// nothing where none does. Of what is none of the `known` it says that others take it.
std::string advice_on_name(std::string_view name, const std::vector<std::string>& known);

}  // namespace snug
