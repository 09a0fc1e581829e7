// The tests of models of texts and images on the CUDA backend.
#define SNUG_TESTS_ON_CUDA
#include "vision_test.cpp"
