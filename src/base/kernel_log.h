// Reads what the kernel says of processes that it killed for lack of memory, and of faults of GPUs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace snug {

// Is a process that the kernel killed (mm/oom_kill.c), or a fault that NVIDIA's driver reports of a GPU ("Xid").
struct KernelEvent {
  double seconds = 0;        // since the machine started
  int64_t process = 0;       // 0: not said
  std::string name{};        // of the process, cut by the kernel after 15 bytes
  uint64_t resident = 0;     // of a killed process: its bytes in memory, without what it shared
  bool of_group = false;     // it was killed for the limit of a control group, not for the machine's memory
  std::optional<int> xid{};  // of a GPU's fault: its number
  std::string device{};      //   and the GPU's place, "PCI:0000:3b:00"
};

// Returns the events in lines of /dev/kmsg ("6,1234,5678901234,-;text"), or of dmesg ("[ 5678.901234] text"), in their
// order. All other lines are passed over.
std::vector<KernelEvent> parse_kernel_log(std::string_view text);

// Returns those of this machine since it started, as far as the kernel keeps them; nothing if this user may not read
// them.
std::optional<std::vector<KernelEvent>> read_kernel_log();

// Says an event in words: "on 2026-11-24 10:33:05 the kernel killed python (process 4711), 31.0 GiB resident: the
// memory of the machine was used up". The time is local.
std::string words_of(const KernelEvent& event);

}  // namespace snug
