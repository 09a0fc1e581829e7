// Holds the constants of GELU by tanh (Hendrycks and Gimpel, arXiv:1606.08415) for all kernels. GELU(x) is x sigmoid(z)
// with z = 2 sqrt(2 / pi) (x + 0.044715 x^3), since 1 + tanh(z / 2) = 2 sigmoid(z).
#pragma once

namespace snug {

// z = x (kGeluLinear + kGeluCubic x^2), and its derivative is kGeluLinear + 3 kGeluCubic x^2.
inline constexpr float kGeluLinear = 1.5957691216f, kGeluCubic = 0.0713548162726f;

}  // namespace snug
