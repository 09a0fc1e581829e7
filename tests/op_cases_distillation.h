// Cases of the ops by which a model learns from a teacher.
#pragma once

#include "op_case.h"

namespace snug {

// Makes a row's tokens differ from each other, the largest logit's among them in every other row, and what they and all
// others have add up to 1.
inline void make_teacher(std::vector<ref::Tensor>& o) {
  ref::Tensor &x = o[0], &ids = o[3], &log_probs = o[4];
  for (int64_t r = 0; r < ids.rows(); r++) {
    int64_t first = (r * 31 + 5) % x.cols();
    if (r % 2 == 0)
      for (int64_t v = 0; v < x.cols(); v++) first = x(r, v) > x(r, first) ? v : first;
    double sum = 0;
    for (int64_t j = 0; j < ids.cols(); j++)
      ids(r, j) = static_cast<double>((first + j * (x.cols() / ids.cols())) % x.cols());
    const bool others = ids.cols() < x.cols();
    for (int64_t j = 0; j < ids.cols() + (others ? 1 : 0); j++) sum += std::exp(log_probs(r, j));
    for (int64_t j = 0; j <= ids.cols(); j++)
      log_probs(r, j) = !others && j == ids.cols()
                            ? -std::numeric_limits<double>::infinity()
                            : static_cast<double>(static_cast<float>(log_probs(r, j) - std::log(sum)));
  }
}

inline void add_distillation(OpCases& cases) {
  for (const auto& [vocabulary, k, cap, temperature] : {std::tuple(997, 16, 0.0f, 1.0f),
                                                        {20011, 64, 0.0f, 2.0f},
                                                        {4104, 256, 6.0f, 0.5f},
                                                        {5, 1, 0.0f, 1.0f},
                                                        {8, 8, 0.0f, 1.5f}}) {
    const std::string sizes = fmt::format("v{}.k{}{}", vocabulary, k, cap > 0 ? ".capped" : "");
    const RuntimeScalars runtime{.loss_rows = 8, .loss_scale = 0.125f};
    // Equal logits too: the first of them are taken.
    cases.push_back({"top_tokens." + sizes,
                     TopTokens{5, cap, temperature},
                     {inout("logits", DType::F32, {4, vocabulary},
                            list(std::vector<double>{3, -1.5, 0.25, 7.75, 2, 7.75, -9.5}), 2),
                      out("ids", DType::I32, {4, k}), out("log_probs", DType::F32, {4, k + 1})},
                     runtime,
                     1e-5,
                     k == vocabulary ? 0 : 1e-6});
    for (const float beta : {0.0f, 0.25f, 1.0f})
      for (const float share : {1.0f, 0.5f})
        for (const bool gradient : {false, true})
          cases.push_back({fmt::format("distillation.{}.beta{}{}{}", sizes, beta,
                                       share < 1 ? ".with_cross_entropy" : "", gradient ? ".gradient" : ""),
                           Distillation{5, gradient, cap, temperature, beta, share},
                           {inout("logits", DType::F32, {4, vocabulary}, uniform(-9, 9), 2),
                            in("targets", DType::I32, {4}, integers(0, vocabulary)),
                            in("weights", DType::F32, {4}, uniform(-1, 2)), in("ids", DType::I32, {4, k}),
                            in("log_probs", DType::F32, {4, k + 1}, uniform(-9, 0)), out("losses", DType::F32, {4}),
                            out("divergences", DType::F32, {4}), out("agreements", DType::F32, {4})},
                           runtime,
                           1e-5,
                           2e-6,
                           make_teacher});
  }
  // Many rows, and logits of which most are of no weight beside the largest.
  cases.push_back({"top_tokens.rows",
                   TopTokens{0, 0, 1},
                   {inout("logits", DType::F32, {300, 1024}, uniform(-80, 80)), out("ids", DType::I32, {300, 32}),
                    out("log_probs", DType::F32, {300, 33})},
                   RuntimeScalars{.loss_rows = 290},
                   1e-5,
                   1e-5});
}

}  // namespace snug
