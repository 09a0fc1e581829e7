// Divides and rounds up integers that are not negative.
#pragma once

#include <type_traits>

namespace snug {

// Returns the least q with q * b >= a. It does not overflow where a + b would.
template <class T>
constexpr T ceil_div(T a, std::type_identity_t<T> b) {
  return a / b + static_cast<T>(a % b != 0);
}

// Returns the least multiple of `of` that is no less than `a`.
template <class T>
constexpr T round_up(T a, std::type_identity_t<T> of) {
  return ceil_div(a, of) * of;
}

}  // namespace snug
