#!/bin/sh
# Builds with CUDA for this machine's GPU and runs every test that needs one: op cases, each within the scratch that is
# planned for it, and products by algorithms that the library says need no more; parity with the stored runs,
# strategies, ranks where there are two GPUs, GPUs that are lost or full, and compute-sanitizer's memcheck and racecheck
# over the op cases. BUILD: the folder (build/cuda).
#   scripts/test_gpu.sh
set -eu
cd "$(dirname "$0")/.."
build=${BUILD:-build/cuda}
cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DSNUG_CUDA=ON
cmake --build "$build" --target cuda_op_test cuda_parity_test cuda_streams_test cuda_arrangement_test cuda_ranks_test \
  cuda_faults_test cuda_ops
ctest --test-dir "$build" --label-regex gpu --output-on-failure
for tool in memcheck racecheck; do
  compute-sanitizer --tool "$tool" --error-exitcode 1 "$build/tests/cuda_op_test" --gtest_brief=1 \
    --gtest_filter='*GivesTheReference*'
done
"$build/bench/cuda_ops"
