#!/usr/bin/env bash
# Builds snug and runs its tests. Installs what that needs first.
#
#   scripts/test.sh                               the release build
#   scripts/test.sh PRESET [CTEST OPTIONS]        another of CMakePresets.json: scripts/test.sh cpu-debug --parallel 2
set -euo pipefail
cd "$(dirname "$0")/.."

preset="${1:-cpu-release}"
scripts/setup.sh
scripts/fetch_demo.sh
cmake --preset "$preset" >/dev/null
cmake --build --preset "$preset"
ctest --preset "$preset" "${@:2}"
