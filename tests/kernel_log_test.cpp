// Lines of the kernel's log, as Linux 5 and 6 and NVIDIA's driver write them.
#include "base/kernel_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace snug {
namespace {

using ::testing::HasSubstr;

constexpr const char* kRecords =
    "6,100,1000000,-;Linux version 6.1.0\n"
    "3,2001,5678901234,-;Out of memory: Killed process 4711 (python) total-vm:41943040kB, anon-rss:32505856kB, "
    "file-rss:12kB, shmem-rss:0kB, UID:1000 pgtables:70000kB oom_score_adj:0\n"
    " SUBSYSTEM=memory\n"
    "3,2002,5700000000,-;Memory cgroup out of memory: Killed process 99 (snug) total-vm:8kB, anon-rss:1048576kB, "
    "file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:4kB oom_score_adj:0\n"
    "4,2003,5800000000,c;NVRM: Xid (PCI:0000:3b:00): 79, pid=123, name=snug, GPU has fallen off the bus.\n"
    "4,2004,5900000000,-;NVRM: Xid (PCI:0000:3b:00): 48, pid='<unknown>', name=<unknown>, DBE (double bit error)\n";

TEST(KernelLog, KillsAndFaultsOfGpusAreFound) {
  const std::vector<KernelEvent> events = parse_kernel_log(kRecords);
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].process, 4711);
  EXPECT_EQ(events[0].name, "python");
  EXPECT_EQ(events[0].resident, uint64_t{31} << 30);
  EXPECT_FALSE(events[0].of_group);
  EXPECT_NEAR(events[0].seconds, 5678.901234, 1e-6);
  EXPECT_EQ(events[1].process, 99);
  EXPECT_TRUE(events[1].of_group);
  EXPECT_EQ(events[2].xid, 79);
  EXPECT_EQ(events[2].device, "PCI:0000:3b:00");
  EXPECT_EQ(events[2].process, 123);
  EXPECT_EQ(events[2].name, "snug");
  EXPECT_EQ(events[3].xid, 48);
  EXPECT_EQ(events[3].process, 0);
}

TEST(KernelLog, TheyAreSaidInWords) {
  const std::vector<KernelEvent> events = parse_kernel_log(kRecords);
  ASSERT_EQ(events.size(), 4u);
  EXPECT_THAT(words_of(events[0]),
              HasSubstr(" the kernel killed python (process 4711), 31.0 GiB resident: the memory of "
                        "the machine was used up"));
  EXPECT_THAT(words_of(events[1]),
              HasSubstr("1.0 GiB resident: the memory that its control group may take was used up"));
  EXPECT_THAT(words_of(events[2]),
              HasSubstr("GPU PCI:0000:3b:00 had fault 79 (Xid), met by snug (process 123): it fell off the bus"));
  EXPECT_THAT(words_of(events[3]), HasSubstr("had fault 48 (Xid): two bits"));
}

TEST(KernelLog, DmesgsLinesAreReadToo) {
  const std::vector<KernelEvent> events = parse_kernel_log(
      "[    0.000000] Linux version\n[ 5678.901234] Out of memory: Killed process 1 (a b) (c) total-vm:1kB, "
      "anon-rss:1024kB\n");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].name, "a b");
  EXPECT_EQ(events[0].resident, 1u << 20);
}

// Anyone may write to /dev/kmsg what looks like a record.
TEST(KernelLog, BrokenLinesArePassedOver) {
  for (const char* text :
       {"", "\n\n", ";", "[", "[]", "1,2;Killed process", "1,2,3,-;Killed process x (", "[1] Killed process 7 (",
        "[1] NVRM: Xid (", "[1] NVRM: Xid (a): ", "[1] NVRM: Xid (a): x", "[x] Killed process 7 (a)",
        "[99999999999999999999] NVRM: Xid (a): 99999999999999999999, pid=99999999999999999999"})
    EXPECT_TRUE(parse_kernel_log(text).empty()) << text;
  const std::vector<KernelEvent> odd =
      parse_kernel_log("[1] Killed process -1 (\x01\xff) anon-rss:99999999999999999999kB");
  ASSERT_EQ(odd.size(), 1u);
  EXPECT_EQ(odd[0].name, "??");
  EXPECT_EQ(odd[0].resident, 0u);
}

}  // namespace
}  // namespace snug
