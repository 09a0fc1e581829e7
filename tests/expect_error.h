// An exception of one type whose message has a part: EXPECT_TRUE(fails_with<UserError>([&] { ... }, "part")).
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <string>
#include <string_view>

namespace snug {

template <class Error, class Body>
testing::AssertionResult fails_with(Body&& body, std::string_view part) {
  try {
    body();
  } catch (const Error& error) {
    if (std::string_view(error.what()).find(part) != std::string_view::npos) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "message without '" << part << "': " << error.what();
  } catch (const std::exception& error) {
    return testing::AssertionFailure() << "another type of error: " << error.what();
  }
  return testing::AssertionFailure() << "nothing was thrown, expected '" << part << "'";
}

}  // namespace snug
