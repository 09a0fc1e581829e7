#include "api/failure.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <string>
#include <system_error>

#include "base/error.h"
#include "base/event.h"
#include "base/memory.h"
#include "base/say.h"
#include "format/unicode.h"

namespace snug {

std::string no_more_memory() {
  const std::vector<MemoryLimit> limits = memory_limits();
  const MemoryLimit& least = *std::ranges::min_element(limits, {}, &MemoryLimit::left);
  return fmt::format("the system gave no more memory beside what was planned: {} leaves {} bytes of {}", least.name,
                     least.left, least.limit);
}

int fail(ExitCode code, std::string_view text) {
  const auto in_hex = [](char c) { return fmt::format("\\x{:02x}", static_cast<unsigned char>(c)); };
  std::string line;
  while (!text.empty()) {
    const size_t good = find_invalid_utf8(text).value_or(text.size());
    for (const char c : text.substr(0, good))
      line += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? in_hex(c) : std::string{c};
    if (good < text.size()) line += in_hex(text[good]);
    text.remove_prefix(std::min(good + 1, text.size()));
  }
  say_event({{"event", "error"}, {"message", line}, {"exit_code", static_cast<int>(code)}});
  if (log_format() == LogFormat::Text) say(fmt::format("snug: {}\n", line));
  return code;
}

namespace {

// Fails with words that are ready, as there may be no memory to make them.
int fail_without_memory() noexcept {
  try {
    return fail(kDoesNotFit, no_more_memory());
  } catch (const std::bad_alloc&) {
    constexpr std::string_view kLine = "snug: the system gave no more memory beside what was planned\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kLine.data(), kLine.size());
    return kDoesNotFit;
  }
}

// Returns whether a thread has no room for its stack, or no more threads are allowed.
bool is_lack_of_threads(const std::system_error& error) {
  return error.code() == std::errc::resource_unavailable_try_again || error.code() == std::errc::not_enough_memory;
}

int fail_with_memory(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const CapacityError& error) {
    return fail(kDoesNotFit, error.what());
  } catch (const UserError& error) {
    return fail(kUser, error.what());
  } catch (const DeviceError& error) {
    return fail(kMachine, error.what());
  } catch (const std::bad_alloc&) {
    return fail_without_memory();
  } catch (const InternalError& error) {
    return fail(kInternal,
                fmt::format("internal: {} ({}:{})", error.what(), error.where.file_name(), error.where.line()));
  } catch (const std::filesystem::filesystem_error& error) {
    const std::string file = (error.path2().empty() ? error.path1() : error.path2()).string();
    return fail(error.code() == std::errc::permission_denied ? kUser : kMachine,
                fmt::format("{}: {}", file.empty() ? "a file" : file, error.code().message()));
  } catch (const std::system_error& error) {
    if (!is_lack_of_threads(error)) return fail(kInternal, error.what());
    return fail(kDoesNotFit, fmt::format("no thread can be started ({}): {}", error.what(), no_more_memory()));
  } catch (const std::exception& error) {
    return fail(kInternal, error.what());
  }
}

}  // namespace

int fail(const std::exception_ptr& thrown) {
  try {
    return fail_with_memory(thrown);
  } catch (const std::bad_alloc&) {
    return fail_without_memory();
  }
}

void end_in_words() {
  std::set_terminate([] {
    try {
      if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
    } catch (const std::bad_alloc&) {
      _exit(fail_without_memory());
    } catch (const std::exception& error) {
      say(fmt::format("snug: ended by {}\n", error.what()));
    } catch (...) {
      std::abort();
    }
    std::abort();
  });
}

}  // namespace snug
