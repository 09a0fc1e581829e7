// Parameters of several kinds in a group, on the CUDA backend.
#define SNUG_TESTS_ON_CUDA
#include "rules_test.cpp"
