#include "data/sample_images.h"

#include <algorithm>

#include "base/error.h"
#include "base/option_name.h"
#include "data/record_images.h"
#include "image/data_url.h"
#include "image/header.h"

namespace snug {
namespace {

// A record of more tokens for images than this is no sample of any model; it is refused before they take memory.
constexpr int64_t kMostTokens = int64_t{1} << 24;
constexpr size_t kMostFrames = 4096;  // of a video: each is a file whose header is read

// Returns the image of a data URL. Its bytes are held unless it stands in the record as it is, and that in its file.
SampleImage image_of_url(const ImageReference& reference, const std::filesystem::path& file, const Record& record) {
  SampleImage image;
  image.source = reference.place;
  image.bytes = bytes_of_data_url(reference.where, image.source);
  ImageBytes bytes(std::as_bytes(std::span(image.bytes)), image.source);
  const ImageHeader header = read_image_header(bytes);
  image.width = static_cast<uint32_t>(header.shown_width());
  image.height = static_cast<uint32_t>(header.shown_height());
  const size_t at = record.offset ? record.text.find(reference.where) : std::string::npos;
  if (at == std::string::npos) return image;
  image.bytes.clear();
  image.path = file.string();
  image.place = *record.offset + at;
  image.place_bytes = reference.where.size();
  return image;
}

SampleImage image_of_file(const ImageReference& reference, const std::filesystem::path& folder) {
  constexpr size_t kMostNamed = 255;
  SampleImage image;
  const bool is_long = reference.where.size() > kMostNamed;
  image.source =
      fmt::format("{} ({})", reference.place, is_long ? shortened(reference.where) : Json(reference.where).dump());
  if (names_video_file(reference.where))
    user_error("{}: {}", image.source, what_to_do_with_video_files(reference.where));
  const std::filesystem::path path = folder / reference.where;
  std::error_code unknown;
  const auto type = std::filesystem::status(path, unknown).type();
  if (type != std::filesystem::file_type::regular && is_bare_base64(reference.where))
    user_error(
        "{}: found base64 of {} characters, expected a path, or a data URL: is 'data:image/png;base64,' missing "
        "before it?",
        image.source, reference.where.size());
  if (type != std::filesystem::file_type::regular && is_long)
    user_error("{}: found a text of {} characters that names no file, expected the path of an image file", image.source,
               reference.where.size());
  if (type != std::filesystem::file_type::regular)
    user_error("{}: found {} at {}, expected an image file; relative paths begin at {}, or at the data's folder",
               image.source,
               type == std::filesystem::file_type::directory   ? "a directory"
               : type == std::filesystem::file_type::not_found ? "nothing"
                                                               : "no regular file",
               path.string(), option_name("image_dir"));
  image.path = path.string();
  const ImageHeader header = read_image_header(path, image.source);
  image.width = static_cast<uint32_t>(header.shown_width());
  image.height = static_cast<uint32_t>(header.shown_height());
  return image;
}

}  // namespace

SampleImages::SampleImages(const ImageInput& input, const TextEncoder& encoder) : input_(input) {
  const ImageMarkup& markup = input.markup;
  for (const std::string* text :
       {&markup.pad, &markup.video_pad, &markup.begin, &markup.end, &markup.slices_begin, &markup.slices_end}) {
    if (text->empty()) continue;
    const std::vector<int32_t> ids = encoder.encode(*text);
    if (ids.size() != 1)
      user_error("the tokenizer makes {} tokens of '{}', expected one, as the model's images are written with it",
                 ids.size(), *text);
    if (text == &markup.begin) begin_ = ids[0];
    if (text == &markup.end) end_ = ids[0];
    const int32_t expected = text == &markup.video_pad ? input.video_pad_token : input.pad_token;
    if ((text == &markup.pad || text == &markup.video_pad) && ids[0] != expected)
      user_error("the tokenizer makes token {} of '{}', expected {}, which the model replaces by images", ids[0], *text,
                 expected);
  }
}

std::vector<PlannedImage> SampleImages::plan(std::span<const ImageReference> images,
                                             const std::filesystem::path& folder, const std::filesystem::path& file,
                                             const Record& record) const {
  std::vector<PlannedImage> planned;
  int64_t tokens = 0;
  for (const ImageReference& reference : images) {
    for (const std::string* const refusal : {&input_.no_images, &input_.no_videos})
      if (!refusal->empty() && (refusal == &input_.no_images || !reference.frames.empty()))
        user_error("{}: {}", reference.place, *refusal);
    if (reference.frames.empty()) {
      SampleImage image =
          is_data_url(reference.where) ? image_of_url(reference, file, record) : image_of_file(reference, folder);
      ImagePlan plan = plan_image(input_.processor, image.width, image.height, image.source);
      planned.push_back({std::move(image), std::move(plan)});
    } else {
      planned.push_back(plan_video(reference, folder));
    }
    tokens += planned.back().tokens();
    if (tokens > kMostTokens)
      user_error("{}: found images of more than {} tokens in one record", planned.back().image.source, kMostTokens);
  }
  return planned;
}

PlannedImage SampleImages::plan_video(const ImageReference& video, const std::filesystem::path& folder) const {
  if (video.frames.size() > kMostFrames)
    user_error("{}: found {} frames, expected at most {}: take fewer of a second", video.place, video.frames.size(),
               kMostFrames);
  const ImageProcessor processor = frame_processor(input_.processor);
  const auto together = static_cast<size_t>(processor.frames);
  PlannedImage planned;
  for (size_t first = 0; first < video.frames.size(); first += together) {
    SampleImage step;
    for (size_t i = first; i < std::min(first + together, video.frames.size()); i++) {
      const ImageReference reference{video.frames[i], fmt::format("{}[{}]", video.place, i)};
      const SampleImage frame = image_of_file(reference, folder);
      const SampleImage& one = first > 0 ? planned.image : i > 0 ? step : frame;
      if (frame.width != one.width || frame.height != one.height)
        user_error("{}: found {} x {} pixels, expected {} x {} as the video's first frame has", frame.source,
                   frame.width, frame.height, one.width, one.height);
      if (i == first)
        step = frame;
      else
        step.later.push_back(frame.path);
    }
    // As transformers 4 has it, in fp32: from the beginning of the video on, in its own unit.
    const auto steps = static_cast<uint32_t>(first / together);
    const auto seconds = static_cast<float>(static_cast<double>(processor.frames) / video.frames_a_second);
    const float units = static_cast<float>(steps) * seconds * static_cast<float>(input_.positions_a_second);
    step.step = steps + 1;
    step.time = input_.positions_a_second > 0 ? static_cast<uint32_t>(std::min(units, 1e9f)) : steps;
    if (first == 0) {
      planned.plan = plan_image(processor, step.width, step.height, step.source);
      planned.image = std::move(step);
      continue;
    }
    if (step.time > steps * planned.plan.tokens)
      user_error(
          "{}: found {} frames a second, at which step {} has the position {} in time and {} tokens before it, "
          "expected no later positions than tokens: take more frames of a second, or larger ones",
          video.place, video.frames_a_second, steps, step.time, steps * planned.plan.tokens);
    planned.later.push_back(std::move(step));
  }
  return planned;
}

std::span<const PlannedImage> SampleImages::write(std::span<const PlannedImage> images,
                                                  Conversation& conversation) const {
  size_t used = 0;
  for (Message& message : conversation) {
    size_t at = message.content.find(kImageMark);
    if (at == std::string::npos) continue;
    std::string content;
    size_t begin = 0;
    for (; at != std::string::npos; at = message.content.find(kImageMark, begin)) {
      check(used < images.size(), "a conversation with more than {} images", images.size());
      content.append(message.content, begin, at - begin);
      const PlannedImage& image = images[used++];
      content += image.video() ? text_of_video(input_.markup) : text_of_image(input_.markup, image.plan);
      begin = at + 1;
    }
    message.content = content.append(message.content, begin);
  }
  return images.first(used);
}

// Returns whether a pad token stands between the tokens that stand around each view.
bool SampleImages::has_marks(const std::vector<int32_t>& ids, size_t pad) const {
  if (begin_ && (pad == 0 || ids[pad - 1] != *begin_)) return false;
  return !end_ || (pad + 1 < ids.size() && ids[pad + 1] == *end_);
}

void SampleImages::expand(std::span<const PlannedImage> images, Sample& sample) const {
  const ImageMarkup& markup = input_.markup;
  const uint32_t before = begin_ ? 1 : 0, behind = end_ ? 1 : 0;
  const uint32_t behind_slices = markup.slices_end.empty() ? 0 : 1;
  const int64_t pads = std::ranges::count_if(sample.ids, [&](int32_t id) { return input_.is_pad(id); });
  int64_t views = 0, tokens = 0;
  for (const PlannedImage& image : images) {
    views += std::ssize(image.plan.views);
    tokens += image.tokens();
  }
  if (pads != views)
    user_error(
        "found {} token{} '{}' in the rendered text, expected {}, one for each view of an image: no other text "
        "may hold it, nor a template leave one out",
        pads, pads == 1 ? "" : "s", markup.pad, views);
  if (pads == 0) return;
  Sample out;
  out.second = sample.second;
  out.value = sample.value;
  out.ids.reserve(sample.ids.size() + static_cast<size_t>(tokens));
  out.labels.reserve(out.ids.capacity());
  size_t image = 0, view = 0;
  for (size_t i = 0; i < sample.ids.size(); ++i) {
    const int32_t id = sample.ids[i];
    if (!input_.is_pad(id)) {
      out.ids.push_back(sample.ids[i]);
      out.labels.push_back(sample.labels[i]);
      continue;
    }
    if (!has_marks(sample.ids, i))
      user_error(
          "found a token '{}' without '{}' before and '{}' behind it in the rendered text: the template changes "
          "the text of images",
          markup.pad, markup.begin, markup.end);
    const ImagePlan& plan = images[image].plan;
    if (id != (images[image].video() ? input_.video_pad_token : input_.pad_token))
      user_error(
          "{}: found the token of {} in its place in the rendered text: the template changes the order of images",
          images[image].image.source, images[image].video() ? "an image" : "a video");
    const ImageView& shape = plan.views[view];
    const int64_t count = tokens_of_view(input_.processor, shape);
    const auto begin = static_cast<uint32_t>(out.ids.size());
    const auto add_view = [&](size_t first) {
      out.views.push_back({static_cast<uint32_t>(out.images.size() - 1), static_cast<uint32_t>(first),
                           static_cast<uint32_t>(count), static_cast<uint32_t>(shape.rows),
                           static_cast<uint32_t>(shape.columns)});
      out.ids.resize(first + static_cast<size_t>(count), id);
      out.labels.resize(out.ids.size(), kNoLabel);
    };
    if (view == 0) {
      out.images.push_back(images[image].image);
      out.images.back().begin = begin - before;
    }
    add_view(begin);
    for (const SampleImage& step : images[image].later) {
      const auto end = static_cast<uint32_t>(out.ids.size());
      out.images.back().end = end;
      out.images.push_back(step);
      out.images.back().begin = end;
      add_view(end);
    }
    if (++view < plan.views.size()) continue;
    const bool sliced = plan.slice_columns > 0;
    out.images.back().end = static_cast<uint32_t>(out.ids.size()) + behind + (sliced ? behind_slices : 0);
    view = 0;
    ++image;
  }
  sample = std::move(out);
}

}  // namespace snug
