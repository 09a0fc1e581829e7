#include "base/option_name.h"

#include <gtest/gtest.h>

namespace snug {
namespace {

TEST(OptionNames, AreFieldsUntilTheProcessIsACommandLine) {
  EXPECT_EQ(option_name("max_steps"), "max_steps");
  name_options_as_flags();
  EXPECT_EQ(option_name("max_steps"), "--max-steps");
  EXPECT_EQ(option_name("out"), "--out");
}

}  // namespace
}  // namespace snug
