// Visits the fields of what decides how data files become tokens (base/fields.h). Each visitor binds all members of its
// record, so that a new one does not compile until it is visited or said to decide nothing.
#pragma once

#include "base/fields.h"
#include "data/dataset.h"
#include "image/processor_fields.h"

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

template <RecordOf<ImageMarkup> R, class Visit>
void visit_fields(R& markup, Visit&& visit) {
  auto& [pad, begin, end, slices_begin, slices_end, between_rows, behind_unmarked, between_parts, video_pad,
         around_named] = markup;
  visit("pad", pad);
  visit("begin", begin);
  visit("end", end);
  visit("slices_begin", slices_begin);
  visit("slices_end", slices_end);
  visit("between_rows", between_rows);
  visit("behind_unmarked", behind_unmarked);
  visit("between_parts", between_parts);
  visit("video_pad", video_pad);
  visit("around_named", around_named);
}

template <RecordOf<ShapeOptions> R, class Visit>
void visit_fields(R& shape, Visit&& visit) {
  auto& [samples, columns, prompt, prompt_is_all, roles, markup] = shape;
  visit("samples", samples);
  visit("columns", columns);
  visit("prompt", prompt);
  visit("prompt_is_all", prompt_is_all);
  visit("roles", roles);
  visit("markup", markup);
}

// Leaves out why there is no template, where one comes from, what ends a generated reply and the notes on that.
template <RecordOf<PromptFormat> R, class Visit>
void visit_fields(R& format, Visit&& visit) {
  auto& [chat, refusal, plain, jinja, jinja_for_tools, template_of_adapter, ends_of_adapter, end_tokens, notes] =
      format;
  visit("chat", chat);
}

// Leaves out why there are no images or videos, which samples then do not have, and the notes on sizes.
template <RecordOf<ImageInput> R, class Visit>
void visit_fields(R& input, Visit&& visit) {
  auto& [processor, markup, pad_token, video_pad_token, positions_a_second, no_images, no_videos, notes] = input;
  visit("processor", processor);
  visit("markup", markup);
  visit("pad_token", pad_token);
  visit("video_pad_token", video_pad_token);
  visit("positions_a_second", positions_a_second);
}

// Leaves out the files, whose contents count and not their names (but for data that may have images, for
// which dataset_key() adds them), and what is called while they are read.
template <RecordOf<DataOptions> R, class Visit>
void visit_fields(R& options, Visit&& visit) {
  auto& [files, format, shape, prompt_format, train_on, thinking, max_samples, empty_records, text_split, vocabulary,
         images, image_dir, heartbeat, take, note] = options;
  visit("format", format);
  visit("shape", shape);
  visit("prompt_format", prompt_format);
  visit("train_on", train_on);
  visit("thinking", thinking);
  visit("max_samples", max_samples);
  visit("empty_records", empty_records);
  visit("text_split", text_split);
  visit("vocabulary", vocabulary);
  visit("images", images);
  visit("image_dir", image_dir);
}

}  // namespace snug
