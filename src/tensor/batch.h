// Defines the arrays of one pass's batch: only here stand their names, order, types and sizes. The data room fills them
// on the host (data/batcher.h says with what), one copy brings them to the device, and ops read them there.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "tensor/view.h"

namespace snug {

// Holds one thing for each array: its field, a view of it on the host, or an operand on the device. There are T tokens,
// and at most D documents. `Floats` is the type for arrays of fp32, if it differs from that for int32.
template <class Array, class Floats = Array>
struct BatchArrays {
  Array ids;             // [T]
  Array positions;       // [T], or [axes, T] where a model has several axes
  Array documents;       // [D + 1]
  Array loss_rows;       // [T]
  Array loss_targets;    // [T]
  Floats loss_weights;   // [T] fp32
  Array token_order;     // [T]
  Array segment_starts;  // [T + 1]
  Array segment_ids;     // [T]

  static constexpr size_t kCount = 9;

  std::array<Array, kCount> in_order() const {
    return {ids, positions, documents, loss_rows, loss_targets, loss_weights, token_order, segment_starts, segment_ids};
  }
  // Returns the inverse of in_order(). Throws InternalError for fewer arrays.
  static BatchArrays of(std::span<const Array> a) {
    check(a.size() >= kCount, "{} arrays of a batch, expected {}", a.size(), kCount);
    return {a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8]};
  }
  // Returns what f makes of each array of int32, and g of those of fp32.
  template <class F, class G>
  auto map(const F& f, const G& g) const {
    return BatchArrays<decltype(f(ids)), decltype(g(loss_weights))>{f(ids),         f(positions),      f(documents),
                                                                    f(loss_rows),   f(loss_targets),   g(loss_weights),
                                                                    f(token_order), f(segment_starts), f(segment_ids)};
  }
};

// Says how large the arrays of a pass's images are: P patches of K numbers, of at most I images, of which a projector
// makes R rows.
struct ImageRoom {
  int64_t patches = 0, numbers = 0, images = 0, rows = 0;
  bool position_rows = false;  // whether rows of a table are added to patches
  bool queries = false;        // whether a projector's queries look at images
  bool class_rows = false;     // whether every image has a row of the tower's residual stream before its patches'
};

// Holds the arrays of the images of a pass; numbers of patches are in the products' dtype. Patches beyond the last
// image's are padding.
template <class Array>
struct ImageArrays {
  Array pixels;     // [P, K]
  Array positions;  // [2, P] rows and columns of the patches in their images; 0 in padding
  Array images;     // [I + 1] where the patches of each image begin, and the end of the last
  Array windows;    // [I + 1] the same of the windows of images
  Array places;     // [R] the tokens whose places the rows take; -1 in padding
  // With position_rows: which row of the table a patch takes, and the patches sorted by that, as token_order,
  // segment_starts and segment_ids have tokens.
  Array table_rows{}, table_order{};  // [P]
  Array table_starts{}, table_ids{};  // [P + 1], [P]
  // With queries: where the rows of each image begin, as `images` has patches, and which query makes a row.
  Array image_rows{}, queries{};  // [I + 1], [R]
  // With class_rows: where the rows of each image begin in the tower's residual stream.
  Array stream{};  // [I + 1]

  // How many there are says which.
  static ImageArrays of(std::span<const Array> a) {
    check(a.size() >= 5 && a.size() <= 12, "{} arrays of images, expected 5 to 12", a.size());
    ImageArrays arrays{a[0], a[1], a[2], a[3], a[4]};
    size_t next = 5, more = a.size() - 5;
    if (more % 2 == 1) arrays.stream = a[--more + 5];
    if (more >= 4)
      for (Array* const array : {&arrays.table_rows, &arrays.table_order, &arrays.table_starts, &arrays.table_ids})
        *array = a[next++];
    if (more % 4 == 2) arrays.image_rows = a[next], arrays.queries = a[next + 1];
    return arrays;
  }
};

// Holds the rows that a tower made of the images of a pass, in the products' dtype, where the pass has no tower.
template <class Array>
struct EmbeddingArrays {
  Array rows;    // [R, H]
  Array places;  // [R] the tokens whose places the rows take; -1 for the rows behind the last image's

  static EmbeddingArrays of(std::span<const Array> a) {
    check(a.size() >= 2, "{} arrays of embeddings, expected 2", a.size());
    return {a[0], a[1]};
  }
};

// Holds the arrays of a pass that generates: n tokens and their positions, the token whose logits are wanted and, where
// some tokens stand for images, which of them take the rows that a tower made of these.
template <class Array>
struct TokenArrays {
  Array ids;        // [n]
  Array positions;  // [n], or [axes, n]
  Array row;        // [1]
  Array places{};   // [rows of the tower], or none; -1 for a row that stands for none of the n tokens

