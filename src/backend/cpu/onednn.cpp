#include "backend/cpu/onednn.h"

#include <new>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "base/memory.h"
#include "base/parallel.h"

namespace snug::cpu {
namespace {

using Desc = dnnl::memory::desc;

// Returns the engine. It has no state, but objects made from it must not outlive it.
const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::memory::data_type library_dtype(DType dtype) {
  check(dtype == DType::F32 || dtype == DType::BF16, "a product of {}, expected fp32 or bf16", name(dtype));
  return dtype == DType::F32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

Desc matrix(int64_t rows, int64_t cols, DType dtype, int64_t row_stride, int64_t col_stride = 1) {
  return Desc({rows, cols}, library_dtype(dtype), {row_stride, col_stride});
}

// Sets one thread: primitives remember the size of the team under which they are made, and some (gemm:jit, which
// processors without AVX-512 use) ask again when they run.
class OneThread {
 public:
  OneThread() : before_(threads()) { set_threads(1); }
  ~OneThread() { set_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

struct Descs {
  explicit Descs(const MatmulSpec& s)
      : a(matrix(s.m, s.k, s.factors, s.a_strides[0], s.a_strides[1])),
        b(matrix(s.k, s.n, s.factors, s.b_strides[0], s.b_strides[1])),
        d(matrix(s.m, s.n, s.d, s.d_stride)) {
    if (s.addend == MatmulSpec::Addend::Separate) c = matrix(s.m, s.n, s.c, s.c_stride);
    if (s.bias) bias = matrix(1, s.n, s.bias_dtype, s.n);
  }
  Desc a, b, c, bias, d;
};

// Returns alpha, addend and bias as steps on the fp32 sum, in this order.
dnnl::primitive_attr attributes(const MatmulSpec& s, const Descs& descs) {
  dnnl::post_ops steps;
#if DNNL_VERSION_MAJOR >= 3
  if (s.alpha != 1) steps.append_eltwise(dnnl::algorithm::eltwise_linear, s.alpha, 0);
#else
  if (s.alpha != 1) steps.append_eltwise(1, dnnl::algorithm::eltwise_linear, s.alpha, 0);
#endif
  if (s.addend == MatmulSpec::Addend::InPlace) steps.append_sum(1);
  if (s.addend == MatmulSpec::Addend::Separate) steps.append_binary(dnnl::algorithm::binary_add, descs.c);
  if (s.bias) steps.append_binary(dnnl::algorithm::binary_add, descs.bias);
  dnnl::primitive_attr attr;
  attr.set_post_ops(steps);
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  attr.set_fpmath_mode(dnnl::fpmath_mode::strict);  // fp32 stays fp32
  return attr;
}

dnnl::matmul::primitive_desc describe(const MatmulSpec& s, const Descs& descs) {
#if DNNL_VERSION_MAJOR >= 3
  return {cpu_engine(), descs.a, descs.b, descs.d, attributes(s, descs)};
#else
  return {dnnl::matmul::desc(descs.a, descs.b, descs.d), attributes(s, descs), cpu_engine()};
#endif
}

int step_argument(int step) { return DNNL_ARG_ATTR_MULTIPLE_POST_OP(step) | DNNL_ARG_SRC_1; }

}  // namespace

struct LibraryMatmul::Primitive {
  Primitive(const MatmulSpec& spec, const Descs& descs, const dnnl::matmul::primitive_desc& description)
      : spec(spec),
        descs(descs),
        scratchpad(description.scratchpad_desc()),
        name(description.impl_info_str()),
        matmul(description) {}

  MatmulSpec spec;
  Descs descs;
  Desc scratchpad;
  std::string name;
  dnnl::matmul matmul;
};

std::optional<LibraryMatmul> LibraryMatmul::make(const MatmulSpec& spec) {
  // The library crashes if it cannot map the code that it makes.
  constexpr uint64_t kCode = 8u << 20;
  if (!process_limits_leave(kCode)) throw std::bad_alloc();
  const OneThread one_thread;
  const Descs descs(spec);
  try {
    return LibraryMatmul(std::make_shared<const Primitive>(spec, descs, describe(spec, descs)));
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_unimplemented) return std::nullopt;
    internal_error("oneDNN refuses a product [{}, {}] x [{}, {}] of {}: {}", spec.m, spec.k, spec.k, spec.n,
                   snug::name(spec.factors), error.what());
  }
}

uint64_t LibraryMatmul::scratch_bytes() const { return primitive_->scratchpad.get_size(); }
std::string_view LibraryMatmul::implementation() const { return primitive_->name; }

struct LibraryCall::Arguments {
  explicit Arguments(std::shared_ptr<const LibraryMatmul::Primitive> made)
      : primitive(std::move(made)), stream(cpu_engine()) {
    const Descs& descs = primitive->descs;
    const MatmulSpec& spec = primitive->spec;
    const auto add = [&](int argument, const Desc& desc) {
      return memories.emplace(argument, dnnl::memory(desc, cpu_engine(), nullptr)).first->second;
    };
    a = add(DNNL_ARG_SRC, descs.a);
    b = add(DNNL_ARG_WEIGHTS, descs.b);
    d = add(DNNL_ARG_DST, descs.d);
    scratch = add(DNNL_ARG_SCRATCHPAD, primitive->scratchpad);
    int step = spec.alpha != 1 ? 1 : 0;
    if (spec.addend == MatmulSpec::Addend::Separate) c = add(step_argument(step), descs.c);
    if (spec.addend != MatmulSpec::Addend::None) step++;
    if (spec.bias) bias = add(step_argument(step), descs.bias);
  }

  std::shared_ptr<const LibraryMatmul::Primitive> primitive;
  dnnl::stream stream;
  std::unordered_map<int, dnnl::memory> memories;
  dnnl::memory a, b, c, bias, d, scratch;  // those of `memories` by name
};

LibraryCall::LibraryCall(const LibraryMatmul& matmul) : arguments_(std::make_unique<Arguments>(matmul.primitive_)) {}
LibraryCall::LibraryCall(LibraryCall&&) noexcept = default;
LibraryCall::~LibraryCall() = default;

void LibraryCall::operator()(const std::byte* a, const std::byte* b, const std::byte* c, const std::byte* bias,
                             std::byte* d, std::byte* scratch) {
  const OneThread one_thread;
  Arguments& use = *arguments_;
  // The library takes inputs without const, and only reads them.
  use.a.set_data_handle(const_cast<std::byte*>(a));
  use.b.set_data_handle(const_cast<std::byte*>(b));
  use.d.set_data_handle(d);
  use.scratch.set_data_handle(scratch);
  if (use.c) use.c.set_data_handle(const_cast<std::byte*>(c));
  if (use.bias) use.bias.set_data_handle(const_cast<std::byte*>(bias));
  use.primitive->matmul.execute(use.stream, use.memories);
}

}  // namespace snug::cpu
