// Reads which images and videos a record has, and where its messages name them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/record_fields.h"

namespace snug {

// Stands in the content of a message in place of an image or a video: no text has this byte, as UTF-8 has none of its
// value.
constexpr char kImageMark = '\xff';
// Stand where texts name an image, and a video.
constexpr std::string_view kImageMarker = "<image>", kVideoMarker = "<video>";

// Returns a path without the "file://" before it.
std::string without_file_scheme(std::string where);

// Returns whether a text names what would have to be fetched: it begins with a scheme, as "https://", that is not data.
bool names_url(std::string_view text);

// Returns a part of a message that is an image, for place_images(), which reads its reference out of it. `part` is of
// the type image or image_url; an image that it does not name itself is the next of the record's list. Unknown keys
// that are passed over are added to `ignored`.
std::string text_of_image_part(const JsonObject& part, const RecordFields& fields, std::vector<std::string>& ignored);

// Returns the same of a video, a part of the type video: a list of the paths of its frames, with `fps` or `sample_fps`.
std::string text_of_video_part(const JsonObject& part, const RecordFields& fields, std::vector<std::string>& ignored);

// Returns whether a file's name ends as those of videos do.
bool names_video_file(std::string_view name);
// Returns what a message says where such a file is found: how its frames become files.
std::string what_to_do_with_video_files(std::string_view name);

// Throws UserError for a record that has images or videos where its format has none, or that the model does not take.
void refuse_images(const RecordFields& fields, DataFormat format);

// Returns a conversation's images and videos in the order in which they stand in its messages, each of which then has
// kImageMark in place of it. Throws UserError for markers that are not as many as images, images in replies, and texts
// that hold tokens of the model's images themselves.
std::vector<ImageReference> place_images(const RecordFields& fields, Conversation& conversation);

}  // namespace snug
