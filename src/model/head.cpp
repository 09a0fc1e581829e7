#include "model/head.h"

#include <algorithm>

#include "base/rounding.h"
#include "model/norm.h"

namespace snug {
namespace {

constexpr int64_t kRowElements = 64;  // a row of logits has a multiple of it

// Holds some rows of x and their norm.
struct Normed {
  Operand rows, normed, rstd;
};

Normed norm_of_rows(Builder& b, Value x, const HeadParams& head, const Operand& which) {
  Emitter& e = b.emitter();
  const Operand input = read(b.use(x));
  const Shape shape{which.shape.count(), input.shape.cols()};
  Normed n{e.tensor("rows", b.compute(), shape), e.tensor("norm", b.compute(), shape),
           e.tensor("rstd", DType::F32, moments_shape(head.norm, shape.rows()))};
  e.op("gather_rows", GatherRows{}, {input, read(which), write(n.rows)});
  norm_forward(b, name(head.norm.kind), head.norm, n.rows, n.normed, n.rstd);
  return n;
}

// Returns the fewest loss rows with which a chunk is computed. The first always is, as it defines the weight gradient.
int64_t first_row(int64_t begin) { return begin == 0 ? 0 : begin + 1; }

// Emits for each chunk of loss rows its logits and their loss, with a weight for each row, and, if `after` is given,
// calls it with their gradient.
void for_chunks(Builder& b, const Normed& n, const HeadParams& head, const Operand& targets, const Operand& weights,
                const Operand& losses,
                const std::function<void(int64_t begin, int64_t end, const Operand& gradient)>& after) {
  Emitter& e = b.emitter();
  const Operand projection = b.placement().weight(head.projection, 1);
  const DType dtype = head.fp32_logits ? DType::F32 : b.compute();
  const int64_t vocabulary = projection.shape.rows();
  // Rows of whole cache lines, whatever the vocabulary.
  const int64_t padded = round_up(vocabulary, kRowElements);
  for (int64_t begin = 0; begin < b.tokens(); begin += head.chunk_rows) {
    const int64_t end = std::min(begin + head.chunk_rows, b.tokens());
    const auto tile = [&](std::string_view name, DType type) {
      return columns(e.tensor(name, type, {end - begin, padded}, Role::Logits), 0, vocabulary);
    };
    const Operand logits = tile("logits", dtype);
    e.op_if(first_row(begin), "project", Gemm{.transpose_b = true, .alpha = head.logits_factor},
            {read(rows(n.normed, begin, end)), read(projection), write(logits)});
    e.op_if(first_row(begin), "cross_entropy", CrossEntropy{begin, after != nullptr, head.logits_cap},
            {update(logits), read(elements(targets, begin, end)), read(elements(weights, begin, end)),
             write(elements(losses, begin, end))});
    if (!after) continue;
    Operand gradient = logits;
    if (dtype != b.compute()) {
      gradient = tile("logits.gradient", b.compute());
      e.op_if(first_row(begin), "round", Cast{}, {read(logits), write(gradient)});
    }
    after(begin, end, read(gradient));
  }
}

Operand losses_of(Builder& b, const Normed& n, const HeadParams& head, const BatchBuffers& batch) {
  const Operand losses = b.emitter().tensor("losses", DType::F32, {b.tokens()});
  for_chunks(b, n, head, batch.loss_targets, batch.loss_weights, losses, nullptr);
  return losses;
}

}  // namespace

Operand head_losses(Builder& b, Value x, const HeadParams& head, const BatchBuffers& batch) {
  return losses_of(b, norm_of_rows(b, x, head, batch.loss_rows), head, batch);
}

void head_loss_and_gradient(Builder& b, Value x, const HeadParams& head, const BatchBuffers& batch, const Operand& loss,
                            bool accumulate, const std::function<RowWeights(const Operand& losses)>& weigh) {
  Emitter& e = b.emitter();
  const Normed n = norm_of_rows(b, x, head, batch.loss_rows);
  std::optional<RowWeights> weighed;
  if (weigh) weighed = weigh(losses_of(b, n, head, batch));
  const Operand losses = e.tensor("losses", DType::F32, {b.tokens()});
  const Operand projection = b.placement().weight(head.projection, 1);
  // Where nothing before the projection is trained, nothing asks for the gradient of its input.
  const bool before = b.wants_gradient(x) || trains(b, head.norm);
  Operand dnormed;
  if (before) {
    dnormed = e.tensor("dnorm", b.compute(), n.normed.shape);
    e.op("clear_dnorm", Fill{}, {write(dnormed)});
  }
  const auto after = [&](int64_t begin, int64_t end, const Operand& gradient) {
    if (before)
      e.op_if(first_row(begin), "project.dx", Gemm{.alpha = head.logits_factor},
              {gradient, read(projection), write(rows(dnormed, begin, end))});
    if (!b.trainable(head.projection)) return;
    Operand target = b.placement().gradient(head.projection, 1);
    if (begin > 0) target = update(target);
    e.op_if(first_row(begin), "project.dw",
            Gemm{.transpose_a = true, .alpha = head.logits_factor, .addend = target.reads()},
            with_result({gradient, read(rows(n.normed, begin, end))}, target));
  };
  for_chunks(b, n, head, batch.loss_targets, weighed ? weighed->weights : batch.loss_weights, losses, after);
  e.op("loss", LossSum{accumulate},
       {read(weighed ? weighed->losses : losses), accumulate ? update(loss) : write(loss)});

  if (!before) return;
  const Operand drows = e.tensor("drows", b.compute(), n.rows.shape);
  norm_backward(b, {}, head.norm, read(dnormed), n.rows, n.rstd, write(drows));
  if (!b.wants_gradient(x)) return;
  e.op("scatter_rows", ScatterRows{}, {read(drows), read(batch.loss_rows), b.gradient_to_add(x)});
}

Operand head_logits(Builder& b, Value x, const HeadParams& head, const Operand& row) {
  Emitter& e = b.emitter();
  const Operand normed = norm_of_rows(b, x, head, row).normed;
  const Operand projection = b.placement().weight(head.projection, 1);
  const Operand logits = e.tensor("logits", DType::F32, {1, projection.shape.rows()}, Role::Logits);
  e.op("project", Gemm{.transpose_b = true, .alpha = head.logits_factor},
       {read(normed), read(projection), write(logits)});
  if (head.logits_cap > 0) e.op("soft_cap", SoftCap{head.logits_cap}, {update(logits)});
  return logits;
}

}  // namespace snug
