#!/usr/bin/env bash
# Runs every fuzzer for SECONDS (60 unless told), as many at once as there are cores. Inputs found earlier are kept in
# build/fuzz/corpus. Fails when a fuzzer crashes, hangs or takes over 2 GiB, and names the input that did it.
#
#   scripts/fuzz.sh [SECONDS]
set -euo pipefail
cd "$(dirname "$0")/.."

seconds="${1:-60}"
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "fuzz.sh: seconds are '$seconds', expected a whole number above 0" >&2; exit 2; }

scripts/setup.sh --checks
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz

# The fuzzer x_fuzz starts from the files in tests/fixtures/x, where there are any, but those over 64 KiB, which it would
# cut.
run_fuzzer() {
  local name="$1" seconds="$2"
  local corpus="build/fuzz/corpus/$name" found="build/fuzz/found/$name" log="build/fuzz/$name.log"
  local inputs=("$corpus") fixtures="tests/fixtures/${name%_fuzz}"
  mkdir -p "$corpus" "$found"
  [[ -d $fixtures ]] && inputs+=("-seed_inputs=$(find "$fixtures" -type f -size -65k | sort | paste -sd ,)")
  if "build/fuzz/tests/fuzz/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 \
    -artifact_prefix="$found/" "${inputs[@]}" >"$log" 2>&1; then
    echo "$name: $(tail -n 1 "$log")"
  else
    echo "$name: FAILED: $(grep -m 1 -E 'ERROR|runtime error' "$log" || tail -n 1 "$log")"
    echo "$name: input: $(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1), log: $log"
    return 1
  fi
}
export -f run_fuzzer

find tests/fuzz -name '*_fuzz.cpp' -printf '%f\n' | sort | sed 's/\.cpp$//' |
  xargs -P "$(nproc)" -I NAME bash -c 'run_fuzzer NAME "$0"' "$seconds"
