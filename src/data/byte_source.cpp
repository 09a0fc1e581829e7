#include "data/byte_source.h"

#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace snug {
namespace {

constexpr size_t kInputBytes = size_t{256} << 10;

class PlainSource : public ByteSource {
 public:
  explicit PlainSource(const std::filesystem::path& path) : file_(File::open_read(path, IoMode::Buffered)) {}
  size_t read(std::span<std::byte> out) override {
    const uint64_t count = file_.read_to_end(offset_, out);
    offset_ += count;
    return count;
  }

 private:
  File file_;
  uint64_t offset_ = 0;
};

// Holds what sources of compressed bytes share: a window onto the file.
class CompressedSource : public ByteSource {
 public:
  size_t read(std::span<std::byte> out) override {
    size_t done = 0;
    while (done < out.size()) {
      if (begin_ == end_) refill();
      if (begin_ == end_ && between_) return done;
      // Without input a decoder still gives what it has held back.
      const size_t before = begin_, written = decode(out.subspan(done));
      done += written;
      if (begin_ == end_ && at_end_ && !between_ && written == 0 && before == begin_) fail("the file ends inside it");
    }
    return done;
  }

 protected:
  CompressedSource(const std::filesystem::path& path, const char* format)
      : file_(File::open_read(path, IoMode::Buffered)), format_(format), input_(kInputBytes) {}

  // Decodes from input() into `out`, tells used() how far it came, and returns the bytes written.
  virtual size_t decode(std::span<std::byte> out) = 0;

  std::span<const std::byte> input() const { return std::span(input_).subspan(begin_, end_ - begin_); }
  void used(size_t bytes) { begin_ += bytes; }
  [[noreturn]] void fail(const std::string& reason) const {
    user_error("{}: found a damaged {} stream near offset {}: {}", file_.path().string(), format_,
               offset_ - (end_ - begin_), reason);
  }

  bool between_ = true;  // at the start, or where a member or frame has ended

 private:
  void refill() {
    begin_ = 0;
    end_ = file_.read_to_end(offset_, input_);
    offset_ += end_;
    at_end_ = end_ == 0;
  }

  File file_;
  const char* format_;
  std::vector<std::byte> input_;
  size_t begin_ = 0, end_ = 0;
  uint64_t offset_ = 0;  // offset in the file of the end of the window
  bool at_end_ = false;
};

// Decompresses RFC 1952: members, behind which zeros may pad.
class GzipSource : public CompressedSource {
 public:
  explicit GzipSource(const std::filesystem::path& path) : CompressedSource(path, "gzip") {
    check(inflateInit2(&stream_, 15 + 16) == Z_OK, "zlib cannot be used");
  }
  ~GzipSource() override { inflateEnd(&stream_); }

 private:
  size_t decode(std::span<std::byte> out) override {
    if (between_ && members_ > 0) {
      const auto zeros = std::find_if(input().begin(), input().end(), [](std::byte b) { return b != std::byte{0}; });
      used(static_cast<size_t>(zeros - input().begin()));
      if (input().empty()) return 0;
      inflateReset(&stream_);
    }
    between_ = false;
    // zlib takes its input without const, and does not change it.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(input().data()));
    stream_.avail_in = static_cast<uInt>(input().size());
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    const size_t room = std::min(out.size(), size_t{1} << 30);
    stream_.avail_out = static_cast<uInt>(room);
    const int result = inflate(&stream_, Z_NO_FLUSH);
    used(input().size() - stream_.avail_in);
    if (result == Z_STREAM_END) {
      between_ = true;
      ++members_;
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      fail(stream_.msg ? stream_.msg : "zlib cannot read it");
    }
    return room - stream_.avail_out;
  }

  z_stream stream_{};
  int64_t members_ = 0;
};

// Decompresses RFC 8878: frames, skippable ones among them.
class ZstdSource : public CompressedSource {
 public:
  explicit ZstdSource(const std::filesystem::path& path)
      : CompressedSource(path, "zstd"), stream_(ZSTD_createDStream()) {
    check(stream_ != nullptr, "zstd cannot be used");
  }
  ~ZstdSource() override { ZSTD_freeDStream(stream_); }

 private:
  size_t decode(std::span<std::byte> out) override {
    ZSTD_inBuffer in{input().data(), input().size(), 0};
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    const size_t result = ZSTD_decompressStream(stream_, &to, &in);
    used(in.pos);
    if (ZSTD_isError(result)) {
      const bool window = ZSTD_getErrorCode(result) == ZSTD_error_frameParameter_windowTooLarge;
      fail(window ? "its window is above 128 MiB; compress it without --long or --ultra" : ZSTD_getErrorName(result));
    }
    between_ = result == 0;
    return to.pos;
  }

  ZSTD_DStream* stream_;
};

}  // namespace

std::unique_ptr<ByteSource> ByteSource::open(const std::filesystem::path& path, Compression compression) {
  if (compression == Compression::Gzip) return std::make_unique<GzipSource>(path);
  if (compression == Compression::Zstd) return std::make_unique<ZstdSource>(path);
  return std::make_unique<PlainSource>(path);
}

}  // namespace snug
