// Computes a product on one thread by the library's product or, where it has but its reference implementation (results
// with gaps between their rows, and steps after the sums), which is hundreds of times slower, by its product alone,
// with alpha, addend and bias after it; or, if it has none for this processor (bf16 without AVX-512), by its fp32
// product of factors that are widened to fp32 first. All have fp32 sums and are rounded once; their bits may differ.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/cpu/onednn.h"

namespace snug::cpu {

// Computes the fp32 sums alone. Factors are widened a slice of the summed dimension at a time, so that scratch does not
// grow with it; those that need no widening are one slice.
struct PlainSums {
  bool widen = false;
  int64_t first_k = 0, slice_k = 0, slices = 1;  // every slice has `slice_k`, except the first, which has the rest
  std::optional<LibraryMatmul> first, next;      // sums = a b, and sums += a b, of which one slice has no need
};

class Matmul {
 public:
  // Returns nothing if the library has no way to the sums on this processor.
  static std::optional<Matmul> make(const MatmulSpec& spec);

  uint64_t scratch_bytes() const;
  // Returns what runs: "brg:avx512_core_amx_bf16", "sums, brg:avx512_core", "widened, gemm:jit".
  std::string implementation() const;

 private:
  friend class MatmulCall;
  explicit Matmul(const MatmulSpec& spec) : spec_(spec) {}

  MatmulSpec spec_;
  std::optional<LibraryMatmul> whole_;
  PlainSums sums_;  // used without whole_
};

// Runs a product made ready for one thread at a time; several calls of one Matmul may run at once.
class MatmulCall {
 public:
  explicit MatmulCall(const Matmul& matmul);

  // `c` and `bias` are not read if the spec has none; `scratch` has Matmul::scratch_bytes(), aligned to 64.
  void operator()(const std::byte* a, const std::byte* b, const std::byte* c, const std::byte* bias, std::byte* d,
                  std::byte* scratch);

 private:
  void run_sums(const std::byte* a, const std::byte* b, std::byte* scratch);

  std::shared_ptr<const Matmul> matmul_;
  std::vector<LibraryCall> calls_;  // for the whole product; or for the first and the next slices
};

// Holds the calls of all products of a backend, one for each thread that works at once. Products of one spec share
// them, as ops of one lane never run at once and every use sets all addresses. A call takes some kilobytes, and large
// models have tens of thousands of products of a few dozen specs.
class MatmulCalls {
 public:
  using Lanes = std::shared_ptr<std::vector<MatmulCall>>;
  // Returns at least `lanes` calls of the product that was made from the spec.
  Lanes of(const MatmulSpec& spec, const Matmul& matmul, uint64_t lanes);

 private:
  std::map<MatmulSpec, Lanes> by_spec_;
};

}  // namespace snug::cpu
