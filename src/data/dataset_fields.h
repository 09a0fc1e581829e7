// Visits the fields of what decides how data files become tokens (base/fields.h). Each visitor binds all members of its
// record, so that a new one does not compile until it is visited or said to decide nothing.
#pragma once

#include "base/fields.h"
#include "data/dataset.h"

namespace snug {

template <RecordOf<SpecialTexts> R, class Visit>
void visit_fields(R& texts, Visit&& visit) {
  auto& [bos, eos, others] = texts;
  visit("bos", bos);
  visit("eos", eos);
  visit("others", others);
}

// Leaves out how text is encoded, which the tokenizer's files decide.
template <RecordOf<TextEncoder> R, class Visit>
void visit_fields(R& encoder, Visit&& visit) {
  auto& [encode, encode_next, bos_id, eos_id, adds_bos, prefix, prefix_text, special] = encoder;
  visit("bos_id", bos_id);
  visit("eos_id", eos_id);
  visit("adds_bos", adds_bos);
  visit("prefix", prefix);
  visit("prefix_text", prefix_text);
  visit("special", special);
}

template <RecordOf<ShapeOptions> R, class Visit>
void visit_fields(R& shape, Visit&& visit) {
  auto& [samples, columns, prompt, prompt_is_all, roles] = shape;
  visit("samples", samples);
  visit("columns", columns);
  visit("prompt", prompt);
  visit("prompt_is_all", prompt_is_all);
  visit("roles", roles);
}

// Leaves out why there is no template, where one comes from, what ends a generated reply and the notes on that.
template <RecordOf<PromptFormat> R, class Visit>
void visit_fields(R& format, Visit&& visit) {
  auto& [chat, refusal, plain, jinja, jinja_for_tools, template_of_adapter, ends_of_adapter, end_tokens, notes] =
      format;
  visit("chat", chat);
}

// Leaves out the files, whose contents count and not their names, and what is called while they are read.
template <RecordOf<DataOptions> R, class Visit>
void visit_fields(R& options, Visit&& visit) {
  auto& [files, format, shape, prompt_format, train_on, thinking, max_samples, text_split, vocabulary, heartbeat, take,
         note] = options;
  visit("format", format);
  visit("shape", shape);
  visit("prompt_format", prompt_format);
  visit("train_on", train_on);
  visit("thinking", thinking);
  visit("max_samples", max_samples);
  visit("text_split", text_split);
  visit("vocabulary", vocabulary);
}

}  // namespace snug
