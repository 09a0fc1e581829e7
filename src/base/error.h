// Defines the kinds of failure, and how each is raised. Every message says what was read (file, key, tensor, op), what
// was found, what was expected and, where there is one, the option that would help.
#pragma once

#include <fmt/format.h>

#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>

namespace snug {

// Reports a failure that the user can mend: a flag, a file, data. Exit code 2.
struct UserError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The job does not fit the memory it may use. Exit code 3.
struct CapacityError : UserError {
  using UserError::UserError;
};

// Reports a failure of the machine: a disk full, a device lost, a read that failed. Exit code 4.
struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Reports a mistake of snug itself. Exit code 1. No input may raise it.
struct InternalError : std::logic_error {
  InternalError(const std::string& message, std::source_location where) : std::logic_error(message), where(where) {}
  std::source_location where;
};

template <class... Args>
[[noreturn]] void user_error(fmt::format_string<Args...> format, Args&&... args) {
  throw UserError(fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
[[noreturn]] void device_error(fmt::format_string<Args...> format, Args&&... args) {
  throw DeviceError(fmt::format(format, std::forward<Args>(args)...));
}

// Holds a format string and where it was written.
template <class... Args>
struct LocatedFormat {
  template <class T>
  FMT_CONSTEVAL LocatedFormat(const T& text, std::source_location where = std::source_location::current())
      : text(text), where(where) {}
  fmt::format_string<Args...> text;
  std::source_location where;
};

template <class... Args>
[[noreturn]] void internal_error(LocatedFormat<std::type_identity_t<Args>...> format, Args&&... args) {
  throw InternalError(fmt::format(format.text, std::forward<Args>(args)...), format.where);
}

// States what must hold whatever the input is; throws InternalError with the message otherwise.
template <class... Args>
void check(bool holds, LocatedFormat<std::type_identity_t<Args>...> format, Args&&... args) {
  if (!holds) [[unlikely]]
    throw InternalError(fmt::format(format.text, std::forward<Args>(args)...), format.where);
}

}  // namespace snug
