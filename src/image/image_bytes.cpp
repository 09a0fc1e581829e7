#include "image/image_bytes.h"

#include <algorithm>

#include "base/error.h"

namespace snug {

namespace {

constexpr uint64_t kWindow = 16384;

std::span<const uint8_t> as_bytes_of_image(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

}  // namespace

ImageBytes::ImageBytes(std::span<const std::byte> bytes, std::string_view source)
    : source_(source), size_(bytes.size()), bytes_(bytes) {}

ImageBytes::ImageBytes(const File& file, std::string_view source) : source_(source), size_(file.size()), file_(&file) {}

std::span<const uint8_t> ImageBytes::at(uint64_t offset, uint64_t count, std::string_view what) {
  if (!has(offset, count)) cut_short(what);
  if (!file_) return as_bytes_of_image(bytes_.subspan(offset, count));
  if (offset < window_begin_ || offset + count > window_begin_ + window_.size()) {
    window_.resize(std::min(std::max(count, kWindow), size_ - offset));
    window_begin_ = offset;
    file_->read(offset, window_);
  }
  return as_bytes_of_image(std::span(window_).subspan(offset - window_begin_, count));
}

std::span<const uint8_t> ImageBytes::up_to(uint64_t offset, uint64_t count) {
  return at(offset, offset < size_ ? std::min(count, size_ - offset) : 0, "");
}

void ImageBytes::cut_short(std::string_view what) const {
  user_error("{}: the file ends at byte {}, inside {}; expected a whole image: copy or fetch it again", source_, size_,
             what);
}

}  // namespace snug
