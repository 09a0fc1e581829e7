// Libraries that are opened by name.
#include "base/shared_library.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "expect_error.h"

namespace snug {
namespace {

TEST(SharedLibrary, IsTheFirstThatOpens) {
  const SharedLibrary math({"", "libsnug-of-no-machine.so.1", "libm.so.6"}, "not needed");
  double (*cosine)(double) = nullptr;
  math.get("cos", cosine);
  EXPECT_EQ(cosine(0), 1);
  EXPECT_EQ(math.find<double(double)>("of no library"), nullptr);
  EXPECT_TRUE(fails_with<DeviceError>([&] { math.get("of no library", cosine); }, "libm.so.6 has no of no library"));
}

TEST(SharedLibrary, ThatIsMissingIsNamedWithWhereItComesFrom) {
  EXPECT_TRUE(fails_with<DeviceError>(
      [] {
        SharedLibrary({"libsnug-of-no-machine.so.1", ""}, "it comes with a card");
      },
      "libsnug-of-no-machine.so.1: cannot open shared object file: No such file or "
      "directory; it comes with a card"));
}

TEST(SharedLibrary, VersionsHaveThreeNumbers) { EXPECT_EQ(version_text(22809), "2.28.9"); }

}  // namespace
}  // namespace snug
