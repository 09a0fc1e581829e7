// Arrangements of one rank on the CUDA backend; those of several are in cuda_ranks_test.
#define SNUG_TESTS_ON_CUDA
#include "arrangement_test.cpp"
