#include "data/images.h"

#include <algorithm>

namespace snug {

std::string text_of_image(const ImageMarkup& markup, const ImagePlan& plan) {
  const std::string view = markup.begin + markup.pad + markup.end;
  std::string text = view;
  if (plan.slice_columns == 0) return text;
  text += markup.slices_begin;
  for (int64_t row = 0; row < plan.slice_rows; ++row) {
    if (row > 0) text += markup.between_rows;
    for (int64_t column = 0; column < plan.slice_columns; ++column) text += view;
  }
  return text + markup.slices_end;
}

std::string text_of_video(const ImageMarkup& markup) { return markup.begin + markup.video_pad + markup.end; }

std::vector<std::string> tokens_of(const ImageMarkup& markup) {
  std::vector<std::string> tokens;
  for (const std::string& text :
       {markup.pad, markup.video_pad, markup.begin, markup.end, markup.slices_begin, markup.slices_end})
    if (!text.empty() && std::ranges::find(tokens, text) == tokens.end()) tokens.push_back(text);
  return tokens;
}

}  // namespace snug
