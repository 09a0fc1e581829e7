#include "base/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace snug {

double quantile_of(std::vector<double> values, double share) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const size_t place = std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())));
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(place));
  return values[place];
}

bool leaps(const std::vector<double>& before, double value) {
  const auto known = std::ranges::count_if(before, [](double x) { return std::isfinite(x); });
  if (known < std::ptrdiff_t{kLeapWindow} / 2 || !std::isfinite(value)) return false;
  const double middle = quantile_of(before, 0.5), spread = quantile_of(before, 0.9) - middle;
  return value >= middle + std::max(5 * spread, 0.5 * std::abs(middle));
}

}  // namespace snug
