// Numbers about lists of numbers.
#pragma once

#include <cstddef>
#include <vector>

namespace snug {

// Returns the value that this share of the finite values does not exceed; NaN without any.
double quantile_of(std::vector<double> values, double share);

// Returns whether a value is far above those before it, of which it wants kLeapWindow: above their median by half of
// that, and by five times what one in ten of them exceeds it by.
inline constexpr size_t kLeapWindow = 20;
bool leaps(const std::vector<double>& before, double value);

}  // namespace snug
