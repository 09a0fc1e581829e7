// Lays the images of one pass out as the arrays that a tower's ops read (tensor/batch.h, ImageArrays), and gives the
// tokens of a text with images their positions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/batch.h"

namespace snug {

// Holds the arrays of int32 of a pass's images, to be written.
struct ImageViews {
  TensorView pixels;  // [P, K], fp32 or bf16
  std::span<int32_t> positions, images, windows, places;
  std::span<int32_t> table_rows{}, table_order{}, table_starts{}, table_ids{};  // with rows added to patches
  std::span<int32_t> image_rows{}, queries{};                                   // with queries
  std::span<int32_t> stream{};                                                  // with class rows
};
// Returns the views that HostJob::FillImages gets.
ImageViews image_views(std::span<const TensorView> views);

// Says how a model takes patches.
struct TowerShape {
  int64_t merge = 1;          // patches a side that become one row, whose patches follow each other
  int64_t window = 0;         // patches a side of the windows that attention may be in; 0: none
  int64_t queries = 0;        // rows of every image; 0: as many as squares of merge x merge
  int64_t position_side = 0;  // rows of a table that an image's patches have in order, equally often; 0: none
  int64_t image_side = 0;     // patches a side of every image; 0: images differ
  bool class_rows = false;    // whether a row stands before the patches of each image
};

struct ImageCounts {
  int64_t patches = 0, images = 0, windows = 0;
  int64_t segments = 0;  // rows of the table that patches have
  bool operator==(const ImageCounts&) const = default;
};

// Fills the arrays image by image:
//   positions  row and column of each patch in its image
//   images     the first patch of each, and the end of the last, which also fills the remaining elements
//   windows    the same of windows, which are cut from each image's upper left corner; those at the other edges are
//              smaller; an image is one where the tower has none
//   places     the token of each row of `merge` x `merge` patches, or of each query; -1 in the remaining elements
//   table_rows     the row that is added to a patch: number floor(position_side i / n) for the i-th of n patches
//   table_order, table_starts, table_ids     patches by these rows, in order (tensor/batch.h)
//   image_rows     the first row that the projector makes of each image, and the end of the last
//   queries        the query of each row: from 0 in every image; 0 in the remaining elements
//   stream         the same as `images`, of patches with a row before those of every image
// Where the tower has windows, the patches of each lie together; so attention within windows, and within images, is
// attention within runs of patches.
class ImageLayout {
 public:
  ImageLayout(const TowerShape& shape, const ImageViews& views) : shape_(shape), views_(views) {}

  // Adds an image of rows x columns patches whose rows take the places of tokens from `token` on, in raster order.
  // Returns which of the image's patches each of those of the batch is; their order in the image is from square to
  // square of merge x merge, and from left to right. It is valid until the next call. Throws InternalError where there
  // is no room for it.
  std::span<const int32_t> add(int64_t rows, int64_t columns, int64_t token);
  // Fills the rest of the arrays; the pixels of the padding are 0.
  ImageCounts finish();

 private:
  void add_square(int64_t line, int64_t column, int64_t columns, int64_t token);
  void add_table_rows();
  void add_queries(int64_t token);
  void sort_table_rows();

  TowerShape shape_;
  ImageViews views_;
  ImageCounts counts_;
  int64_t begin_ = 0;  // of the image that is added, in patches
  std::vector<int32_t> order_;
};

// Describes the rows of an image among a document's tokens, or of a step of a video, as of SampleImage.
struct ImageTokens {
  int64_t begin = 0, rows = 0, columns = 0;
  int64_t step = 0, time = 0;
};

// Writes the positions of a document's tokens on three axes, of `stride` elements each, from `first` on: those of text
// are equal on all; those of an image's rows are that of its beginning, and that and the row's line and column; those
// of a video's steps begin alike, and are further by the step's time on the first axis. What follows goes on behind the
// largest position so far (M-RoPE, Wang et al., arXiv:2409.12191, as transformers 4 has it).
void write_positions(std::span<int32_t> positions, int64_t stride, int64_t first, int64_t tokens,
                     std::span<const ImageTokens> images);

}  // namespace snug
