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

// Emits what is made of the logits of loss rows [begin, end); gradients replace them.
using Judge = std::function<void(int64_t begin, int64_t end, const Operand& logits)>;

// Emits for each chunk of loss rows its logits and what `judge` makes of them, and, if `after` is given, calls it with
// their gradient.
void for_chunks(Builder& b, const Normed& n, const HeadParams& head, const Judge& judge,
                const std::function<void(int64_t begin, int64_t end, const Operand& gradient)>& after = {}) {
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
    judge(begin, end, logits);
    if (!after) continue;
    Operand gradient = logits;
    if (dtype != b.compute()) {
      gradient = tile("logits.gradient", b.compute());
      e.op_if(first_row(begin), "round", Cast{}, {read(logits), write(gradient)});
    }
    after(begin, end, read(gradient));
  }
}

// Judges by the cross-entropy of targets, with a weight for each row.
Judge by_targets(Builder& b, const HeadParams& head, const Operand& targets, const Operand& weights,
                 const Operand& losses, bool trains) {
  return [=, &b, &head](int64_t begin, int64_t end, const Operand& logits) {
    const CrossEntropy loss{begin, trains, head.logits_cap, trains ? head.smoothing : 0, trains ? head.z_loss : 0};
    b.emitter().op_if(first_row(begin), "cross_entropy", loss,
                      {update(logits), read(elements(targets, begin, end)), read(elements(weights, begin, end)),
                       write(elements(losses, begin, end))});
  };
}

// Judges by the distance from a teacher's rows; `distances` are losses, divergences and agreements, [3, T].
Judge by_teacher(Builder& b, const HeadParams& head, const BatchBuffers& batch, const TeacherRows& teacher,
                 const Operand& distances, bool trains) {
  return [=, &b, &head](int64_t begin, int64_t end, const Operand& logits) {
    const DistanceParams& distance = head.distance;
    const Distillation loss{begin, trains, head.logits_cap, distance.temperature, distance.beta, distance.share};
    const auto part = [&](int64_t row) { return write(elements(flat(rows(distances, row, row + 1)), begin, end)); };
    b.emitter().op_if(
        first_row(begin), "distillation", loss,
        {update(logits), read(elements(batch.loss_targets, begin, end)), read(elements(batch.loss_weights, begin, end)),
         read(rows(teacher.ids, begin, end)), read(rows(teacher.log_probs, begin, end)), part(0), part(1), part(2)});
  };
}

// Returns the score of each row, in fp32; it is 0 where there is no row.
Operand scores_of(Builder& b, const Normed& n, const HeadParams& head) {
  const Operand scores = b.emitter().tensor("scores", DType::F32, {b.tokens(), 1});
  b.emitter().op("score", Gemm{.transpose_b = true},
                 {read(n.normed), read(b.placement().weight(head.projection, 1)), write(scores)});
  return flat(scores);
}

Operand losses_of(Builder& b, const Normed& n, const HeadParams& head, const BatchBuffers& batch) {
  if (head.scores) return scores_of(b, n, head);
  const Operand losses = b.emitter().tensor("losses", DType::F32, {b.tokens()});
  for_chunks(b, n, head, by_targets(b, head, batch.loss_targets, batch.loss_weights, losses, false));
  return losses;
}

// Emits what `judge` makes of the rows' logits, and the gradients of the projection and, where it is not empty, of what
// was normed.
void judge_and_gradients(Builder& b, const Normed& n, const HeadParams& head, const Judge& judge,
                         const Operand& dnormed) {
  Emitter& e = b.emitter();
  const Operand projection = b.placement().weight(head.projection, 1);
  const bool before = dnormed.shape.rank > 0;
  if (before) e.op("clear_dnorm", Fill{}, {write(dnormed)});
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
  for_chunks(b, n, head, judge, after);
}

// Emits the same of scores whose derivatives are `weights`.
void gradients_of_scores(Builder& b, const Normed& n, const HeadParams& head, const Operand& weights,
                         const Operand& dnormed) {
  Emitter& e = b.emitter();
  Operand gradient = weights;
  gradient.shape = {weights.shape.count(), 1};
  gradient.row_stride = 1;
  if (b.compute() != DType::F32) {
    const Operand rounded = e.tensor("scores.gradient", b.compute(), gradient.shape);
    e.op("round", Cast{}, {read(gradient), write(rounded)});
    gradient = rounded;
  }
  if (dnormed.shape.rank > 0)
    e.op("score.dx", Gemm{}, {read(gradient), read(b.placement().weight(head.projection, 1)), write(dnormed)});
  if (!b.trainable(head.projection)) return;
  const Operand target = b.placement().gradient(head.projection, 1);
  e.op("score.dw", Gemm{.transpose_a = true, .addend = target.reads()},
       with_result({read(gradient), read(n.normed)}, target));
}

}  // namespace

