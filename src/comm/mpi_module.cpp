// Implements comm/mpi_abi.h by MPI, as the module libsnug_mpi.so.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "comm/mpi_abi.h"

namespace {

static_assert(sizeof(MPI_Request) <= sizeof(SnugMpiRequest));

std::vector<MPI_Comm>& channels() {
  static std::vector<MPI_Comm> channels;
  return channels;
}

MPI_Comm channel(int number) { return channels()[static_cast<size_t>(number)]; }

int start(int count, int* process, int* processes) {
  int level = MPI_THREAD_SINGLE;
  if (const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level)) return code;
  if (level < MPI_THREAD_MULTIPLE) return MPI_ERR_UNSUPPORTED_OPERATION;
  for (int i = 0; i < count; i++) {
    MPI_Comm copy = MPI_COMM_NULL;
    if (const int code = MPI_Comm_dup(MPI_COMM_WORLD, &copy)) return code;
    if (const int code = MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN)) return code;
    channels().push_back(copy);
  }
  if (const int code = MPI_Comm_rank(MPI_COMM_WORLD, process)) return code;
  return MPI_Comm_size(MPI_COMM_WORLD, processes);
}

int finish() { return MPI_Finalize(); }

int keep(int code, MPI_Request request, SnugMpiRequest* kept) {
  std::memcpy(kept->bytes, &request, sizeof request);
  return code;
}

int send(int number, int to, int tag, const void* data, uint64_t bytes, SnugMpiRequest* kept) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag, channel(number), &request);
  return keep(code, request, kept);
}

int receive(int number, int from, int tag, void* data, uint64_t bytes, SnugMpiRequest* kept) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, tag, channel(number), &request);
  return keep(code, request, kept);
}

int test(SnugMpiRequest* kept, int* done) {
  MPI_Request request = MPI_REQUEST_NULL;
  std::memcpy(&request, kept->bytes, sizeof request);
  const int code = MPI_Test(&request, done, MPI_STATUS_IGNORE);
  return keep(code, request, kept);
}

void explain(int code, char* text, uint64_t size) {
  char whole[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, whole, &length);
  const uint64_t kept = std::min(size - 1, static_cast<uint64_t>(length));
  std::memcpy(text, whole, kept);
  text[kept] = 0;
}

const SnugMpi kTable{start, finish, send, receive, test, explain};

}  // namespace

extern "C" const SnugMpi* snug_mpi(void) { return &kTable; }
