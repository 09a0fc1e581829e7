#!/bin/sh
# Builds with CUDA for this machine's GPU and runs every test that needs one: op cases, each within the scratch that is
# planned for it, and products by algorithms that the library says need no more; parity with the stored runs,
# objectives beside the CPU's, strategies, ranks of threads where there are two GPUs, with Open MPI (and as root) four
# ranks on however many, GPUs that are lost or full, and compute-sanitizer's memcheck and racecheck over the op cases.
# BUILD: the folder (build/cuda).
#   scripts/test_gpu.sh
set -eu
cd "$(dirname "$0")/.."
build=${BUILD:-build/cuda}
cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DSNUG_CUDA=ON
cmake --build "$build" --target gpu_tests cuda_ops
ctest --test-dir "$build" --label-regex gpu --output-on-failure
sanitize() { compute-sanitizer "$@" "$build/tests/cuda_op_test" --gtest_brief=1 --gtest_filter='*GivesTheReference*'; }
sanitize --tool memcheck --error-exitcode 1
# cuBLASLt's own kernels for Hopper (nvjet) have hazards by themselves, which the summary counts, and do not start where
# racecheck is told to leave them out: whatever else it says is ours.
races=$build/racecheck.txt
sanitize --tool racecheck --print-limit 0 >"$races" 2>&1 || { cat "$races"; exit 1; }
if grep -E 'Error: |Warning: | access at ' "$races" | grep -v ' access at nvjet_'; then exit 1; fi
grep "RACECHECK SUMMARY" "$races"
"$build/bench/cuda_ops"
