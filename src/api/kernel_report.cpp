#include "api/kernel_report.h"

namespace snug {
namespace {

std::vector<KernelUse> uses_of(const Planned& planned) { return kernels_of_step(planned.compiled, planned.pricing); }

double seconds_of(const std::vector<KernelUse>& uses) {
  double sum = 0;
  for (const KernelUse& use : uses) sum += use.seconds;
  return sum;
}

// Returns "312.5 TFLOP/s", or for ops without products "2.81 TB/s".
std::string rate_text(const KernelUse& use) {
  if (use.seconds <= 0) return "-";
  const auto rate = [&](double work, std::string_view unit) {
    const double a_second = work / use.seconds;
    return a_second < 1e12 ? fmt::format("{:.1f} G{}", a_second / 1e9, unit)
                           : fmt::format("{:.2f} T{}", a_second / 1e12, unit);
  };
  return use.work.flops > 0 ? rate(use.work.flops, "FLOP/s") : rate(use.work.bytes, "B/s");
}

std::string name_of(const KernelUse& use) {
  return use.kernel.name.empty() ? std::string("its one kernel") : std::string(use.kernel.name);
}

}  // namespace

std::string slow_kernels_text(const Planned& planned) {
  if (!planned.pricing.measured()) return "";
  const std::vector<KernelUse> uses = uses_of(planned);
  const double all = seconds_of(uses);
  std::string text;
  for (const KernelUse& use : uses)
    if (!use.kernel.slow.empty())
      text += fmt::format("  {:<11} {} of {} is not on its fast kernel, as {}: it runs as {}, {:.1f} % of a step\n",
                          "SLOW", use.kind, name(use.dtype), use.kernel.slow, name_of(use), 100 * use.seconds / all);
  return text;
}

std::string kernels_text(const Planned& planned) {
  const std::vector<KernelUse> uses = uses_of(planned);
  const double all = seconds_of(uses);
  std::string text =
      fmt::format("{:<26} {:<5} {:<28} {:>7}  {:>15}  {:>9}\n", "op", "of", "kernel", "a step", "rate", "seconds");
  for (const KernelUse& use : uses)
    text += fmt::format("{:<26} {:<5} {:<28} {:>7}  {:>15}  {:>9.5f}  {:>5.1f} %{}\n", use.kind, name(use.dtype),
                        name_of(use), use.ops, rate_text(use), use.seconds, all > 0 ? 100 * use.seconds / all : 0,
                        use.kernel.slow.empty() ? "" : fmt::format("  SLOW: {}", use.kernel.slow));
  return text;
}

nlohmann::ordered_json kernels_json(const Planned& planned) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const KernelUse& use : uses_of(planned)) {
    json.push_back({{"op", use.kind}, {"dtype", name(use.dtype)}, {"kernel", name_of(use)}, {"slow", nullptr}});
    if (!use.kernel.slow.empty()) json.back()["slow"] = use.kernel.slow;
    json.back()["ops"] = use.ops;
    json.back()["seconds"] = nullptr;
    if (planned.pricing.measured()) json.back()["seconds"] = use.seconds;
  }
  return json;
}

}  // namespace snug
