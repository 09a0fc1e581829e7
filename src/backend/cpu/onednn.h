// Computes a product on one thread by oneDNN, versions 2 and 3. This is the only file that knows the library; other
// code takes products from matmul.h.
//
// With several threads the library cuts sums differently for different team sizes, so results would change with the
// number of threads. Here it only ever sees one; a caller with more threads gives each its own part of the result.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "tensor/view.h"

namespace snug::cpu {

// Describes d = alpha a b + c + bias: a [m, k], b [k, n], c and d [m, n], bias [n].
struct MatmulSpec {
  enum class Addend : uint8_t { None, Separate, InPlace };  // c is absent, a matrix of its own, or the bytes of d

  int64_t m = 0, n = 0, k = 0;
  DType factors = DType::F32, c = DType::F32, d = DType::F32, bias_dtype = DType::F32;
  std::array<int64_t, 2> a_strides{}, b_strides{};  // elements between rows and between columns, one of them 1
  int64_t c_stride = 0, d_stride = 0;               // elements between rows
  float alpha = 1;
  Addend addend = Addend::None;
  bool bias = false;

  auto operator<=>(const MatmulSpec&) const = default;
};

class LibraryMatmul {
 public:
  // Returns nothing if the library has no implementation for this processor.
  static std::optional<LibraryMatmul> make(const MatmulSpec& spec);

  uint64_t scratch_bytes() const;
  // Returns what the library runs: "brg:avx512_core_amx_bf16".
  std::string_view implementation() const;
  // Returns whether that is the library's reference, plain loops for what nothing else takes.
  bool is_reference() const { return implementation().starts_with("ref"); }

 private:
  friend class LibraryCall;
  struct Primitive;
  explicit LibraryMatmul(std::shared_ptr<const Primitive> primitive) : primitive_(std::move(primitive)) {}
  std::shared_ptr<const Primitive> primitive_;
};

// Runs a product made ready for one thread at a time; several calls of one LibraryMatmul may run at once.
class LibraryCall {
 public:
  explicit LibraryCall(const LibraryMatmul& matmul);
  LibraryCall(LibraryCall&&) noexcept;
  ~LibraryCall();

  // `c` and `bias` are not read if the spec has none; `scratch` has LibraryMatmul::scratch_bytes(), aligned to 64.
  void operator()(const std::byte* a, const std::byte* b, const std::byte* c, const std::byte* bias, std::byte* d,
                  std::byte* scratch);

 private:
  struct Arguments;
  std::unique_ptr<Arguments> arguments_;
};

}  // namespace snug::cpu
