// Declares the sign of life of long work.
#pragma once

#include <functional>

namespace snug {

// Long work on the host calls it as it advances, many times in any 10 s, so that other ranks that wait do not take this
// one for one that hangs (Comm::heartbeat()). It throws if another rank has failed, as the work is useless then. It may
// be empty.
using Heartbeat = std::function<void()>;

inline void call(const Heartbeat& heartbeat) {
  if (heartbeat) heartbeat();
}

}  // namespace snug
