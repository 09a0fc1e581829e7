#include "cli/options.h"

#include <gtest/gtest.h>

namespace snug {
namespace {

TEST(Options, DefaultsAreReadBackAsWritten) {
  const std::string written = write_job_file(Options());
  Options read;
  parse_job(written, "job.yaml", read);
  EXPECT_EQ(write_job_file(read), written);
}

}  // namespace
}  // namespace snug
