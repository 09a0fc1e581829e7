// Strategies on the CUDA backend.
#define SNUG_TESTS_ON_CUDA
#include "streams_test.cpp"
