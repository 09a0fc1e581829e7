// Measures and frees room on disks.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/heartbeat.h"

namespace snug {

// Returns the bytes that may still be written to the file system of a directory, within the quotas of this user and
// group where the system tells them. Throws DeviceError if that is not known.
uint64_t free_bytes(const std::filesystem::path& directory);
// Returns what a quota leaves, in bytes: its hard limit decides, or the soft one if there is no other. A limit of 0 is
// none.
uint64_t left_of_quota(uint64_t hard, uint64_t soft, uint64_t used);
// Returns whether what is written to a directory is kept in memory: on tmpfs or ramfs, or on an overlay whose upper
// directory is.
bool is_in_memory(const std::filesystem::path& directory);
// Throws CapacityError if a directory, which need not exist yet, is in memory and less memory is left than the `bytes`
// that are to be written there.
void require_room_in_memory(const std::filesystem::path& directory, uint64_t bytes);
// Returns the bytes of all files in a directory; 0 if it does not exist.
uint64_t bytes_in(const std::filesystem::path& directory);
// Returns the nearest directory above a path, or the path itself, that exists.
std::filesystem::path existing_part(const std::filesystem::path& path);
// Returns whether a path is a directory, after at most `seconds`: where hosts share a file system, one may for a while
// not see what another has made.
bool is_directory_within(double seconds, const std::filesystem::path& path, const Heartbeat& heartbeat);
// Removes a file, or a directory with all that is in it, if it exists.
void remove_tree(const std::filesystem::path& path, const Heartbeat& heartbeat);

}  // namespace snug
