#!/usr/bin/env bash
# Installs what snug is built and tested with, from the packages of Debian 12 or Ubuntu 24.04 (or newer), as root or with
# sudo. Does nothing when all of it is there.
#
#   scripts/setup.sh             compiler, libraries, and the text that the demo trains on
#   scripts/setup.sh --checks    also what scripts/check.sh and scripts/fuzz.sh use
#   scripts/setup.sh --packages  also what scripts/check_packages.sh uses
set -euo pipefail

fail() {
  echo "setup.sh: $1" >&2
  exit "${2:-4}"
}

packages=(
  g++ cmake ninja-build ccache git ca-certificates python3 python3-pip
  libfmt-dev nlohmann-json3-dev libcli11-dev libyaml-cpp-dev libutf8proc-dev libpcre2-dev libxxhash-dev
  libdnnl-dev ocl-icd-opencl-dev # oneDNN's CMake package of Debian asks for OpenCL
  libjpeg-dev libpng-dev libwebp-dev
  liburing-dev zlib1g-dev libzstd-dev libsnappy-dev
  libopenmpi-dev openmpi-bin
  libgtest-dev libgmock-dev libbenchmark-dev iproute2
  dict-jargon
)
packages_checks=(debootstrap qemu-user)
checks=(clang-format-14 clang-16 libclang-rt-16-dev libomp-16-dev python3-markdown)

case "${1:-}" in
  "") ;;
  --checks) packages+=("${checks[@]}") ;;
  --packages) packages+=("${packages_checks[@]}") ;;
  *) fail "unknown argument '$1', expected none, --checks or --packages" 2 ;;
esac

. /etc/os-release 2>/dev/null || fail "no /etc/os-release here; expected Debian 12 or Ubuntu 24.04, or newer"
system="${ID:-unknown} ${VERSION_ID:-}"
case "${ID:-}" in
  debian) oldest=12 ;;
  ubuntu) oldest=24.04 ;;
  *) fail "this is $system; expected Debian 12 or Ubuntu 24.04, or newer" ;;
esac
[[ $(printf '%s\n' "$oldest" "${VERSION_ID:-9999}" | sort -V | head -n 1) == "$oldest" ]] ||
  fail "this is $system; expected Debian 12 or Ubuntu 24.04, or newer"

installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true)
missing=()
for package in "${packages[@]}"; do
  grep -qx "installed $package" <<<"$installed" || missing+=("$package")
done
[[ ${#missing[@]} -eq 0 ]] && exit 0

as_root=(env)
if [[ $(id -u) -ne 0 ]]; then
  command -v sudo >/dev/null || fail "not root and no sudo; as root, install: ${missing[*]}"
  as_root=(sudo env)
fi
apt=("${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0)

log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "setup.sh: installing ${missing[*]}"
"${apt[@]}" update >"$log" 2>&1 || echo "setup.sh: apt-get update: $(grep -m 1 '^[EW]:' "$log" || true)" >&2
"${apt[@]}" install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1 ||
  fail "apt-get install: $(grep -m 1 '^E:' "$log" || tail -n 1 "$log") (on Ubuntu the component 'universe' must be enabled)"
