#include "data/record_images.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>

#include "base/ascii.h"
#include "data/record_keys.h"
#include "image/data_url.h"

namespace snug {
namespace {

constexpr const char* kVideoField = "videos";
constexpr std::string_view kFrames = "a list of the paths of its frames";
constexpr std::string_view kPathOrUrl = "a path, or a data URL (data:image/png;base64,...)";
constexpr std::array<const char*, 2> kImageFields = {"images", "image"};

bool has_images(const RecordFields& fields, const char* name) {
  return fields.has(name) && !is_nothing(fields.object().at(fields.key(name)));
}

// Returns what names an image. Throws UserError for what is neither a path nor a data URL.
ImageReference reference(const Json& value, const std::string& place) {
  const auto fail = [&](std::string_view expected) {
    user_error("{}: found {}, expected {}", place, shortened(value), expected);
  };
  if (!value.is_string() || value == "") fail(kPathOrUrl);
  std::string where = value.get<std::string>();
  if (is_data_url(where)) return {std::move(where), place};
  where = without_file_scheme(std::move(where));
  if (where.empty() || where.find('\0') != std::string::npos) fail(kPathOrUrl);
  if (names_url(where)) fail("a path, or a data URL: images are not fetched, copy them here first");
  return {std::move(where), place};
}

// Returns whether a value is an image as the library `datasets` writes it: {"bytes": ..., "path": ...}, either null.
bool is_image_of_datasets(const Json& value) {
  const auto known = [&](const char* key) { return value.contains(key) ? size_t{1} : size_t{0}; };
  return value.is_object() && !value.empty() && value.size() == known("bytes") + known("path");
}

// Returns what names an image: its bytes in base64, or as a data URL, if they are there, else its path.
ImageReference image_reference(const Json& value, const std::string& place) {
  if (!is_image_of_datasets(value)) return reference(value, place);
  const Json bytes = value.value("bytes", Json());
  if (bytes.is_null()) return reference(value.value("path", Json()), fmt::format("{}, key 'path'", place));
  const std::string of_bytes = fmt::format("{}, key 'bytes'", place);
  if (!bytes.is_string())
    user_error("{}: found {}, expected null, or the image's bytes in base64", of_bytes, shortened(bytes));
  const auto text = bytes.get<std::string>();
  return {is_data_url(text) ? text : fmt::format("data:;base64,{}", text), of_bytes};
}

// Returns what names a video, `value` being its frames. Throws UserError for anything but paths.
ImageReference video_reference(const Json& value, const std::string& place) {
  if (value.is_string() && names_video_file(value.get<std::string>()))
    user_error("{}: {}", place, what_to_do_with_video_files(value.get<std::string>()));
  if (!value.is_array() || value.empty()) user_error("{}: found {}, expected {}", place, shortened(value), kFrames);
  ImageReference video{.where = {}, .place = place};
  for (size_t i = 0; i < value.size(); i++) {
    const std::string frame = fmt::format("{}[{}]", place, i);
    ImageReference one = reference(value[i], frame);
    if (is_data_url(one.where)) user_error("{}: found a data URL, expected a path: frames of videos are files", frame);
    video.frames.push_back(std::move(one.where));
  }
  return video;
}

// Holds the images of a record besides those that are parts of its messages.
struct ListedImages {
  std::string key;
  std::vector<ImageReference> in_order;
  std::map<std::string, ImageReference, std::less<>> by_marker;  // under "<image_00>", where the record names them so
};

ListedImages read_listed_images(const RecordFields& fields) {
  ListedImages out;
  const char* name = nullptr;
  for (const char* const candidate : kImageFields) {
    if (!has_images(fields, candidate)) continue;
    if (name) fields.object().fail(fields.key(candidate), fmt::format("none beside '{}'", out.key));
    name = candidate;
    out.key = fields.key(name);
  }
  if (!name) return out;
  const std::string& key = out.key;
  Json value = fields.object().at(key);
  // Tables that know only text hold lists as JSON.
  if (const auto* text = value.get_ptr<const std::string*>();
      text && (text->starts_with('[') || text->starts_with('{')))
    value = parse_json(*text, fields.object().where(key));
  if (value.is_string() || is_image_of_datasets(value)) {
    out.in_order.push_back(image_reference(value, fields.object().where(key)));
  } else if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i)
      out.in_order.push_back(image_reference(value[i], fields.object().where(fmt::format("{}[{}]", key, i))));
  } else if (value.is_object()) {
    for (const auto& [marker, one] : value.items()) {
      if (marker.size() < 3 || !marker.starts_with('<') || marker.find('>') != marker.size() - 1)
        fields.object().fail(key, "a path, a list of paths, or a map from markers such as \"<image_00>\" to paths");
      out.by_marker.emplace(marker, image_reference(one, fields.object().where(fmt::format("{}.{}", key, marker))));
    }
  } else {
    fields.object().fail(key, "a path, a list of paths, or a map from markers such as \"<image_00>\" to paths");
  }
  return out;
}

