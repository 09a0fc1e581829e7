#!/usr/bin/env bash
# Makes snug's packages in dist/: a Python wheel, a tarball, a Debian package, their SBOM and SHA256SUMS. They have kernels
# for GPUs where there is nvcc.
#
# Runs on Debian 12, so that packages need nothing newer than its C library has, and refuses others.
set -euo pipefail
cd "$(dirname "$0")/.."

. /etc/os-release
[[ "$ID ${VERSION_ID:-}" == "debian 12" ]] || {
  echo "package.sh: this is $ID ${VERSION_ID:-}; expected Debian 12, whose libraries packages carry" >&2
  exit 4
}
scripts/setup.sh
if command -v nvcc >/dev/null; then
  cmake --preset package >/dev/null
else
  echo "package.sh: there is no nvcc here: packages are for processors alone"
  cmake --preset package -DSNUG_CUDA=OFF >/dev/null
fi
cmake --build --preset package
python3 scripts/make_packages.py --build build/package --scratch build/packages --out dist