Operand head_losses(Builder& b, Value x, const HeadParams& head, const BatchBuffers& batch) {
  return losses_of(b, norm_of_rows(b, x, head, batch.loss_rows), head, batch);
}

namespace {

// Emits the gradients of rows by `make`, which writes that of what was normed, and the sum of their losses, which it
// returns; then the gradients of the norm and of x.
void finish_head(Builder& b, Value x, const HeadParams& head, const BatchBuffers& batch, const Normed& n,
                 const Operand& loss, bool accumulate, const std::function<Operand(const Operand& dnormed)>& make) {
  Emitter& e = b.emitter();
  // Where nothing before the projection is trained, nothing asks for the gradient of its input.
  const bool before = b.wants_gradient(x) || trains(b, head.norm);
  const Operand dnormed = before ? e.tensor("dnorm", b.compute(), n.normed.shape) : Operand();
  const Operand losses = make(dnormed);
  e.op("loss", LossSum{accumulate}, {read(losses), accumulate ? update(loss) : write(loss)});

  if (!before) return;
  const Operand drows = e.tensor("drows", b.compute(), n.rows.shape);
  norm_backward(b, {}, head.norm, read(dnormed), n.rows, n.rstd, write(drows));
  if (!b.wants_gradient(x)) return;
  e.op("scatter_rows", ScatterRows{}, {read(drows), read(batch.loss_rows), b.gradient_to_add(x)});
}

// Returns a buffer for what by_teacher() finds.
Operand new_distances(Builder& b) { return b.emitter().tensor("distances", DType::F32, {3, b.tokens()}); }

}  // namespace

void head_loss_and_gradient(Builder& b, Value x, const HeadParams& head, const BatchBuffers& batch, const Operand& loss,
                            bool accumulate, const std::function<RowWeights(const Operand& losses)>& weigh) {
  const Normed n = norm_of_rows(b, x, head, batch.loss_rows);
  std::optional<RowWeights> weighed;
  if (weigh) weighed = weigh(losses_of(b, n, head, batch));
  finish_head(b, x, head, batch, n, loss, accumulate, [&](const Operand& dnormed) {
    if (head.scores) {
      gradients_of_scores(b, n, head, weighed.value().weights, dnormed);
      return weighed->losses;
    }
    const Operand losses = b.emitter().tensor("losses", DType::F32, {b.tokens()});
    const Operand weights = weighed ? weighed->weights : batch.loss_weights;
    judge_and_gradients(b, n, head, by_targets(b, head, batch.loss_targets, weights, losses, true), dnormed);
    return weighed ? weighed->losses : losses;
  });
}

TeacherRows head_top_tokens(Builder& b, Value x, const HeadParams& head, const BatchBuffers& batch, int64_t k) {
  Emitter& e = b.emitter();
  const Normed n = norm_of_rows(b, x, head, batch.loss_rows);
  const TeacherRows top{e.tensor("ids", DType::I32, {b.tokens(), k}),
                        e.tensor("log_probs", DType::F32, {b.tokens(), k + 1})};
  for_chunks(b, n, head, [&](int64_t begin, int64_t end, const Operand& logits) {
    e.op_if(first_row(begin), "top_tokens", TopTokens{begin, head.logits_cap, head.distance.temperature},
            {update(logits), write(rows(top.ids, begin, end)), write(rows(top.log_probs, begin, end))});
  });
  return top;
}

Operand head_distances(Builder& b, Value x, const HeadParams& head, const BatchBuffers& batch,
                       const TeacherRows& teacher) {
  const Normed n = norm_of_rows(b, x, head, batch.loss_rows);
  const Operand distances = new_distances(b);
  for_chunks(b, n, head, by_teacher(b, head, batch, teacher, distances, false));
  return distances;
}

Operand head_distances_and_gradient(Builder& b, Value x, const HeadParams& head, const BatchBuffers& batch,
                                    const TeacherRows& teacher, const Operand& loss, bool accumulate) {
  const Normed n = norm_of_rows(b, x, head, batch.loss_rows);
  const Operand distances = new_distances(b);
  finish_head(b, x, head, batch, n, loss, accumulate, [&](const Operand& dnormed) {
    judge_and_gradients(b, n, head, by_teacher(b, head, batch, teacher, distances, true), dnormed);
    return flat(rows(distances, 0, 1));
  });
  return distances;
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