std::vector<ImageReference> read_listed_videos(const RecordFields& fields) {
  std::vector<ImageReference> videos;
  if (!has_images(fields, kVideoField)) return videos;
  const std::string key = fields.key(kVideoField);
  Json value = fields.object().at(key);
  if (const auto* text = value.get_ptr<const std::string*>(); text && text->starts_with('['))
    value = parse_json(*text, fields.object().where(key));
  if (!value.is_array()) fields.object().fail(key, fmt::format("a list of videos, each {}", kFrames));
  for (size_t i = 0; i < value.size(); ++i)
    videos.push_back(video_reference(value[i], fields.object().where(fmt::format("{}[{}]", key, i))));
  return videos;
}

// A video stands as JSON behind a byte that no path has.
constexpr char kVideoMark = 0;

std::string where_of(const ImageReference& image) {
  if (image.frames.empty()) return image.where;
  return kVideoMark + Json{{"fps", image.frames_a_second}, {"frames", image.frames}}.dump();
}

ImageReference reference_of(const std::string& where, std::string place) {
  ImageReference image{where, std::move(place)};
  if (!where.starts_with(kVideoMark)) return image;
  const Json video = parse_json(std::string_view(where).substr(1), image.place);
  image.where.clear();
  image.frames = video.at("frames").get<std::vector<std::string>>();
  image.frames_a_second = video.at("fps").get<double>();
  return image;
}

std::string marked(const ImageReference& image) {
  return fmt::format("{}{}{}{}{}", kImageMark, image.place, kImageMark, where_of(image), kImageMark);
}

// Goes through the messages of a record and puts its images where they are named.
class Placing {
 public:
  Placing(const RecordFields& fields, ListedImages listed, std::vector<ImageReference> videos)
      : fields_(fields),
        markup_(*fields.options().markup),
        listed_(std::move(listed)),
        videos_(std::move(videos)),
        tokens_(tokens_of(markup_)) {}

  std::vector<ImageReference> place(Conversation& conversation) {
    put_unmarked(conversation);
    for (Message& message : conversation) {
      const size_t before = images_.size(), markers_before = markers_ + video_markers_;
      message.content = placed(message.content);
      if (message.role == ChatRole::Assistant &&
          (images_.size() > before || markers_ + video_markers_ > markers_before))
        user_error("{}: found an image in a reply, or its marker {}, expected images in what is asked alone",
                   fields_.place(), video_markers_ > 0 ? kVideoMarker : kImageMarker);
      refuse_tokens(message.content);
      refuse_tokens(message.thinking);
    }
    require_all();
    return std::move(images_);
  }

 private:
  // Puts a single image that no marker names before the first text of a user.
  void put_unmarked(Conversation& conversation) {
    if (listed_.in_order.size() + listed_.by_marker.size() != 1) return;
    const bool named = !listed_.by_marker.empty();
    const std::string marker = named ? listed_.by_marker.begin()->first : std::string(kImageMarker);
    const auto has_marker = [&](const Message& message) { return message.content.find(marker) != std::string::npos; };
    if (std::ranges::any_of(conversation, has_marker)) return;
    const auto user = std::ranges::find(conversation, ChatRole::User, &Message::role);
    if (user == conversation.end())
      user_error("{}: found an image ('{}') without a marker {} and no message of a user before which it would stand",
                 fields_.place(), listed_.key, kImageMarker);
    const ImageReference image = named ? listed_.by_marker.begin()->second : listed_.in_order[0];
    listed_.by_marker.clear();
    listed_.in_order.clear();
    user->content.insert(0, marked(image) + markup_.behind_unmarked);
  }

