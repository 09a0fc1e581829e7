// Holds the device functions that all kernels share: elements as fp32, 16-byte accesses, sums in a fixed order, counted
// random numbers, and the launch of element-wise work. It is compiled without contraction into fused multiply-adds,
// like all of snug.
#pragma once

#include <bit>

#include "backend/cuda/check.h"
#include "backend/cuda/kernels.h"
#include "base/rng.h"
#include "base/rounding.h"

namespace snug::cuda {

// ---- Elements -------------------------------------------------------------------------------------------------------

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(BFloat16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }
__device__ inline float to_float(Float16 x) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
  return value;
}

// Stores to nearest, ties to even.
__device__ inline void store(float& to, float x) { to = x; }
__device__ inline void store(BFloat16& to, float x) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(x)); }
__device__ inline void store(Float16& to, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(x)); }

// Stores stochastically, as cpu/math.h does.
__device__ inline void store_stochastic(BFloat16& to, float x, uint32_t random) {
  const uint32_t u = __float_as_uint(x), quiet = (u >> 16) | 0x40u;
  to.bits = static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? quiet : (u + random) >> 16);
}

// Holds N elements that one thread reads or writes at once, by accesses of up to 16 bytes.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T x[N];
  __device__ T& operator[](int i) { return x[i]; }
  __device__ const T& operator[](int i) const { return x[i]; }
};

template <int N, class T>
__device__ Pack<T, N> load(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
// Saves in accesses as wide as possible. It is in assembly, as the compiler stores a struct of 16-bit members two by
// two.
template <int N, class T>
__device__ void save(T* to, const Pack<T, N>& values) {
  constexpr int kWords = sizeof(values) / 4;
  if constexpr (sizeof(values) < 4) {
    *reinterpret_cast<Pack<T, N>*>(to) = values;
  } else {
    uint32_t words[kWords];
    memcpy(words, &values, sizeof(values));
    auto* const at = reinterpret_cast<uint32_t*>(to);
    if constexpr (kWords == 1) asm volatile("st.b32 [%0], %1;" ::"l"(at), "r"(words[0]) : "memory");
    if constexpr (kWords == 2)
      asm volatile("st.v2.b32 [%0], {%1, %2};" ::"l"(at), "r"(words[0]), "r"(words[1]) : "memory");
#pragma unroll
    for (int i = 0; i + 3 < kWords; i += 4)
      asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at + i), "r"(words[i]), "r"(words[i + 1]),
                   "r"(words[i + 2]), "r"(words[i + 3])
                   : "memory");
  }
}

template <int N, class T>
__device__ Pack<float, N> load_floats(const T* from) {
  const auto raw = load<N>(from);
  Pack<float, N> values;
#pragma unroll
  for (int i = 0; i < N; i++) values[i] = to_float(raw[i]);
  return values;
}
template <int N, class T>
__device__ void save_floats(T* to, const Pack<float, N>& values) {
  Pack<T, N> raw;
  if constexpr (std::is_same_v<T, BFloat16> && N % 2 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      uint32_t two;
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(values[i + 1]), "f"(values[i]));
      memcpy(&raw[i], &two, sizeof two);
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; i++) store(raw[i], values[i]);
  }
  save<N>(to, raw);
}

// Holds N numbers as they lie in memory, in whole words: the compiler gives each 16-bit number a register of its own.
template <class X, int N>
struct Raw {
  static constexpr int kBytes = N * static_cast<int>(sizeof(X)), kWords = (kBytes + 3) / 4;
  Pack<uint32_t, kWords> words;

  __device__ void fetch(const X* from) {
    if constexpr (kBytes == 1)
      words[0] = *reinterpret_cast<const uint8_t*>(from);
    else if constexpr (kBytes == 2)
      words[0] = *reinterpret_cast<const uint16_t*>(from);
    else
      words = load<kWords>(reinterpret_cast<const uint32_t*>(from));
  }
  __device__ X operator[](int k) const {
    constexpr int kInWord = 4 / static_cast<int>(sizeof(X)), kBits = 32 / kInWord;
    using Bits = std::conditional_t<sizeof(X) == 4, uint32_t, std::conditional_t<sizeof(X) == 2, uint16_t, uint8_t>>;
    return std::bit_cast<X>(static_cast<Bits>(words[k / kInWord] >> (k % kInWord * kBits)));
  }
  __device__ Pack<float, N> floats() const {
    Pack<float, N> floats;
#pragma unroll
    for (int k = 0; k < N; k++) floats[k] = to_float((*this)[k]);
    return floats;
  }
  // Says that the result of floats() is no longer used: the compiler would otherwise keep those registers.
  __device__ void keep_words() {
#pragma unroll
    for (int i = 0; i < kWords; i++) asm volatile("" : "+r"(words[i]));
  }
};

