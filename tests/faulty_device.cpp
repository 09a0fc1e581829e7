// Stands between the program and its sessions in the test program snug_faulty_device, by the linker's --wrap: on rank
// SNUG_FAULT_RANK the backend is lost at launch SNUG_FAULT_AT (from 1) of the kind SNUG_FAULT_KIND, or of any.
// SNUG_FAULT_STREAMS: on the CPU, all backends have streams, so that the error comes later than the launch.
#include <cstdlib>
#include <filesystem>

#include "deferred_backend.h"
#include "faulty_backend.h"
#include "train/session.h"

namespace snug {
namespace {

std::string setting(const char* name) {
  const char* const text = std::getenv(name);
  return text ? text : "";
}

std::unique_ptr<Backend> faulty(const Session::Resources& means) {
  std::unique_ptr<Backend> backend = means.backend();
  const int rank = means.comm ? means.comm->topology().rank : 0;
  if (std::to_string(rank) == setting("SNUG_FAULT_RANK"))
    backend = std::make_unique<FaultyBackend>(std::move(backend), setting("SNUG_FAULT_KIND"),
                                              std::stoll(setting("SNUG_FAULT_AT")));
  if (setting("SNUG_FAULT_STREAMS").empty()) return backend;
  return std::make_unique<DeferredBackend>(static_cast<uint64_t>(rank), means.comm, std::move(backend));
}

}  // namespace

extern "C" {

// Session's constructor.
void __real__ZN4snug7SessionC1ENS_7JobSpecENS_8CompiledERKNS0_9ResourcesE(Session*, JobSpec, Compiled,
                                                                          const Session::Resources&);

void __wrap__ZN4snug7SessionC1ENS_7JobSpecENS_8CompiledERKNS0_9ResourcesE(Session* session, JobSpec spec,
                                                                          Compiled compiled,
                                                                          const Session::Resources& means) {
  Session::Resources changed = means;
  changed.backend = [&] { return faulty(means); };
  __real__ZN4snug7SessionC1ENS_7JobSpecENS_8CompiledERKNS0_9ResourcesE(session, std::move(spec), std::move(compiled),
                                                                       changed);
}

// SNUG_FAULT_LOCKS: no lock of the kernel holds, as on a file system that hosts share.
bool __real__ZN4snug17kernel_locks_holdERKNSt10filesystem7__cxx114pathE(const std::filesystem::path&);

bool __wrap__ZN4snug17kernel_locks_holdERKNSt10filesystem7__cxx114pathE(const std::filesystem::path& directory) {
  return setting("SNUG_FAULT_LOCKS").empty() &&
         __real__ZN4snug17kernel_locks_holdERKNSt10filesystem7__cxx114pathE(directory);
}

}  // extern "C"

}  // namespace snug
