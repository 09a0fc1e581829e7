// By libpng. Chunks that would change colours (gamma, profiles) are left out, as Pillow leaves them.
#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

#include "base/error.h"
#include "image/decode.h"

namespace snug {

namespace {

// Holds what libpng's calls share. What longjmp leaves behind is freed by the destructor alone.
class PngReader {
 public:
  explicit PngReader(std::span<const std::byte> bytes) : bytes_(bytes) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, take_failure, take_warning);
    if (png_) info_ = png_create_info_struct(png_);
    if (info_) return;
    png_destroy_read_struct(&png_, nullptr, nullptr);
    throw std::bad_alloc();
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  // Returns whether all pixels were decoded to the rows. No object that a jump would pass over has a destructor.
  bool run(const ImageHeader& header, png_bytepp rows) {
    if (setjmp(jump_) != 0) return false;
    png_set_read_fn(png_, this, read_bytes);
    png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // the header has been checked against a limit
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    png_read_info(png_, info_);
    png_set_expand(png_);
    png_set_strip_16(png_);
    png_set_strip_alpha(png_);
    png_set_gray_to_rgb(png_);
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    if (png_get_image_width(png_, info_) != static_cast<png_uint_32>(header.width) ||
        png_get_image_height(png_, info_) != static_cast<png_uint_32>(header.height) ||
        png_get_rowbytes(png_, info_) != static_cast<size_t>(header.width) * 3)
      png_error(png_, "the header is not the one found at first");
    png_read_image(png_, rows);
    png_read_end(png_, nullptr);
    return true;
  }

  const char* failure() const { return failure_; }
  // Returns whether it failed for want of memory, as libpng's and zlib's messages say it.
  bool no_memory() const { return std::strstr(failure_, "memory") != nullptr; }
  const char* warning() const { return warning_; }

 private:
  static PngReader& self(png_structp png) { return *static_cast<PngReader*>(png_get_error_ptr(png)); }

  [[noreturn]] static void take_failure(png_structp png, png_const_charp message) {
    PngReader& reader = self(png);
    std::snprintf(reader.failure_, sizeof(reader.failure_), "%s", message);
    std::longjmp(reader.jump_, 1);
  }
  static void take_warning(png_structp png, png_const_charp message) {
    PngReader& reader = self(png);
    if (reader.warning_[0] == '\0') std::snprintf(reader.warning_, sizeof(reader.warning_), "%s", message);
  }
  static void read_bytes(png_structp png, png_bytep to, size_t count) {
    PngReader& reader = self(png);
    if (count > reader.bytes_.size() - reader.at_) png_error(png, "the file ends inside its pixels");
    std::memcpy(to, reader.bytes_.data() + reader.at_, count);
    reader.at_ += count;
  }

  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::jmp_buf jump_;
  char failure_[160] = "", warning_[160] = "";
};

}  // namespace

std::string decode_png(std::span<const std::byte> bytes, std::string_view source, const ImageHeader& header,
                       Image& image) {
  std::vector<png_bytep> rows(static_cast<size_t>(header.height));
  for (size_t y = 0; y < rows.size(); y++) rows[y] = image.rgb.data() + y * static_cast<size_t>(header.width) * 3;
  PngReader reader(bytes);
  if (!reader.run(header, rows.data())) {
    if (reader.no_memory()) throw std::bad_alloc();
    user_error("{}: {} PNG file ({}), expected a whole image: copy or fetch it again", source, kCannotDecode,
               reader.failure());
  }
  return reader.warning();
}

}  // namespace snug
