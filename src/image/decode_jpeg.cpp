// By libjpeg-turbo with its defaults (accurate integer DCT, smooth upsampling), as Pillow uses it.
#include <csetjmp>
#include <cstdio>
#include <new>
#include <vector>

#include <jpeglib.h>  // needs FILE and size_t from above

#include <jerror.h>

#include "base/error.h"
#include "image/decode.h"

namespace snug {

namespace {

// Encoders write a dozen scans; a file of many thousands, each a pass over all pixels, is an attack.
constexpr int kMostScans = 100;

struct Errors {
  jpeg_error_mgr manager;  // first, so that a pointer to it is one to the whole
  std::jmp_buf jump;
  char failure[JMSG_LENGTH_MAX];
  char warning[JMSG_LENGTH_MAX];
  bool no_memory;  // is why it failed
};

Errors& errors_of(j_common_ptr common) { return *reinterpret_cast<Errors*>(common->err); }

[[noreturn]] void fail(j_common_ptr common) {
  Errors& errors = errors_of(common);
  common->err->format_message(common, errors.failure);
  errors.no_memory = common->err->msg_code == JERR_OUT_OF_MEMORY || common->err->msg_code == JERR_NO_BACKING_STORE;
  std::longjmp(errors.jump, 1);
}

// Takes messages of all levels; -1 is a warning, of which the first is kept. A file that ends early is a failure.
void take_message(j_common_ptr common, int level) {
  if (level >= 0) return;
  if (common->err->msg_code == JWRN_JPEG_EOF) fail(common);
  Errors& errors = errors_of(common);
  if (errors.warning[0] == '\0') common->err->format_message(common, errors.warning);
}

void limit_scans(j_common_ptr common) {
  if (reinterpret_cast<j_decompress_ptr>(common)->input_scan_number <= kMostScans) return;
  Errors& errors = errors_of(common);
  std::snprintf(errors.failure, sizeof(errors.failure), "more than %d scans", kMostScans);
  std::longjmp(errors.jump, 1);
}

// Turns a row of inverted CMYK, as Adobe writes it, into RGB: each ink takes its part of what black leaves. Products of
// bytes are divided by 255 and rounded.
void rgb_of_inverted_cmyk(const uint8_t* cmyk, int64_t pixels, uint8_t* rgb) {
  for (int64_t i = 0; i < pixels; i++, cmyk += 4, rgb += 3) {
    const int white = cmyk[3];  // 255 - black
    for (int c = 0; c < 3; c++) {
      const int product = (255 - cmyk[c]) * white + 128;
      rgb[c] = static_cast<uint8_t>(white - (((product >> 8) + product) >> 8));
    }
  }
}

// Holds libjpeg's state. What longjmp leaves behind is freed by the destructor alone.
class Decompressor {
 public:
  Decompressor() {
    state_.err = jpeg_std_error(&errors_.manager);
    errors_.manager.error_exit = fail;
    errors_.manager.emit_message = take_message;
  }
  ~Decompressor() { jpeg_destroy_decompress(&state_); }
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;

  // Returns whether all pixels were decoded; `row` is room for one of CMYK. No object that a jump would pass over has a
  // destructor.
  bool run(std::span<const std::byte> bytes, const ImageHeader& header, uint8_t* row, uint8_t* rgb) {
    if (setjmp(errors_.jump) != 0) return false;
    jpeg_create_decompress(&state_);
    progress_.progress_monitor = limit_scans;
    state_.progress = &progress_;
    jpeg_mem_src(&state_, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    jpeg_read_header(&state_, TRUE);
    if (state_.image_width != static_cast<JDIMENSION>(header.width) ||
        state_.image_height != static_cast<JDIMENSION>(header.height) || state_.num_components != header.channels) {
      std::snprintf(errors_.failure, sizeof(errors_.failure), "the frame header is not the one found at first");
      return false;
    }
    const bool inked = header.channels == 4;
    state_.out_color_space = inked ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&state_);
    while (state_.output_scanline < state_.output_height) {
      uint8_t* line = rgb + static_cast<int64_t>(state_.output_scanline) * header.width * 3;
      JSAMPROW rows[1] = {inked ? row : line};
      if (jpeg_read_scanlines(&state_, rows, 1) == 1 && inked) rgb_of_inverted_cmyk(row, header.width, line);
    }
    jpeg_finish_decompress(&state_);
    return true;
  }

  const char* failure() const { return errors_.failure; }
  bool no_memory() const { return errors_.no_memory; }
  const char* warning() const { return errors_.warning; }

 private:
  jpeg_decompress_struct state_{};
  jpeg_progress_mgr progress_{};
  Errors errors_{};
};

}  // namespace

std::string decode_jpeg(std::span<const std::byte> bytes, std::string_view source, const ImageHeader& header,
                        Image& image) {
  std::vector<uint8_t> row(header.channels == 4 ? static_cast<size_t>(header.width) * 4 : 0);
  Decompressor decompressor;
  if (!decompressor.run(bytes, header, row.data(), image.rgb.data())) {
    if (decompressor.no_memory()) throw std::bad_alloc();
    user_error("{}: {} JPEG file ({}), expected a whole image: copy or fetch it again", source, kCannotDecode,
               decompressor.failure());
  }
  return decompressor.warning();
}

}  // namespace snug
