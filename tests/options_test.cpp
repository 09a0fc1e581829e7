#include "cli/options.h"

#include <gtest/gtest.h>

#include "cli/job.h"

namespace snug {
namespace {

TEST(Options, DefaultsAreReadBackAsWritten) {
  const std::string written = write_job_file(Options());
  Options read;
  parse_job(written, "job.yaml", read);
  EXPECT_EQ(write_job_file(read), written);
}

TEST(Options, MayNameMoreMemoryThanThereIsToLookAtAPlanButNotOfANamedCard) {
  constexpr uint64_t kLarge = uint64_t{1} << 50;
  Options options;
  options.device = "cpu";
  options.device_memory = options.host_memory = options.disk_memory = kLarge;
  const auto caps = [&](Aim aim) { return caps_of(options, Target(options), aim); };
  EXPECT_EQ(caps(Aim::Look).device_bytes, kLarge);
  EXPECT_EQ(caps(Aim::Look).host_bytes, kLarge);
  EXPECT_LT(caps(Aim::Run).device_bytes, kLarge);
  EXPECT_LT(caps(Aim::Run).host_bytes, kLarge);
  EXPECT_LT(caps(Aim::Run).disk_bytes, kLarge);
  options.device = "cuda";
  options.machine = "A100-40GB";
  EXPECT_LT(caps(Aim::Look).device_bytes, uint64_t{40} << 30);
  EXPECT_EQ(caps(Aim::Look).host_bytes, kLarge);
  options.device_memory = uint64_t{20} << 30;
  EXPECT_EQ(caps(Aim::Look).device_bytes, uint64_t{20} << 30);
}

}  // namespace
}  // namespace snug
