// Headers and pixels of image files as Pillow reads them, and what is refused.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <new>
#include <set>

#include "base/error.h"
#include "expect_error.h"
#include "image/data_url.h"
#include "image_fixture.h"
#include "temp_directory.h"

namespace snug {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

TEST(Image, HeadersSayTheSizeAsPillowDoes) {
  for (const auto& expected : stored_json("image/expected.json")) {
    const std::string name = expected["file"];
    const ImageHeader header = read_image_header(image_path(name), name);
    EXPECT_EQ(header.width, expected["width"]) << name;
    EXPECT_EQ(header.height, expected["height"]) << name;
    EXPECT_EQ(header.shown_width(), expected["shown"][0]) << name;
    EXPECT_EQ(header.shown_height(), expected["shown"][1]) << name;
    const int64_t orientation = expected["orientation"];
    EXPECT_EQ(header.orientation, orientation >= 1 && orientation <= 8 ? orientation : 1) << name;
  }
}

TEST(Image, PixelsArePillows) {
  size_t formats[3] = {};
  for (const auto& expected : stored_json("image/expected.json")) {
    const std::string name = expected["file"], text = image_text(name);
    const DecodedImage decoded = decode_image(bytes_of(text), name);
    EXPECT_EQ(decoded.image.width, expected["shown"][0]) << name;
    EXPECT_EQ(decoded.image.height, expected["shown"][1]) << name;
    EXPECT_EQ(checksum(decoded.image), expected["pixels"]) << name;
    EXPECT_EQ(decoded.warning.empty(), name != "junk.jpg") << name << ": " << decoded.warning;
    formats[static_cast<size_t>(read_image_header(image_path(name), name).format)]++;
  }
  EXPECT_TRUE(std::all_of(std::begin(formats), std::end(formats), [](size_t count) { return count >= 9; }));
}

TEST(Image, AWarningSaysWhatWasPassedOver) {
  EXPECT_EQ(decode_image(image_path("junk.jpg"), "junk.jpg").warning,
            "Corrupt JPEG data: 3 extraneous bytes before marker 0xdb");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// A file is not at fault where memory is.
TEST(Image, NoMemoryIsNoDamage) {
  for (const std::string name : {"progressive.jpg", "rgb8.png", "lossy.webp", "lossless.webp"}) {
    const std::string text = image_text(name);
    const ImageHeader header = read_image_header(image_path(name), name);
    Image image{.width = header.width, .height = header.height, .rgb = {}};
    image.rgb.resize(static_cast<size_t>(header.width * header.height * 3));
    const auto decode = [&] {
      const auto decoder = name.ends_with("jpg") ? decode_jpeg : name.ends_with("png") ? decode_png : decode_webp;
      decoder(bytes_of(text), name, header, image);
    };
    decode();
    const pid_t child = fork();
    if (child == 0) {
      const rlimit none{0, 0};
      if (setrlimit(RLIMIT_AS, &none) != 0) _exit(1);
      void* (*volatile take)(size_t) = std::malloc;  // volatile, so that each call is made
      for (size_t size = 4096; size > 0; size -= 16)
        while (take(size) != nullptr) {
        }
      try {
        decode();
      } catch (const std::bad_alloc&) {
        _exit(0);
      } catch (...) {
        _exit(2);
      }
      _exit(3);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << name;
  }
}
#endif

TEST(Image, ChannelsAreThoseOfTheFile) {
  const auto channels = [](const std::string& name) { return read_image_header(image_path(name), name).channels; };
  EXPECT_EQ(channels("grey.jpg"), 1);
  EXPECT_EQ(channels("420.jpg"), 3);
  EXPECT_EQ(channels("cmyk.jpg"), 4);
  EXPECT_EQ(channels("grey16.png"), 1);
  EXPECT_EQ(channels("grey_alpha8.png"), 2);
  EXPECT_EQ(channels("palette2.png"), 3);
  EXPECT_EQ(channels("rgba16.png"), 4);
  EXPECT_EQ(channels("lossy.webp"), 3);
  EXPECT_EQ(channels("lossy_alpha.webp"), 4);
  EXPECT_EQ(channels("lossless_alpha.webp"), 4);
}

struct Bad {
  std::string_view file, error;
};

constexpr Bad kBad[] = {
    {"bad_empty", "the file is empty, expected a JPEG, PNG or WebP image: copy or fetch it again"},
    {"bad_html", "found an HTML page, expected a JPEG, PNG or WebP image: the download of it failed"},
    {"bad_lfs", "found a Git LFS pointer, expected a JPEG, PNG or WebP image: fetch what it points to"},
    {"bad_text", "found text that begins with 'cats/1.jpg', expected"},
    {"bad_svg", "found an SVG drawing, expected"},
    {"bad_gif", "found a GIF file, expected a JPEG, PNG or WebP image: convert it to PNG or JPEG"},
    {"bad_bmp", "found a BMP file, expected"},
    {"bad_tiff", "found a TIFF file, expected"},
    {"bad_heic", "found a HEIC file, expected"},
    {"bad_avif", "found an AVIF file, expected"},
    {"bad_mp4", "found a video or another file of the MP4 family, expected"},
    {"bad_pdf", "found a PDF file, expected"},
    {"bad_zip", "found a ZIP archive, expected"},
    {"bad_bytes",
     "found bytes that begin with c8 c9 ca cb cc cd ce cf, expected a JPEG, PNG or WebP image: convert it to PNG"},
    {"bad_jpeg_cut_header", "inside its frame header; expected a whole image"},
    {"bad_jpeg_cut_scan", "cannot decode this JPEG file (Premature end of JPEG file), expected a whole image"},
    {"bad_jpeg_without_end", "cannot decode this JPEG file (Premature end of JPEG file), expected a whole image"},
    {"bad_jpeg_without_frame", "found no frame header, expected one before the pixels"},
    {"bad_jpeg_12_bits", "found 12 bits a channel, expected 8"},
    {"bad_jpeg_lossless", "found lossless JPEG, expected baseline or progressive"},
    {"bad_jpeg_two_channels", "found 2 channels, expected 1 (grey), 3 (colours) or 4 (CMYK)"},
    {"bad_jpeg_bomb", "found 65500 x 65500 pixels, expected at most 178956970 in all"},
    {"bad_jpeg_no_lines", "found 24 x 0 pixels, expected at least 1 x 1"},
    {"bad_jpeg_two_frames", "found two frame headers, expected one image"},
    {"bad_jpeg_without_tables", "cannot decode this JPEG file (Quantization table 0x00 was not defined)"},
    {"bad_jpeg_scans", "cannot decode this JPEG file (more than 100 scans)"},
    {"bad_png_cut", "inside its chunk of pixels; expected a whole image"},
    {"bad_png_without_end", "inside a chunk's header; expected a whole image"},
    {"bad_png_checksum", "cannot decode this PNG file (IDAT: CRC error)"},
    {"bad_png_zlib", "cannot decode this PNG file ("},
    {"bad_png_few_lines", "cannot decode this PNG file (Not enough image data)"},
    {"bad_png_bomb", "found 50000 x 50000 pixels, expected at most 178956970 in all"},
    {"bad_png_depth", "found 4 bits and colour type 2, which PNG does not have"},
    {"bad_png_no_pixels", "found no pixels (no IDAT chunk), expected an image"},
    {"bad_png_no_palette", "(IDAT: Missing PLTE before IDAT), expected a whole image"},
    {"bad_png_animated", "found an animated PNG, expected one image"},
    {"bad_webp_cut", "inside its pixels; expected a whole image"},
    {"bad_webp_cut_pixels", "inside its chunk 'VP8L'; expected a whole image"},
    {"bad_webp_damaged", "cannot decode this WebP file (its bits are damaged), expected a whole image"},
    {"bad_webp_animated", "found an animated WebP, expected one image"},
    {"bad_webp_canvas", "found 24 x 24 pixels, expected 25 x 24 as its header says"},
    {"bad_webp_no_pixels", "found no pixels (no VP8 chunk), expected an image"},
};

TEST(Image, WhatIsNoImageIsNamed) {
  std::set<std::string> listed;
  for (const Bad& bad : kBad) {
    const std::string name(bad.file), text = image_text(name);
    listed.insert(name);
    // The message begins with the source that was given.
    EXPECT_TRUE(fails_with<UserError>([&] { decode_image(bytes_of(text), "pictures.jsonl, line 7: x"); },
                                      "pictures.jsonl, line 7: x: "))
        << name;
    EXPECT_TRUE(fails_with<UserError>([&] { decode_image(bytes_of(text), name); }, bad.error)) << name;
    // File itself knows the pointer.
    const std::string_view of_file = name == "bad_lfs" ? "is a Git LFS pointer" : bad.error;
    EXPECT_TRUE(fails_with<UserError>([&] { decode_image(image_path(name), name); }, of_file)) << name;
  }
  for (const auto& entry : std::filesystem::directory_iterator(image_path(""))) {
    const std::string name = entry.path().filename();
    EXPECT_TRUE(!name.starts_with("bad_") || listed.contains(name)) << name;
  }
}

TEST(Image, OfALongTextTheFirstCharactersAreShown) {
  const std::string text(600, 'a');
  EXPECT_TRUE(fails_with<UserError>([&] { decode_image(bytes_of(text), "x"); },
                                    "x: found text that begins with '" + std::string(40, 'a') + "', expected"));
}

TEST(Image, PixelsAreCountedBeforeMemoryIsTaken) {
  const std::string text = image_text("420.jpg");
  EXPECT_EQ(decode_image(bytes_of(text), "x", 53 * 41).image.rgb.size(), 53u * 41 * 3);
  EXPECT_TRUE(fails_with<UserError>([&] { decode_image(bytes_of(text), "x", 53 * 41 - 1); },
                                    "x: found 53 x 41 pixels, expected at most 2172 in all"));
}

TEST(Image, EveryPrefixOfAFileIsRefused) {
  for (const char* name : {"progressive.jpg", "cmyk.jpg", "rgb8_interlaced.png", "palette4.png", "lossless.webp",
                           "lossy_alpha.webp", "exif.webp"}) {
    const std::string text = image_text(name);
    for (size_t size = 0; size < text.size(); size++)
      EXPECT_THROW(decode_image(bytes_of(text).first(size), "x"), UserError) << name << " cut at " << size;
  }
}

TEST(Image, AFlippedBitIsAnImageOrAnError) {
  for (const char* name : {"exif3.jpg", "ycck.jpg", "raw_profile_packed.png", "grey2_interlaced.png", "xmp.webp"}) {
    std::string text = image_text(name);
    for (size_t bit = 0; bit < text.size() * 8; bit += 7) {
      text[bit / 8] = static_cast<char>(text[bit / 8] ^ 1 << bit % 8);
      try {
        const Image image = decode_image(bytes_of(text), "x", 1 << 20).image;
        EXPECT_EQ(image.rgb.size(), static_cast<size_t>(image.width * image.height * 3));
      } catch (const UserError&) {
      }
      text[bit / 8] = static_cast<char>(text[bit / 8] ^ 1 << bit % 8);
    }
  }
}

// A file whose headers lie behind more metadata than is read at once.
TEST(Image, HeadersAreFoundBehindMetadata) {
  std::string text = image_text("exif6.jpg");
  std::string filler("\xff\xe2\xff\xff", 4);
  filler.resize(2 + 0xffff, 'x');
  std::string many;
  for (int i = 0; i < 5; i++) many += filler;
  text.insert(2, many);
  const TempDirectory directory;
  const auto path = directory.path() / "behind.jpg";
  std::ofstream(path, std::ios::binary) << text;
  const ImageHeader header = read_image_header(path, "behind");
  EXPECT_EQ(header.width, 24);
  EXPECT_EQ(header.height, 17);
  EXPECT_EQ(header.orientation, 6);
  EXPECT_EQ(checksum(decode_image(path, "behind").image), checksum(stored_image("exif6.jpg")));
}

// What is read of a file before its frame is bounded, whatever it holds: its size comes first, and bytes of no segment
// and segments are counted.
TEST(Image, HeadersThatDoNotEndAreRefused) {
  const std::string text = image_text("exif6.jpg");
  const auto with = [&](const std::string& filler) {
    std::string longer = text;
    return read_image_header(*std::make_unique<ImageBytes>(bytes_of(longer.insert(2, filler)), "x")).width;
  };
  const std::string mark = "\xff\xe2";  // its first bytes decide what a file is
  const std::string segment = mark + std::string("\0\2", 2);
  EXPECT_EQ(with(segment + std::string(60'000, '\0')), 24);
  EXPECT_EQ(with(segment + std::string(60'000, '\xff')), 24);
  for (const char fill : {'\0', '\xff'})
    EXPECT_TRUE(fails_with<UserError>([&] { with(segment + std::string(70'000, fill)); },
                                      "x: found more than 65536 bytes that are of no segment"));
  std::string many;
  for (int i = 0; i < 5000; i++) many += segment;
  EXPECT_TRUE(fails_with<UserError>([&] { with(many); }, "x: found no frame header in its first 4096 segments"));
  const TempDirectory directory;
  const auto path = directory.path() / "large.jpg";
  std::ofstream(path, std::ios::binary) << text.substr(0, 2) << segment;
  std::filesystem::resize_file(path, (uint64_t{1} << 31) + 1);
  EXPECT_TRUE(fails_with<UserError>([&] { read_image_header(path, "large"); },
                                    "large: found 2147483649 bytes, expected at most 2147483648 in an image"));
}

// The examples of RFC 4648, and what is refused.
TEST(Image, DataUrlsHoldBytes) {
  const auto bytes = [](const std::string& base64) { return bytes_of_data_url("data:;base64," + base64, "x"); };
  EXPECT_EQ(bytes(""), "");
  EXPECT_EQ(bytes("Zg=="), "f");
  EXPECT_EQ(bytes("Zm8="), "fo");
  EXPECT_EQ(bytes("Zm9v"), "foo");
  EXPECT_EQ(bytes("Zm9v\r\nYmE=\n"), "fooba");
  EXPECT_EQ(bytes("//8A"), std::string("\xff\xff\0", 3));
  EXPECT_EQ(bytes_of_data_url("data:image/png;base64,Zm9vYmFy", "x"), "foobar");
  EXPECT_EQ(bytes_of_data_url("DATA:IMAGE/PNG;BASE64,Zm9vYmFy", "x"), "foobar");
  EXPECT_TRUE(is_bare_base64("iVBORw0KGgoAAAA="));
  EXPECT_TRUE(is_bare_base64(std::string(300, 'a') + "\n"));
  EXPECT_FALSE(is_bare_base64("photos/cat"));
  EXPECT_FALSE(is_bare_base64("/9j/cat.jpg"));
  for (const char* cut : {"Z", "Zg", "Zg=", "Zm8", "Zm9vY", "Zg===", "===="})
    EXPECT_TRUE(fails_with<UserError>([&] { bytes(cut); }, "x: the base64 has")) << cut;
  EXPECT_TRUE(fails_with<UserError>([&] { bytes("Zm9-"); }, "x: found byte 0x2d at place 3 of the base64"));
  EXPECT_TRUE(fails_with<UserError>([&] { bytes("Zg==Zg=="); }, "x: found byte 0x5a at place 4"));
  for (const char* other : {"data:image/png,abc", "data:image/png;base64", "http://a/b;base64,Zg=="})
    EXPECT_TRUE(fails_with<UserError>([&] { bytes_of_data_url(other, "x"); }, "expected a data URL such as")) << other;
}

TEST(Image, AMissingFileIsNamed) {
  EXPECT_TRUE(
      fails_with<UserError>([] { read_image_header(image_path("no.png"), "d.jsonl, line 3"); }, "d.jsonl, line 3: "));
  EXPECT_TRUE(fails_with<UserError>([] { decode_image(image_path("no.png"), "d.jsonl, line 3"); }, "no.png: cannot"));
}

}  // namespace
}  // namespace snug
