// Writes Ollama's Modelfile, which says where a model lies, how it is asked and where its replies end. Format:
// https://github.com/ollama/ollama/blob/main/docs/modelfile.md; templates are Go's text/template.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/chat_template.h"

namespace snug {

struct OllamaTemplate {
  enum class System : uint8_t {
    Taken,
    Refused,  // by the chat template
    LeftOut,  // the chat template writes it otherwise than before the first question, and this leaves it out
  };
  std::string text;
  System system = System::Taken;
};

// Returns the template by which Ollama renders system text, questions and replies as this one does; nothing where none
// does, as short conversations show. `bos`: a text that is left out at the start, since it is put there as a token; may
// be empty. Tools and thinking are not part of it.
std::optional<OllamaTemplate> ollama_template(const ChatTemplate& chat, std::string_view bos);

struct Modelfile {
  std::string from;                     // a file or a directory
  std::string adapter = {};             // a file; empty for none
  std::string chat_template = {};       // of ollama_template(); empty: Ollama's own choice
  std::vector<std::string> stops = {};  // texts that end a reply
};

std::string write_modelfile(const Modelfile& modelfile);

}  // namespace snug
