// Declares the facts of the CUDA backend that planning knows: plain numbers, compiled everywhere.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

#include "backend/product.h"
#include "base/rounding.h"
#include "program/facts.h"

namespace snug {

// Gives the facts of cards of a compute capability: 86 for 8.6.
class CudaFacts : public OpFacts {
 public:
  explicit CudaFacts(int capability = 90) : capability_(capability) {}
  Kernel kernel(const Attrs& attrs, std::span<const Operand> operands) const override;
  uint64_t scratch_bytes(const Attrs& attrs, std::span<const Operand> operands) const override;
  uint64_t alignment() const override { return 256; }

 private:
  int capability_;
};

namespace cuda {

inline constexpr int kLeastCapability = 80;  // of the cards that kernels are written for
// Returns whether kernels that were compiled for these architectures ("80,90a,120-virtual") run on cards of a
// capability: those of one generation run on its later ones, those for one card on no other, and code that the driver
// compiles on all later ones.
bool has_code(std::string_view architectures, int capability);

// Returns whether a card has warpgroups, whose kernels are compiled for it alone.
constexpr bool has_warpgroups(int capability) { return capability == 90; }

// Gives the sizes of the tiles of the kernels that such cards have for AdaptedGemm and SwiGluGemm; columns are read and
// written kVectorElements at a time.
inline constexpr int kProductTileRows = 128, kProductTileColumns = 256, kVectorElements = 8;
// Returns why those kernels do not take the op, which then runs as the ops of which it is made; empty if they do. Kind:
// AdaptedGemm, SwiGluGemm, SwiGluGemmBackward. View: Operand or TensorView; the op's, with or without scratch.
template <class Kind, class View>
std::string_view unlike_tiles(const Kind& op, std::span<const View> operands);
// Says how many columns of a row of h a block of a cluster holds, and how many blocks a cluster has at most, where
// SwiGLU's ops write codes as well; columns are dealt out among the least power of two of blocks that holds them.
inline constexpr int64_t kClusterColumns = 8192, kMostClusterBlocks = 8;
int64_t cluster_blocks(int64_t columns);
// Returns why the kernel for a SwiGluQuantize or a SwiGluBackwardQuantize does not take the op; as unlike_tiles().
template <class Kind, class View>
std::string_view unlike_clusters(const Kind& op, std::span<const View> operands);
// Returns why the one kernel for an adapter's gradients, which every card has, does not take the op.
template <class View>
std::string_view unlike_adapter_kernel(const AdapterBackward& op, std::span<const View> operands);

// Products of fewer operations run by the library's first choice, and by themselves.
inline constexpr double kLargeProduct = 1 << 30;
// Names the side of a large product in bf16 that 8 does not divide, such as a vocabulary of 32,001, where rows begin at
// multiples of 16 bytes. The library's fast kernels take 16 bytes of a row at a time: such a product is made of two, of
// which one has the rest. View: Operand or TensorView; the op's.
enum class OddSide { None, K, N, M };
template <class View>
OddSide odd_side(const Gemm& gemm, const Product& product, std::span<const View> operands);

// cuBLASLt may use this many bytes in a product: NVIDIA's advice for Hopper. It picks among the algorithms that need no
// more.
inline constexpr uint64_t kGemmScratchBytes = 32 << 20;

// Returns the number of rows whose part of a gain's gradient is one sum: at most 1024 such parts and, for up to 8192
// columns of bf16, whose blocks fetch rows ahead, as many as 128 multiprocessors work on at their fastest.
constexpr int64_t norm_block_rows(int64_t rows, int64_t cols, DType dtype) {
  const int64_t most = dtype != DType::BF16 || cols > 8192 ? 1024 : cols > 2048 ? 128 : 512;
  return std::max<int64_t>(8, ceil_div(rows, most));
}

uint64_t rms_norm_backward_scratch_bytes(const RmsNormBackward& norm, DType dtype, int64_t rows, int64_t cols);
uint64_t layer_norm_backward_scratch_bytes(const LayerNormBackward& norm, DType dtype, int64_t rows, int64_t cols);

// Says how attention is computed, forward and backward.
enum class AttentionKernel {
  ByWarpgroups,  // by tiles, by the warpgroups of compute capability 9.0
  ByTiles,       // by tiles, with the tensor cores' instructions of 8.0 and later
  ByToken        // by a warp for each token and head, key after key, without tensor cores
};
std::string_view name(AttentionKernel kernel);
// Returns the kernel for heads of `dim` elements on cards of a compute capability (86 for 8.6), for operands whose rows
// can be read 16 bytes at a time, or 8 if 8 does not divide dim; all others go by tokens.
AttentionKernel attention_kernel(DType dtype, int64_t dim, int capability);
// Returns the kernel for heads whose values may have another size.
AttentionKernel attention_kernel(DType dtype, const Attention& attention, int capability);
// Lists the columns of the tiles, ascending: heads of other sizes take the next, whose other columns are zeros. Scores
// under a soft cap have fewer, as few models have one.
inline constexpr std::array<int, 6> kTileDims{32, 64, 96, 128, 192, 256}, kWarpgroupDims{64, 80, 96, 128, 192, 256};
inline constexpr std::array<int, 2> kCappedTileDims{128, 256};
// By tiles before Hopper's, heads whose values have another size than keys have fewer as well.
inline constexpr std::array<int, 2> kValueTileDims{192, 256};
inline constexpr uint64_t kTileCounterBytes = 256;  // for the counters from which attention's blocks take their tiles

// Returns by what the backward by warpgroups takes longer than its rate where heads of keys are few: a tile of keys is
// the work of one multiprocessor for all query heads of its group, so that the longest tile may take longer than all
// the rest together. 1: it does not.
double few_tiles_stretch(const AttentionBackward& attention, int64_t keys);
// Returns the bytes of counters, and of one fp32 for each token and query head: the sum of dout out.
uint64_t attention_backward_scratch_bytes(const AttentionBackward& attention, int64_t tokens);

// Says how many columns and rows of dy a block of an adapter's gradients takes at a time. Other ranks are left to
// products, which are faster if the rank is larger.
inline constexpr int kAdapterCols = 1024, kAdapterRows = 32;
inline bool adapter_kernel_takes(int64_t rank) { return rank == 8 || rank == 16; }
// Returns the number of blocks across dy; none has columns of two parts.
int64_t adapter_column_blocks(const AdaptedParts& parts);
// Returns how many blocks share the rows of each column block. Sums depend on it, so it follows from shapes alone, and
// is chosen to keep an H200's multiprocessors busy.
int64_t adapter_ranges(int64_t rows, int64_t column_blocks);
uint64_t adapter_backward_scratch_bytes(const AdapterBackward& backward, int64_t rows, int64_t rank);

}  // namespace cuda
}  // namespace snug
