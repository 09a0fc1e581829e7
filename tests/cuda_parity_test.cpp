// The parity tests on the CUDA backend.
#define SNUG_TESTS_ON_CUDA
#include "parity_test.cpp"
