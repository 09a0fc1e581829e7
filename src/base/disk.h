// Room on disks.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/heartbeat.h"

namespace snug {

// Bytes that may still be written to the file system of a directory, by the quotas of this user and group too, where
// the system tells them. DeviceError if that is not known.
uint64_t free_bytes(const std::filesystem::path& directory);
// What a quota leaves, in bytes: its hard limit decides, or the soft one where that is all there is. A limit of 0 is
// none.
uint64_t left_of_quota(uint64_t hard, uint64_t soft, uint64_t used);
// Whether what is written to a directory is kept in memory: on tmpfs or ramfs, or an overlay whose upper directory is.
bool is_in_memory(const std::filesystem::path& directory);
// CapacityError where a directory, which need not be there yet, is in memory and less is left of that than `bytes`,
// which are to be written there.
void require_room_in_memory(const std::filesystem::path& directory, uint64_t bytes);
// Bytes of all files in a directory; 0 where it is not there.
uint64_t bytes_in(const std::filesystem::path& directory);
// The nearest directory above a path, or the path itself, that exists.
std::filesystem::path existing_part(const std::filesystem::path& path);
// Whether a path is a directory, at the latest after so many seconds: where hosts share a file system, one may for a
// while not see what another has made.
bool is_directory_within(double seconds, const std::filesystem::path& path, const Heartbeat& heartbeat);
// Removes a file, or a directory with all that is in it, if there is one.
void remove_tree(const std::filesystem::path& path, const Heartbeat& heartbeat);

}  // namespace snug
