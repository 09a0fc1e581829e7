#include "api/image_notes.h"

#include <fmt/format.h>

#include "base/say.h"

namespace snug {

void ImageNotes::add(const std::string& warning) {
  constexpr size_t kNamed = 5;
  const std::lock_guard lock(mutex_);
  if (!said_.insert(warning).second) return;
  if (said_.size() <= kNamed) say(fmt::format("note: {}; it is used as it was decoded\n", warning));
  if (said_.size() < next_count_) return;
  say(fmt::format("note: {} images are damaged so far, and used as they were decoded\n", said_.size()));
  next_count_ *= 10;
}

}  // namespace snug
