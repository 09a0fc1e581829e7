// Begins the tests of a program whose messages name options by their flags, as those of the command line do.
#include <gtest/gtest.h>

#include "base/option_name.h"

int main(int argc, char** argv) {
  snug::name_options_as_flags();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
