#!/usr/bin/env bash
# Makes snug's packages in dist/: a Python wheel, a tarball, a Debian package, their SBOM and SHA256SUMS. They have kernels
# for GPUs where there is nvcc, which takes an hour to compile them for all generations.
#
#   scripts/package.sh          with kernels for GPUs, if nvcc is here
#   scripts/package.sh --cpu    without
#
# Runs on Debian 12, so that packages need nothing newer than its C library has, and refuses others.
set -euo pipefail
cd "$(dirname "$0")/.."

[[ $# -eq 0 || "$*" == --cpu ]] || { echo "package.sh: found '$*', expected nothing or --cpu" >&2; exit 2; }
. /etc/os-release
[[ "$ID ${VERSION_ID:-}" == "debian 12" ]] || {
  echo "package.sh: this is $ID ${VERSION_ID:-}; expected Debian 12, whose libraries packages carry" >&2
  exit 4
}
scripts/setup.sh
cuda=ON
if [[ $# -eq 1 ]]; then
  cuda=OFF
elif ! command -v nvcc >/dev/null; then
  echo "package.sh: there is no nvcc here: packages are for processors alone"
  cuda=OFF
fi
cmake --preset package "-DSNUG_CUDA=$cuda" >/dev/null
cmake --build --preset package
python3 scripts/make_packages.py --build build/package --scratch build/packages --out dist