// Returns element i of an array of T that starts at any byte.
template <class T>
__device__ float load_any_byte(const std::byte* array, int64_t i) {
  T value;
  memcpy(&value, array + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return to_float(value);
}

// Returns N elements from `begin` of a row that starts at any byte; at multiples of 16 bytes if N is more than 1.
template <int N, class T>
__device__ Pack<float, N> load_row(const std::byte* row, int64_t begin) {
  if constexpr (N > 1)
    return load_floats<N>(reinterpret_cast<const T*>(row) + begin);
  else
    return {{load_any_byte<T>(row, begin)}};
}

// Returns e^x as the CPU's kernels compute it, to the bit (cpu/math.h); for bf16 results the processor's suffices.
__device__ inline float exact_exp(float x) {
  constexpr float kRound = 0x1.8p23f;
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  const float shifted = fmaf(x, 0x1.715476p0f, kRound);
  const float n = shifted - kRound;
  const int32_t exponent = __float_as_int(shifted) - __float_as_int(kRound);
  const float r = fmaf(n, -0x1.7f7d1cp-20f, fmaf(n, -0x1.62e4p-1f, x));
  float p = 1.0f / 5040;
  p = fmaf(p, r, 1.0f / 720);
  p = fmaf(p, r, 1.0f / 120);
  p = fmaf(p, r, 1.0f / 24);
  p = fmaf(p, r, 1.0f / 6);
  p = fmaf(p, r, 0.5f);
  p = fmaf(p, r, 1.0f);
  p = fmaf(p, r, 1.0f);
  const int32_t half = exponent >> 1;
  return p * __int_as_float((half + 127) << 23) * __int_as_float((exponent - half + 127) << 23);
}

// Returns e^x for results in T.
template <class T>
__device__ float exponential(float x) {
  if constexpr (sizeof(T) == sizeof(float))
    return exact_exp(x);
  else
    return __expf(x);
}
template <class T>
__device__ float sigmoid(float x) {
  if constexpr (sizeof(T) == sizeof(float))
    return 1.0f / (1.0f + exact_exp(-x));
  else
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

// Returns x under a soft cap; without one (0) x itself. cap_slope() returns the derivative from that result.
__device__ inline float capped(float x, float cap) { return cap > 0 ? cap * tanhf(x / cap) : x; }
__device__ inline float cap_slope(float y, float cap) { return cap > 0 ? 1.0f - y / cap * (y / cap) : 1.0f; }

// Returns x / by, rounded as division rounds (Markstein, IBM J. Res. Dev. 34(1), 1990), if neither x, by nor the result
// is near the ends of the exponents. `inverse` is 1 / by, rounded, or fast_normal_inverse(by), as in the compiler's
// division, which goes the same way. A zero may lose its sign.
__device__ inline float quotient(float x, float by, float inverse) {
  const float y = x * inverse;
  return fmaf(fmaf(-y, by, x), inverse, y);
}

// Return 1 / x, x / by and the square root of x by the processor's approximations and corrections, as the compiler
// makes them without its calls for numbers near the ends of the exponents: for all other normal numbers they are equal
// to the bit.
__device__ inline float fast_normal_inverse(float x) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
  return fmaf(inverse, fmaf(-x, inverse, 1.0f), inverse);
}
__device__ inline float fast_normal_quotient(float x, float by) { return quotient(x, by, fast_normal_inverse(by)); }
__device__ inline float fast_normal_root(float x) {
  float inverse;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
  const float root = x * inverse;
  return fmaf(fmaf(-root, root, x), inverse * 0.5f, root);
}

// ---- Sums -----------------------------------------------------------------------------------------------------------

inline constexpr uint32_t kAll = 0xffffffffu;

// Returns the sum over each `width` lanes of a warp; every lane gets it.
template <int width = 32>
__device__ float warp_sum(float x) {
#pragma unroll
  for (int step = width / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAll, x, step);
  return x;
}
template <int width = 32, class T>
__device__ T warp_max(T x) {
#pragma unroll
  for (int step = width / 2; step > 0; step /= 2) x = max(x, __shfl_xor_sync(kAll, x, step));
  return x;
}

// Returns the sum over a block of whole warps, in an order that its size alone decides; every thread gets it. `shared`
// has 32 values, and is free again after the next barrier.
__device__ inline float block_sum(float x, float* shared) {
  x = warp_sum(x);
  const unsigned warps = blockDim.x / 32;
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  return warp_sum(threadIdx.x % 32 < warps ? shared[threadIdx.x % 32] : 0.0f);
}
template <class T>
__device__ T block_max(T x, T* shared, T lowest) {
  x = warp_max(x);
  const unsigned warps = blockDim.x / 32;
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  return warp_max(threadIdx.x % 32 < warps ? shared[threadIdx.x % 32] : lowest);
}

// ---- Random numbers -------------------------------------------------------------------------------------------------

// Draws Random of base/rng.h in kernels, with equal bits.
struct DeviceRandom {
  DeviceRandom(uint64_t seed, RandomPurpose purpose, uint32_t stream)
      : purpose(static_cast<uint32_t>(purpose)), stream(stream) {
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    for (uint32_t(&key)[2] : keys) {
      key[0] = k0;
      key[1] = k1;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
  }

  // Returns elements 4 block .. 4 block + 3 of the stream.
  __device__ uint4 words(uint64_t block) const {
    uint32_t c0 = static_cast<uint32_t>(block), c1 = static_cast<uint32_t>(block >> 32), c2 = stream, c3 = purpose;
#pragma unroll
    for (int round = 0; round < kRounds; round++) {
      const uint64_t a = uint64_t{0xD2511F53u} * c0, b = uint64_t{0xCD9E8D57u} * c2;
      c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ keys[round][0];
      c1 = static_cast<uint32_t>(b);
      c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ keys[round][1];
      c3 = static_cast<uint32_t>(a);
    }
    return {c0, c1, c2, c3};
  }
  __device__ uint32_t bits(uint64_t index) const {
    const uint4 four = words(index / 4);
    return index % 4 == 0 ? four.x : index % 4 == 1 ? four.y : index % 4 == 2 ? four.z : four.w;
  }
  // Draws elements first .. first + N - 1; N is 1, or `first` a multiple of 4.
  template <int N>
  __device__ void bits(uint64_t first, uint32_t (&elements)[N]) const {
    if constexpr (N == 1) {
      elements[0] = bits(first);
    } else {
#pragma unroll
      for (int i = 0; i < N; i += 4) {
        const uint4 four = words(first / 4 + static_cast<uint64_t>(i / 4));
        elements[i] = four.x;
        elements[i + 1] = four.y;
        elements[i + 2] = four.z;
        elements[i + 3] = four.w;
      }
    }
  }

  static constexpr int kRounds = 10;
  uint32_t keys[kRounds][2];  // each round's, so that no thread computes them
  uint32_t purpose, stream;
};

// ---- The device -----------------------------------------------------------------------------------------------------

// Returns an attribute of this thread's device.
inline int device_attribute(cudaDeviceAttr what) {
  int device = 0, value = 0;
  check_cuda(cudaGetDevice(&device), "choosing the device");
  check_cuda(cudaDeviceGetAttribute(&value, what, device), "a device's attribute");
  return value;
}
inline int multiprocessors() { return device_attribute(cudaDevAttrMultiProcessorCount); }

// Returns the architecture for which a kernel's code on this device was made (89 for 8.9). It is less than the device's
// where the build has no code of its own for it.
template <class Kernel>
int architecture_of(Kernel* kernel) {
  cudaFuncAttributes attributes{};
  check_cuda(cudaFuncGetAttributes(&attributes, kernel), "a kernel's code");
  return attributes.ptxVersion;
}

// Allows launches of a kernel with this much dynamic shared memory.
template <class Kernel>
void allow_shared(Kernel* kernel, int bytes) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "a kernel's shared memory");
}