  // Returns a content with kImageMark in place of each image, and adds these to the images.
  std::string placed(const std::string& content) {
    constexpr const char kStops[] = {kImageMark, '<', 0};
    std::string out;
    for (size_t at = 0; at < content.size();) {
      const size_t stop = std::min(content.find_first_of(kStops, at), content.size());
      out.append(content, at, stop - at);
      at = stop;
      if (at == content.size()) break;
      if (content[at] == kImageMark) {
        const size_t middle = content.find(kImageMark, at + 1);
        const size_t end = middle == content.npos ? content.npos : content.find(kImageMark, middle + 1);
        if (end == content.npos)  // from --prompt, as records are UTF-8
          user_error("{}: found byte 0xff in a message, expected UTF-8", fields_.place());
        images_.push_back(
            reference_of(content.substr(middle + 1, end - middle - 1), content.substr(at + 1, middle - at - 1)));
        out += kImageMark;
        at = end + 1;
      } else if (const size_t length = take_marker(std::string_view(content).substr(at), out); length > 0) {
        at += length;
      } else {
        out += content[at++];
      }
    }
    return out;
  }

  // Puts an image in place of the marker with which a text begins, and returns how long that is; 0 if it is none.
  size_t take_marker(std::string_view text, std::string& out) {
    if (!listed_.by_marker.empty()) {
      const std::string_view marker = text.substr(0, text.find('>') + 1);
      if (const auto found = listed_.by_marker.find(marker); found != listed_.by_marker.end()) {
        if (found->second.where.empty())
          user_error("{}: found the marker {} twice, expected each of '{}' once", fields_.place(), marker, listed_.key);
        images_.push_back(std::exchange(found->second, {}));
        out += markup_.around_named + kImageMark + markup_.around_named;
        return marker.size();
      }
      const std::string_view digits = marker.substr(std::min<size_t>(marker.size(), kImageMarker.size() - 1));
      if (marker.starts_with("<image_") && digits.find_first_not_of("0123456789_>") == digits.npos)
        user_error("{}: found the marker {}, expected one that '{}' has", fields_.place(), shortened(Json(marker)),
                   listed_.key);
    }
    if (!markup_.video_pad.empty() && text.starts_with(kVideoMarker)) {
      if (video_markers_++ < videos_.size()) {
        images_.push_back(videos_[video_markers_ - 1]);
        out += kImageMark;
      }
      return kVideoMarker.size();
    }
    if (!text.starts_with(kImageMarker)) return 0;
    if (markers_++ < listed_.in_order.size()) {
      images_.push_back(listed_.in_order[markers_ - 1]);
      out += kImageMark;
    }
    return kImageMarker.size();
  }

  void require_all() const {
    if (video_markers_ != videos_.size())
      user_error(
          "{}: found {} marker{} {} in its messages and {} video{} in 'videos', expected as many of one as of the "
          "other",
          fields_.place(), video_markers_, video_markers_ == 1 ? "" : "s", kVideoMarker, videos_.size(),
          videos_.size() == 1 ? "" : "s");
    if (markers_ != listed_.in_order.size())
      user_error("{}: found {} marker{} {} in its messages and {} image{}{}, expected as many of one as of the other",
                 fields_.place(), markers_, markers_ == 1 ? "" : "s", kImageMarker, listed_.in_order.size(),
                 listed_.in_order.size() == 1 ? "" : "s",
                 listed_.key.empty() ? " ('images' names them)" : fmt::format(" ('{}')", listed_.key));
    for (const auto& [marker, image] : listed_.by_marker)
      if (!image.where.empty())
        user_error("{}: found no marker {} in the messages, expected one for each image", image.place, marker);
  }

  void refuse_tokens(const std::string& text) const {
    for (const std::string& token : tokens_)
      if (text.find(token) != std::string::npos)
        user_error(
            "{}: found '{}' in a text, expected none, as the model takes that for a part of an image; {} stands where "
            "an image of 'images' is",
            fields_.place(), token, kImageMarker);
  }

  const RecordFields& fields_;
  const ImageMarkup& markup_;
  ListedImages listed_;
  std::vector<ImageReference> videos_;  // by marker
  std::vector<std::string> tokens_;
  std::vector<ImageReference> images_;
  size_t markers_ = 0, video_markers_ = 0;
};

void refuse_images_of_part(const JsonObject& part, const RecordFields& fields) {
  if (fields.options().markup) return;
  part.fail("type", fields.options().samples == Samples::Replies
                        ? "\"text\": the model takes no images"
                        : "\"text\": images in preferences are not supported yet");
}

}  // namespace

std::string without_file_scheme(std::string where) {
  constexpr std::string_view kFile = "file://";
  if (where.starts_with(kFile)) where.erase(0, kFile.size());
  return where;
}

bool names_url(std::string_view text) {
  const size_t scheme = text.find("://");
  if (scheme == text.npos || is_data_url(text)) return false;
  return std::ranges::all_of(text.substr(0, scheme),
                             [](unsigned char c) { return std::isalnum(c) != 0 || c == '+' || c == '.' || c == '-'; });
}

