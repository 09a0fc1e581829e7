// docs/kernels.md is what CudaFacts says, row by row.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "backend/cuda/facts.h"
#include "dense_operand.h"

namespace snug {
namespace {

const std::string kPage = SNUG_DOCS "/kernels.md";
constexpr std::string_view kHeader =
    "| op | shape | before and beside Hopper (8.0, 8.6, 8.9, 10.0, 12.0) | Hopper (9.0) |";

struct Row {
  std::string op, shape;
  Attrs attrs;
  std::vector<Operand> operands;
};

std::string cell(const Row& row, int capability) {
  const Kernel kernel = CudaFacts(capability).kernel(row.attrs, row.operands);
  std::string text(kernel.name);
  if (kernel.columns > 0) text += fmt::format(" of {}", kernel.columns);
  if (!kernel.slow.empty()) text += fmt::format(" (slow: {})", kernel.slow);
  return text;
}

void add_attention(std::vector<Row>& rows, DType dtype, int64_t dim, float cap = 0) {
  const HeadShape heads{8, 8, dim};
  const Operand x = dense(dtype, {1024, 8 * dim});
  rows.push_back({"attention, both ways",
                  fmt::format("{}, heads of {}{}", name(dtype), dim, cap > 0 ? ", scores under a soft cap" : ""),
                  Attention{heads, 1, 1024, 0, cap},
                  {x, x, x, dense(DType::I32, {2}), x, dense(DType::F32, {8, 1024})}});
}

// x, w, u, v, y of a linear with 4,096 columns in and `columns` out.
void add_adapted(std::vector<Row>& rows, int64_t tokens, int64_t columns, int64_t rank, DType t = DType::BF16) {
  rows.push_back({"linear with an adapter",
                  fmt::format("{}, {} rows, {} columns, rank {}", name(t), tokens, columns, rank),
                  AdaptedGemm{true, {{0}, {columns}}},
                  {dense(t, {tokens, 4096}), dense(t, {columns, 4096}), dense(t, {tokens, rank}),
                   dense(t, {columns, rank}), dense(t, {tokens, columns})}});
}

void add_adapter_backward(std::vector<Row>& rows, int64_t rank) {
  const DType t = DType::BF16;
  rows.push_back({"an adapter's gradients",
                  fmt::format("bf16, rank {}", rank),
                  AdapterBackward{1, {{0}, {4096}}},
                  {dense(t, {2048, 4096}), dense(t, {4096, rank}), dense(t, {2048, rank}), dense(t, {2048, rank}),
                   dense(t, {4096, rank})}});
}

void add_swiglu(std::vector<Row>& rows, int64_t columns, Activation gate = Activation::Silu,
                std::string_view word = "") {
  const DType t = DType::BF16;
  rows.push_back({"gate and up with SwiGLU",
                  fmt::format("bf16, {} columns each{}", columns, word),
                  SwiGluGemm{.activation = gate},
                  {dense(t, {2048, 4096}), dense(t, {2 * columns, 4096}), dense(t, {2048, 2 * columns}),
                   dense(t, {2048, columns})}});
}

void add_swiglu_codes(std::vector<Row>& rows, int64_t columns) {
  const DType t = DType::BF16, u8 = DType::U8, f32 = DType::F32;
  const Operand gate_up = dense(t, {2048, 2 * columns}), h = dense(t, {2048, columns}), scales = dense(f32, {2048});
  const std::string shape = fmt::format("bf16, {} columns", columns);
  rows.push_back(
      {"SwiGLU with codes in fp8", shape, SwiGluQuantize{}, {gate_up, h, dense(u8, {2048, columns}), scales}});
  rows.push_back({"SwiGLU's gradients with codes in fp8",
                  shape,
                  SwiGluBackwardQuantize{},
                  {h, gate_up, dense(f32, {2 * columns}), gate_up, dense(u8, {2048, 2 * columns}), scales}});
}

std::vector<Row> all_rows() {
  std::vector<Row> rows;
  for (const int64_t dim : {32, 48, 64, 72, 80, 96, 100, 112, 128, 160, 192, 256, 50, 320})
    add_attention(rows, DType::BF16, dim);
  for (const int64_t dim : {128, 256}) add_attention(rows, DType::BF16, dim, 50);
  add_attention(rows, DType::F32, 128);
  for (const int64_t rank : {8, 16, 24, 64}) add_adapted(rows, 2048, 4096, rank);
  add_adapted(rows, 64, 4096, 16);
  add_adapted(rows, 2048, 4096, 16, DType::F32);
  for (const int64_t rank : {8, 16, 24, 64}) add_adapter_backward(rows, rank);
  for (const int64_t columns : {14336, 10000}) add_swiglu(rows, columns);
  for (const auto& [gate, word] :
       {std::pair(Activation::GeluTanh, ", gate GELU by tanh"), std::pair(Activation::GeluQuick, ", gate quick GELU"),
        std::pair(Activation::Gelu, ", gate exact GELU"), std::pair(Activation::ReluSquared, ", gate ReLU squared")})
    add_swiglu(rows, 14336, gate, word);
  for (const int64_t columns : {14336, 28672, 66000}) add_swiglu_codes(rows, columns);
  for (const int64_t columns : {4096, 4095}) {
    const DType t = DType::BF16;
    rows.push_back({"product",
                    fmt::format("bf16, rows of {}", columns),
                    Gemm{.transpose_b = true},
                    {dense(t, {2048, columns}), dense(t, {4096, columns}), dense(t, {2048, 4096})}});
  }
  return rows;
}

std::string table() {
  std::string text = fmt::format("{}\n|---|---|---|---|\n", kHeader);
  for (const Row& row : all_rows())
    text += fmt::format("| {} | {} | {} | {} |\n", row.op, row.shape, cell(row, 80), cell(row, 90));
  return text;
}

std::string page() {
  std::stringstream text;
  text << std::ifstream(kPage).rdbuf();
  return text.str();
}

TEST(KernelsPage, SaysWhatTheFactsSay) {
  const std::string text = page();
  const size_t begin = text.find(kHeader);
  ASSERT_NE(begin, text.npos) << kPage;
  EXPECT_EQ(text.substr(begin), table()) << "the disabled test Rewrite writes it";
}

TEST(KernelsPage, CardsBesideHopperAreAlike) {
  for (const Row& row : all_rows())
    for (const int capability : {86, 89, 100, 120}) EXPECT_EQ(cell(row, capability), cell(row, 80)) << row.shape;
}

TEST(KernelsPage, DISABLED_Rewrite) {
  const std::string text = page();
  std::ofstream(kPage) << text.substr(0, text.find(kHeader)) << table();
}

}  // namespace
}  // namespace snug
