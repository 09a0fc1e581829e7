// Holds the chat templates that have names, as Jinja programs for other programs than snug: they are written beside an
// adapter or into a model that was trained with one of them. snug runs them as it runs a model's own. Every tag trims
// the layout before it, so that engines agree whatever they do with lines that hold only a tag.
#pragma once

#include <string_view>

namespace snug {

constexpr std::string_view kChatMlText = R"({%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- endif %}
)";

constexpr std::string_view kQwenText = R"({%- for message in messages %}
{%- if loop.first and messages[0]['role'] != 'system' %}
{{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}
{%- endif %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- endif %}
)";

constexpr std::string_view kLlama3Text = R"({%- set loop_messages = messages %}
{%- for message in loop_messages %}
{%- set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' %}
{%- if loop.index0 == 0 %}
{%- set content = bos_token + content %}
{%- endif %}
{{- content }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
)";

constexpr std::string_view kLlama2Text = R"({%- if messages[0]['role'] == 'system' %}
{%- set loop_messages = messages[1:] %}
{%- set system_message = messages[0]['content'] %}
{%- else %}
{%- set loop_messages = messages %}
{%- set system_message = false %}
{%- endif %}
{%- for message in loop_messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{%- if loop.index0 == 0 and system_message != false %}
{%- set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message['content'] %}
{%- else %}
{%- set content = message['content'] %}
{%- endif %}
{%- if message['role'] == 'user' %}
{{- bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{%- elif message['role'] == 'assistant' %}
{{- ' ' + content.strip() + ' ' + eos_token }}
{%- endif %}
{%- endfor %}
)";

constexpr std::string_view kMistralText = R"({{- bos_token }}
{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{%- if message['role'] == 'user' %}
{{- '[INST] ' + message['content'] + ' [/INST]' }}
{%- elif message['role'] == 'assistant' %}
{{- message['content'] + eos_token }}
{%- else %}
{{- raise_exception('Only user and assistant roles are supported!') }}
{%- endif %}
{%- endfor %}
)";

// Returns the program of a name that ChatTemplate::choose() takes; empty for none and for auto.
constexpr std::string_view jinja_text(std::string_view name) {
  if (name == "chatml") return kChatMlText;
  if (name == "qwen") return kQwenText;
  if (name == "llama3") return kLlama3Text;
  if (name == "llama2") return kLlama2Text;
  if (name == "mistral") return kMistralText;
  return "";
}

}  // namespace snug
