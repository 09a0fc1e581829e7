// Computes what one outcome adds to the divergence of a distribution from a teacher's, as Distillation defines it.
#pragma once

#include <cmath>

#ifdef __CUDACC__
#define SNUG_ON_DEVICE __host__ __device__
#else
#define SNUG_ON_DEVICE
#endif

namespace snug {

// Holds what it adds, and q times the derivative of the whole by q, up to a multiple of q: what all outcomes have of
// such a multiple is nothing to a softmax.
struct DivergenceTerm {
  double value = 0, slope = 0;
};

// Returns the term of an outcome to which the teacher gives e^log_p and the model e^log_q; either may be -inf. It is
// infinite where one gives it nothing, the other something, and beta does not allow for that.
SNUG_ON_DEVICE inline DivergenceTerm divergence_term(double log_p, double log_q, double beta) {
  const double p = exp(log_p), q = exp(log_q);
  if (beta == 0) return {p > 0 ? p * (log_p - log_q) : 0, -p};
  if (beta == 1) {
    const double value = q > 0 ? q * (log_q - log_p) : 0;
    return {value, value};
  }
  const double log_m = log(beta * p + (1 - beta) * q);
  const double of_p = p > 0 ? p * (log_p - log_m) : 0, of_q = q > 0 ? q * (log_q - log_m) : 0;
  return {beta * of_p + (1 - beta) * of_q, (1 - beta) * of_q};
}

}  // namespace snug

#undef SNUG_ON_DEVICE
