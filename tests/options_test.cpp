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

TEST(Options, ASizeThatIsNamedIsEnough) {
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{1023}, uint64_t{1025}, uint64_t{2195456}, uint64_t{6057985},
                               (uint64_t{16} << 30) + 1, uint64_t{900'000'000'000'001}}) {
    const uint64_t read = parse_size(size_for_option(bytes), "host_memory");
    EXPECT_GE(read, bytes);
    EXPECT_LE(read - bytes, bytes / 50) << size_for_option(bytes);
  }
  EXPECT_EQ(size_for_option((uint64_t{16} << 30) + 1), "16.01GiB");
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
