// adapter_config.json with its expressions, tried on paths, and names of tensors: anything but a UserError or an answer
// is a fault.
#include <cstdint>

#include "base/error.h"
#include "format/peft.h"
#include "format/peft_tensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const snug::PeftTensor tensor = snug::parse_peft_tensor(text);
  snug::meaning_of_other(text);
  try {
    const snug::PeftConfig config = snug::parse_peft_config(text, "fuzz");
    for (const std::string_view linear :
         {std::string_view("model.layers.0.self_attn.q_proj"), std::string_view("model.layers.11.mlp.down_proj"),
          std::string_view(tensor.param).substr(0, 200)})
      snug::target_of(config, linear);
  } catch (const snug::UserError&) {
  }
  return 0;
}
