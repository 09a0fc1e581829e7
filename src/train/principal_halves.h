// Computes the low-rank halves with which an adapter may begin: those of a weight's largest singular values (PiSSA,
// Meng et al., arXiv:2404.02948), or of its QR decomposition (OLoRA, Büyükakyüz, arXiv:2406.01775).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/heartbeat.h"

namespace snug {

// Describes a matrix of `cols` columns, row by row.
struct MatrixView {
  std::span<const float> values;
  int64_t rows = 0, cols = 0;
};

// Holds A [rank, cols] and B [rows, rank], row by row.
struct LoraHalves {
  std::vector<float> a, b;
};

// Returns the bytes that either function has in memory at most, with the matrix that it is given.
uint64_t halves_bytes(int64_t rows, int64_t cols, int64_t rank);

// Returns A = sqrt(S / scale) V^T and B = U sqrt(S / scale) of the `rank` largest singular values S of w, at most as
// many as it has, so that scale B A is the best approximation of w of that rank, to 1e-9 of the largest. The search
// begins with numbers drawn by the seed; its result does not depend on how many threads compute it. UserError if values
// lie so close together that they are not found.
LoraHalves principal_halves(const MatrixView& w, int64_t rank, double scale, uint64_t seed,
                            const Heartbeat& heartbeat = {});

// Returns B = the first `rank` columns of Q and A = the first rows of R, of w = Q R.
LoraHalves orthogonal_halves(const MatrixView& w, int64_t rank, const Heartbeat& heartbeat = {});

}  // namespace snug
