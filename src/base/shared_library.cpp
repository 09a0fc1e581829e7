#include "base/shared_library.h"

#include <dlfcn.h>

#include "base/error.h"

namespace snug {

SharedLibrary::SharedLibrary(std::initializer_list<const char*> names, const char* help) {
  std::string found;
  for (const char* name : names) {
    if (*name == '\0') continue;  // which would open the program itself
    handle_ = dlopen(name, RTLD_NOW);
    name_ = name;
    if (handle_) return;
    found += (found.empty() ? "" : "; ") + std::string(dlerror());
  }
  device_error("{}; {}", found, help);
}

SharedLibrary::~SharedLibrary() { dlclose(handle_); }

void* SharedLibrary::symbol(const char* function) const { return dlsym(handle_, function); }

void* SharedLibrary::required(const char* function) const {
  void* const found = symbol(function);
  if (!found) device_error("{} has no {}, which this snug expects", name_, function);
  return found;
}

std::string version_text(int64_t version) {
  return fmt::format("{}.{}.{}", version / 10'000, version / 100 % 100, version % 100);
}

}  // namespace snug
