// Holds the numbers of GELU (Hendrycks and Gimpel, arXiv:1606.08415) for all kernels: x P(x), where P is the normal
// distribution.
#pragma once

namespace snug {

// By tanh: x sigmoid(z) with z = 2 sqrt(2 / pi) (x + 0.044715 x^3), since 1 + tanh(z / 2) = 2 sigmoid(z).
// z = x (kGeluLinear + kGeluCubic x^2), and its derivative is kGeluLinear + 3 kGeluCubic x^2.
inline constexpr float kGeluLinear = 1.5957691216f, kGeluCubic = 0.0713548162726f;

// The quick one: x sigmoid(kGeluQuick x).
inline constexpr float kGeluQuick = 1.702f;

// Exactly: 1 - P(a) = e^(-a^2 / 2) t q(t) for a >= 0, t = 1 / (1 + kTailScale a), with a polynomial q that was fitted
// so that the largest relative error is least, 2.4e-8, over a up to 14.5; beyond that e^(-a^2 / 2) is 0 in fp32. P's
// derivative is kNormalDensity e^(-a^2 / 2).
inline constexpr float kTailScale = 0.27f, kNormalDensity = 0.3989422804f;
constexpr float normal_tail(float t) {
  return t * (0.10772066f +
              t * (0.107542865f +
                   t * (0.101810694f +
                        t * (0.072049275f +
                             t * (0.107826434f +
                                  t * (-0.06921195f + t * (0.16978721f + t * (-0.12648638f + t * (0.02896121f)))))))));
}

}  // namespace snug
