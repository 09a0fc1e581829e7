// Files of a run, of which the first byte says which (as in tests/fixtures/report): anything but a UserError, or a page
// within its size that has no script but its own, is a fault.
#include <cstdint>

#include "base/error.h"
#include "report/explain.h"
#include "report/page.h"

namespace {

using namespace snug;

RunFiles run_of(char kind, std::string_view text) {
  RunFiles run;
  run.name = std::string(text.substr(0, 20));
  switch (kind) {
    case 'm':
      run.metrics = parse_metrics(text, "fuzz");
      break;
    case 'p':
      run.plan = parse_plan(text, "fuzz");
      break;
    case 't':
      run.timeline = parse_trace(text, "fuzz");
      break;
    case 's':
      add_samples(text, "fuzz", false, run.samples);
      add_samples(text, "fuzz", true, run.samples);
      break;
    case 'e':
      run.end = parse_end(text, "fuzz");
      break;
    case 'k':
      for (const KernelEvent& event : parse_kernel_log(text)) (void)words_of(event);
      break;
    default:
      run.job = parse_job_lines(text);
  }
  return run;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  try {
    const std::vector<RunFiles> runs{
        run_of(static_cast<char>(data[0]), {reinterpret_cast<const char*>(data) + 1, size - 1})};
    const std::string page = report_page(runs, "now");
    check(page.size() <= kMaxPage, "a page of {} bytes", page.size());
    const size_t script = page.find("<script");
    check(script != page.npos && page.find("<script", script + 1) == page.npos, "a script that is not the page's own");
  } catch (const UserError&) {
  }
  return 0;
}