std::string text_of_image_part(const JsonObject& part, const RecordFields& fields, std::vector<std::string>& ignored) {
  refuse_images_of_part(part, fields);
  const char* name = nullptr;
  for (const char* const candidate : {"image", "image_url", "path", "url"})
    if (!name && part.has(candidate)) name = candidate;
  check_keys(
      part, KeysOf::Part, [&](std::string_view key) { return key == "type" || (name && key == name); }, ignored);
  if (!name) return std::string(kImageMarker);
  const Json* value = &part.at(name);
  const std::string place = part.where(name);
  if (value->is_object() && !is_image_of_datasets(*value)) {
    const JsonObject url(*value, place);
    check_keys(
        url, KeysOf::Part, [](std::string_view one) { return one == "url" || one == "detail"; }, ignored);
    if (url.has("detail")) ignored.push_back("image_url.detail");
    if (!url.has("url")) part.fail(name, kPathOrUrl);
    value = &url.at("url");
  }
  return marked(image_reference(*value, place));
}

bool names_video_file(std::string_view name) {
  const std::string ending = lower_case(name.substr(std::min(name.rfind('.'), name.size())));
  constexpr std::array<std::string_view, 8> kEndings = {".mp4",  ".mov", ".m4v", ".mkv",
                                                        ".webm", ".avi", ".mpg", ".mpeg"};
  return std::ranges::find(kEndings, ending) != kEndings.end();
}

std::string what_to_do_with_video_files(std::string_view name) {
  return fmt::format(
      "found the file of a video, {0}, expected {1}: 'ffmpeg -i {0} -vf fps={2} frames/%05d.jpg' makes such files",
      Json(name).dump(), kFrames, kFramesASecond);
}

std::string text_of_video_part(const JsonObject& part, const RecordFields& fields, std::vector<std::string>& ignored) {
  constexpr std::array<std::string_view, 2> kRates = {"sample_fps", "fps"};
  refuse_images_of_part(part, fields);
  if (fields.options().markup->video_pad.empty()) part.fail("type", "no \"video\": the model takes no videos");
  for (const char* const key : {"min_pixels", "max_pixels", "total_pixels", "nframes", "min_frames", "max_frames",
                                "resized_height", "resized_width", "video_start", "video_end"})
    if (part.has(key)) part.fail(key, "none: frames are all taken, and resized as the model's files say");
  check_keys(
      part, KeysOf::Part,
      [&](std::string_view key) {
        return key == "type" || key == "video" || std::ranges::find(kRates, key) != kRates.end();
      },
      ignored);
  if (!part.has("video")) {
    for (const std::string_view key : kRates)
      if (part.has(key)) part.fail(key, "none for a video that 'videos' of the record names");
    return std::string(kVideoMarker);
  }
  ImageReference video = video_reference(part.at("video"), part.where("video"));
  const std::string_view rate = part.has(kRates[0]) ? kRates[0] : kRates[1];
  if (part.has(kRates[0]) && part.has(kRates[1]) && part.at(kRates[0]) != part.at(kRates[1]))
    part.fail(kRates[1], "as 'sample_fps' says, how many frames of a second there are");
  video.frames_a_second = part.number(rate, 1e-3, 1e3, kFramesASecond);
  return marked(video);
}

void refuse_images(const RecordFields& fields, DataFormat format) {
  for (const char* const name : {kImageFields[0], kImageFields[1], kVideoField}) {
    if (!has_images(fields, name)) continue;
    const std::string key = fields.key(name);
    const bool answers = format == DataFormat::Preference || format == DataFormat::Labelled;
    if (answers) fields.object().fail(key, "none: images in preferences are not supported yet");
    if (format == DataFormat::Text || format == DataFormat::Tokens)
      fields.object().fail(key, fmt::format("none beside '{}': images stand in conversations (messages, sharegpt, "
                                            "alpaca)",
                                            format == DataFormat::Text ? "text" : "input_ids"));
    if (!fields.options().markup) fields.object().fail(key, "none: the model takes no images");
    if (std::string_view(name) == kVideoField && fields.options().markup->video_pad.empty())
      fields.object().fail(key, "none: the model takes no videos");
  }
}

std::vector<ImageReference> place_images(const RecordFields& fields, Conversation& conversation) {
  return Placing(fields, read_listed_images(fields), read_listed_videos(fields)).place(conversation);
}

}  // namespace snug