// Returns how many blocks of a kernel, each with this much dynamic shared memory, are resident on the device at a time;
// 0 if it lacks that much for one.
template <class Kernel>
int64_t resident_blocks(Kernel* kernel, int threads, size_t shared) {
  cudaFuncAttributes itself{};
  check_cuda(cudaFuncGetAttributes(&itself, kernel), "a kernel's shared memory");
  const int most = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - static_cast<int>(itself.sharedSizeBytes);
  if (shared > static_cast<size_t>(most)) return 0;
  allow_shared(kernel, most);  // the maximum, as this kernel is also launched with more
  int blocks_per_multiprocessor = 0;
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_per_multiprocessor, kernel, threads, shared),
             "a kernel's blocks");
  return int64_t{multiprocessors()} * blocks_per_multiprocessor;
}

// ---- Matrices -------------------------------------------------------------------------------------------------------

// Gives the rows of a view whose dtype is known.
template <class T>
struct Rows {
  explicit Rows(const TensorView& view) : data(view.as<T>()), stride(view.row_stride) {}
  __device__ T* at(int64_t row, int64_t col) const { return data + row * stride + col; }
  T* data;
  int64_t stride;
};

// Gives the rows of a view that may start at any byte.
struct ByteRows {
  explicit ByteRows(const TensorView& view)
      : data(view.data), stride(view.row_stride * static_cast<int64_t>(element_bytes(view.dtype))) {}
  __device__ std::byte* at(int64_t row) const { return data + row * stride; }
  std::byte* data;
  int64_t stride;  // bytes
};

