#include "base/event.h"

#include <fmt/chrono.h>

namespace snug {
namespace {

std::string utc_time() {
  using namespace std::chrono;
  const auto now = system_clock::now().time_since_epoch();
  return fmt::format("{:%FT%T}.{:03}Z", fmt::gmtime(duration_cast<seconds>(now).count()),
                     duration_cast<milliseconds>(now).count() % 1000);
}

}  // namespace

std::string event_line(const Event& event) {
  Event line{{"event", event.at("event")}, {"time", utc_time()}};
  line.update(event);
  return line.dump(-1, ' ', false, Event::error_handler_t::replace) + "\n";
}

}  // namespace snug