  static TokenArrays of(std::span<const Array> a, bool places) {
    check(a.size() >= (places ? 4 : 3), "{} arrays of tokens, expected {}", a.size(), places ? 4 : 3);
    return {a[0], a[1], a[2], places ? a[3] : Array{}};
  }
};

// Holds what a teacher says of a pass's loss rows, as TopTokens (program/loss_ops.h) writes it; zeros in rows beyond.
template <class Array, class Floats = Array>
struct TeacherArrays {
  Array ids;         // [T, k]
  Floats log_probs;  // [T, k + 1] fp32
};

// Holds type and shape of an array, which is dense.
struct ArrayField {
  DType dtype = DType::I32;
  Shape shape;
};

inline BatchArrays<ArrayField> batch_fields(int64_t tokens, int64_t documents, int64_t axes = 1) {
  const auto ints = [](int64_t count) { return ArrayField{DType::I32, {count}}; };
  return {.ids = ints(tokens),
          .positions = axes == 1 ? ints(tokens) : ArrayField{DType::I32, {axes, tokens}},
          .documents = ints(documents + 1),
          .loss_rows = ints(tokens),
          .loss_targets = ints(tokens),
          .loss_weights = {DType::F32, {tokens}},
          .token_order = ints(tokens),
          .segment_starts = ints(tokens + 1),
          .segment_ids = ints(tokens)};
}

inline std::vector<ArrayField> image_fields(DType dtype, const ImageRoom& room) {
  const ArrayField bounds{DType::I32, {room.images + 1}}, patches{DType::I32, {room.patches}},
      rows{DType::I32, {room.rows}};
  std::vector<ArrayField> fields{
      {dtype, {room.patches, room.numbers}}, {DType::I32, {2, room.patches}}, bounds, bounds, rows};
  if (room.position_rows) fields.insert(fields.end(), {patches, patches, {DType::I32, {room.patches + 1}}, patches});
  if (room.queries) fields.insert(fields.end(), {bounds, rows});
  if (room.class_rows) fields.push_back(bounds);
  return fields;
}

inline std::vector<ArrayField> embedding_fields(DType dtype, int64_t rows, int64_t columns) {
  return {{dtype, {rows, columns}}, {DType::I32, {rows}}};
}

inline std::vector<ArrayField> token_fields(int64_t tokens, int64_t axes = 1, int64_t tower_rows = 0) {
  const ArrayField ids{DType::I32, {tokens}};
  std::vector<ArrayField> fields{ids, axes == 1 ? ids : ArrayField{DType::I32, {axes, tokens}}, {DType::I32, {1}}};
  if (tower_rows > 0) fields.push_back({DType::I32, {tower_rows}});
  return fields;
}

inline std::vector<ArrayField> teacher_fields(int64_t tokens, int64_t top_k) {
  return {{DType::I32, {tokens, top_k}}, {DType::F32, {tokens, top_k + 1}}};
}

// Holds the rows of HostJob::FillEmbeddings, to be written.
struct EmbeddingViews {
  TensorView rows;
  std::span<int32_t> places;
};

// Numbers of the arrays, to be written.
using TeacherViews = TeacherArrays<std::span<int32_t>, std::span<float>>;
using BatchViews = BatchArrays<std::span<int32_t>, std::span<float>>;
using TokenViews = TokenArrays<std::span<int32_t>>;

// Returns a view as numbers, for the views that HostJob::FillBatch and HostJob::FillTokens get: the arrays in order,
// and the bytes in which they lie.
template <class T>
std::span<T> numbers_of(const TensorView& view) {
  return {view.as<T>(), static_cast<size_t>(view.count())};
}
inline BatchViews batch_views(std::span<const TensorView> views) {
  return BatchArrays<TensorView>::of(views).map(numbers_of<int32_t>, numbers_of<float>);
}
// The same of the views that HostJob::FillTeacher and HostJob::KeepTeacher get.
inline TeacherViews teacher_views(std::span<const TensorView> views) {
  check(views.size() >= 2, "{} arrays of a teacher, expected 2", views.size());
  return {numbers_of<int32_t>(views[0]), numbers_of<float>(views[1])};
}
// The last of the views that HostJob::FillTokens gets are the bytes in which the arrays lie.
inline TokenViews token_views(std::span<const TensorView> views) {
  const bool places = views.size() > 4;
  const auto arrays = TokenArrays<TensorView>::of(views, places);
  return {numbers_of<int32_t>(arrays.ids), numbers_of<int32_t>(arrays.positions), numbers_of<int32_t>(arrays.row),
          places ? numbers_of<int32_t>(arrays.places) : std::span<int32_t>()};
}

inline EmbeddingViews embedding_views(std::span<const TensorView> views) {
  const auto arrays = EmbeddingArrays<TensorView>::of(views);
  return {arrays.rows, numbers_of<int32_t>(arrays.places)};
}

}  // namespace snug