// Calls f.template operator()<T>() with T of an activation's dtype.
template <class F>
decltype(auto) dispatch_activation(DType dtype, const F& f) {
  return dtype == DType::BF16 ? f.template operator()<BFloat16>() : f.template operator()<float>();
}

inline constexpr int kWide = 8;  // elements a thread takes at once where addresses and sizes allow it
inline constexpr int kThreads = 256;

// Returns whether rows of all views can be read this many elements at a time.
inline bool wide(std::initializer_list<TensorView> views, int elements = kWide) {
  for (const TensorView& view : views) {
    const uint64_t bytes = std::min<uint64_t>(16, static_cast<uint64_t>(elements) * element_bytes(view.dtype));
    if (reinterpret_cast<uintptr_t>(view.data) % bytes != 0 || view.cols() % elements != 0) return false;
    if (view.rows() > 1 && static_cast<uint64_t>(view.row_stride) * element_bytes(view.dtype) % bytes != 0)
      return false;
  }
  return true;
}

// Calls f.template operator()<N>() with N elements at a time.
template <class F>
decltype(auto) dispatch_wide(bool wide, const F& f) {
  return wide ? f.template operator()<kWide>() : f.template operator()<1>();
}

// Holds the size of a matrix whose elements can be taken in any grouping: of views of one shape, a single row if all
// are dense.
struct Extent {
  explicit Extent(std::initializer_list<TensorView> views) : rows(views.begin()->rows()), cols(views.begin()->cols()) {
    for (const TensorView& view : views)
      if (!view.dense()) return;
    cols *= rows;
    rows = cols > 0 ? 1 : 0;
  }
  Extent(int64_t rows, int64_t cols) : rows(rows), cols(cols) {}
  int64_t rows, cols;
};

template <int N, class Body>
__global__ void __launch_bounds__(kThreads) each_element(int64_t rows, int64_t cols, Body body) {
  const int64_t col = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N;
  if (col >= cols) return;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) body.template operator()<N>(row, col);
}

inline unsigned grid_rows(int64_t rows) { return static_cast<unsigned>(std::min<int64_t>(rows, 65535)); }
inline unsigned blocks_of(int64_t count, int64_t each) { return static_cast<unsigned>(ceil_div(count, each)); }

// Calls body.operator()<N>(row, col) for every group of N elements.
template <class Body>
void launch_elements(cudaStream_t stream, const Extent& extent, bool wide, const Body& body) {
  if (extent.rows == 0 || extent.cols == 0) return;
  dispatch_wide(wide, [&]<int N>() {
    const dim3 grid(blocks_of(extent.cols, N * kThreads), grid_rows(extent.rows));
    each_element<N><<<grid, kThreads, 0, stream>>>(extent.rows, extent.cols, body);
  });
  check_launch("an element-wise kernel");
}

}  // namespace snug::cuda
