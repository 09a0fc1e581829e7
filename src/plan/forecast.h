// What a compiled job takes, told apart by phase and by class.
#pragma once

#include "plan/compile.h"

namespace snug {

struct Forecast {
  PerSpace<uint64_t> arena_bytes{};  // what Arena will reserve
  struct Phase {
    std::string name;  // "load", "step", "eval", "save", "generate"
    PerSpace<uint64_t> bytes{};
  };
  std::vector<Phase> phases;
  struct Class {
    std::string name;  // "weights", "gradients", ..., "packing"
    uint64_t bytes = 0;
  };
  std::vector<Class> classes;  // of the device arena where it is fullest; they sum to its bytes
  std::string peak_site;       // program and op at which that is
};

Forecast forecast(const Compiled& compiled);

}  // namespace snug
