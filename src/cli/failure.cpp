#include "cli/failure.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <new>
#include <string>

#include "base/error.h"
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
  say(fmt::format("snug: {}\n", line));
  return code;
}

int fail(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const CapacityError& error) {
    return fail(kDoesNotFit, error.what());
  } catch (const UserError& error) {
    return fail(kUser, error.what());
  } catch (const DeviceError& error) {
    return fail(kMachine, error.what());
  } catch (const std::bad_alloc&) {
    return fail(kDoesNotFit, no_more_memory());
  } catch (const InternalError& error) {
    return fail(kInternal,
                fmt::format("internal: {} ({}:{})", error.what(), error.where.file_name(), error.where.line()));
  } catch (const std::filesystem::filesystem_error& error) {
    return fail(kMachine, error.what());
  } catch (const std::exception& error) {
    return fail(kInternal, error.what());
  }
}

}  // namespace snug
