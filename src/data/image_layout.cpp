#include "data/image_layout.h"

#include <algorithm>

#include "base/error.h"

namespace snug {

ImageViews image_views(std::span<const TensorView> views) {
  const auto arrays = ImageArrays<TensorView>::of(views.first(views.size() - 1));
  const auto numbers = [](const TensorView& view) {
    return view.data ? numbers_of<int32_t>(view) : std::span<int32_t>();
  };
  return {arrays.pixels,
          numbers(arrays.positions),
          numbers(arrays.images),
          numbers(arrays.windows),
          numbers(arrays.places),
          numbers(arrays.table_rows),
          numbers(arrays.table_order),
          numbers(arrays.table_starts),
          numbers(arrays.table_ids),
          numbers(arrays.image_rows),
          numbers(arrays.queries),
          numbers(arrays.stream)};
}

std::span<const int32_t> ImageLayout::add(int64_t rows, int64_t columns, int64_t token) {
  const int64_t room = views_.pixels.rows(), merge = shape_.merge;
  check(rows > 0 && columns > 0 && rows % merge == 0 && columns % merge == 0,
        "an image of {} x {} patches, of which {} x {} become a row", rows, columns, merge, merge);
  check(counts_.patches + rows * columns <= room, "an image of {} x {} patches at {} of {}", rows, columns,
        counts_.patches, room);
  check(shape_.image_side == 0 || (rows == shape_.image_side && columns == shape_.image_side),
        "an image of {} x {} patches, expected {} a side as all have", rows, columns, shape_.image_side);
  begin_ = counts_.patches;
  order_.clear();
  if (shape_.class_rows)
    views_.stream[static_cast<size_t>(counts_.images)] = static_cast<int32_t>(begin_ + counts_.images);
  views_.images[static_cast<size_t>(counts_.images++)] = static_cast<int32_t>(begin_);
  const int64_t lines = shape_.window > 0 ? shape_.window : rows, across = shape_.window > 0 ? shape_.window : columns;
  for (int64_t top = 0; top < rows; top += lines)
    for (int64_t left = 0; left < columns; left += across) {
      views_.windows[static_cast<size_t>(counts_.windows++)] = static_cast<int32_t>(counts_.patches);
      for (int64_t line = top; line < std::min(top + lines, rows); line += merge)
        for (int64_t column = left; column < std::min(left + across, columns); column += merge)
          add_square(line, column, columns, token);
    }
  if (shape_.position_side > 0) add_table_rows();
  if (shape_.queries > 0) add_queries(token);
  return order_;
}

void ImageLayout::add_table_rows() {
  const int64_t patches = std::ssize(order_);
  for (int64_t i = 0; i < patches; i++)
    views_.table_rows[static_cast<size_t>(begin_ + i)] = static_cast<int32_t>(shape_.position_side * i / patches);
}

void ImageLayout::add_queries(int64_t token) {
  const int64_t first = (counts_.images - 1) * shape_.queries;
  check(first + shape_.queries <= std::ssize(views_.queries), "image {} of {} rows a pass", counts_.images,
        views_.queries.size());
  views_.image_rows[static_cast<size_t>(counts_.images - 1)] = static_cast<int32_t>(first);
  for (int64_t i = 0; i < shape_.queries; i++) {
    views_.queries[static_cast<size_t>(first + i)] = static_cast<int32_t>(i);
    views_.places[static_cast<size_t>(first + i)] = static_cast<int32_t>(token + i);
  }
}

// Counts the patches of each row, then lays them out: rows are few.
void ImageLayout::sort_table_rows() {
  std::vector<int32_t> next(static_cast<size_t>(shape_.position_side) + 1);
  const auto rows = views_.table_rows.first(static_cast<size_t>(counts_.patches));
  for (const int32_t row : rows) next[static_cast<size_t>(row) + 1]++;
  for (size_t row = 0; row + 1 < next.size(); row++) {
    if (next[row + 1] > 0) {
      views_.table_starts[static_cast<size_t>(counts_.segments)] = next[row];
      views_.table_ids[static_cast<size_t>(counts_.segments++)] = static_cast<int32_t>(row);
    }
    next[row + 1] += next[row];
  }
  for (size_t patch = 0; patch < rows.size(); patch++)
    views_.table_order[static_cast<size_t>(next[static_cast<size_t>(rows[patch])]++)] = static_cast<int32_t>(patch);
}

void ImageLayout::add_square(int64_t line, int64_t column, int64_t columns, int64_t token) {
  const int64_t merge = shape_.merge, square = line / merge * (columns / merge) + column / merge,
                patches = views_.pixels.rows();
  if (shape_.queries == 0)
    views_.places[static_cast<size_t>(counts_.patches / (merge * merge))] = static_cast<int32_t>(token + square);
  for (int64_t i = 0; i < merge * merge; i++) {
    views_.positions[static_cast<size_t>(counts_.patches)] = static_cast<int32_t>(line + i / merge);
    views_.positions[static_cast<size_t>(patches + counts_.patches)] = static_cast<int32_t>(column + i % merge);
    order_.push_back(static_cast<int32_t>(square * merge * merge + i));
    counts_.patches++;
  }
}

ImageCounts ImageLayout::finish() {
  const auto fill = [](std::span<int32_t> array, int64_t from, int64_t value) {
    std::fill(array.begin() + from, array.end(), static_cast<int32_t>(value));
  };
  const int64_t patches = views_.pixels.rows();
  fill(views_.positions.first(static_cast<size_t>(patches)), counts_.patches, 0);
  fill(views_.positions, patches + counts_.patches, 0);
  fill(views_.images, counts_.images, counts_.patches);
  fill(views_.windows, counts_.windows, counts_.patches);
  const int64_t rows =
      shape_.queries > 0 ? counts_.images * shape_.queries : counts_.patches / (shape_.merge * shape_.merge);
  fill(views_.places, rows, -1);
  if (shape_.class_rows) fill(views_.stream, counts_.images, counts_.patches + counts_.images);
  if (shape_.position_side > 0) {
    sort_table_rows();
    fill(views_.table_rows, counts_.patches, 0);
    fill(views_.table_order, counts_.patches, 0);
    fill(views_.table_starts, counts_.segments, counts_.patches);
    fill(views_.table_ids, counts_.segments, 0);
  }
  if (shape_.queries > 0) {
    fill(views_.image_rows, counts_.images, rows);
    fill(views_.queries, rows, 0);
  }
  const uint64_t row = static_cast<uint64_t>(views_.pixels.cols()) * element_bytes(views_.pixels.dtype);
  auto* const bytes = static_cast<std::byte*>(views_.pixels.data);
  std::fill(bytes + static_cast<uint64_t>(counts_.patches) * row, bytes + static_cast<uint64_t>(patches) * row,
            std::byte{0});
  return counts_;
}

void write_positions(std::span<int32_t> positions, int64_t stride, int64_t first, int64_t tokens,
                     std::span<const ImageTokens> images) {
  const auto write = [&](int64_t token, int64_t t, int64_t h, int64_t w) {
    check(token < tokens, "a position of token {} of {}", token, tokens);
    const auto at = static_cast<size_t>(first + token), axis = static_cast<size_t>(stride);
    positions[at] = static_cast<int32_t>(t);
    positions[axis + at] = static_cast<int32_t>(h);
    positions[2 * axis + at] = static_cast<int32_t>(w);
  };
  int64_t next = 0, token = 0, start = 0;
  for (const ImageTokens& image : images) {
    for (; token < image.begin; token++, next++) write(token, next, next, next);
    if (image.step <= 1) start = next;
    for (int64_t line = 0; line < image.rows; line++)
      for (int64_t column = 0; column < image.columns; column++, token++)
        write(token, start + image.time, start + line, start + column);
    next = std::max(next, start + std::max({image.time + 1, image.rows, image.columns}));
  }
  for (; token < tokens; token++, next++) write(token, next, next, next);
}

}  // namespace snug
