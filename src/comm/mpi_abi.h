// Declares what comm/mpi.cpp asks of the MPI library, as C functions of a module that is opened at run time: snug
// itself links to no MPI, and the two need not come from one compiler.
#pragma once

#include <cstdint>

extern "C" {

struct SnugMpiRequest {
  unsigned char bytes[8];
};

// A channel is a communicator of all processes. Every function but explain() returns MPI's error code, 0 for success.
struct SnugMpi {
  // Starts MPI for calls from any thread and makes `channels` channels; once in a process.
  int (*start)(int channels, int* process, int* processes);
  int (*finish)(void);
  // Begin a message without blocking; bytes < 2^31. Messages of one channel and tag from one process to another arrive
  // in order.
  int (*send)(int channel, int to, int tag, const void* data, uint64_t bytes, SnugMpiRequest* request);
  int (*receive)(int channel, int from, int tag, void* data, uint64_t bytes, SnugMpiRequest* request);
  int (*test)(SnugMpiRequest* request, int* done);
  // Writes the text of an error code, cut to size.
  void (*explain)(int code, char* text, uint64_t size);
};

// Returns the functions; it is the module's one symbol.
const SnugMpi* snug_mpi(void);
}
