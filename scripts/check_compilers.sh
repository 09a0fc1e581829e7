#!/usr/bin/env bash
# Compiles the library, the program, tests and benchmarks, for processors, by compilers that this system need not have:
# in a Debian 13 that debootstrap makes, whose libraries are newer, too. Warnings are errors, as in any build. What only
# other processors would run of the CPU's kernels is compiled for these. Needs root (chroot), and scripts/setup.sh
# --packages. What it makes stays in build/compilers, and what was compiled there is not compiled again.
#
#   scripts/check_compilers.sh [--syntax] [--here] [COMPILER...]
#
#   COMPILER  g++-13, g++-14 and clang-19 unless told
#   --syntax  read the sources and make no code: this is quicker, and warns of nothing that only optimising finds
#   --here    by compilers and libraries of this system, which has them all: clang-16, say
set -euo pipefail
cd "$(dirname "$0")/.."

syntax=no here=no compilers=()
for word in "$@"; do
  case "$word" in
    --syntax) syntax=yes ;;
    --here) here=yes ;;
    g++-[0-9]* | clang-[0-9]*) compilers+=("$word") ;;
    *) echo "check_compilers.sh: '$word' is none of --syntax, --here, g++-N and clang-N" >&2 && exit 2 ;;
  esac
done
[[ ${#compilers[@]} -gt 0 ]] || compilers=(g++-13 g++-14 clang-19)

out=$PWD/build/compilers
root=$out/debian-13
mkdir -p "$out"

fail() {
  echo "check_compilers.sh: $1" >&2
  exit 1
}

# Runs a command in the Debian, which sees the sources as /snug and cannot write there. The mounts are those of a
# namespace, and end with it.
in_debian() {
  unshare --mount bash -ec '
    root=$1 && shift
    mount --bind "$PWD" "$root/snug" && mount -o remount,bind,ro "$root/snug"
    mount -t proc proc "$root/proc"
    exec chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"' \
    in_debian "$root" "$@"
}

make_debian() {
  local packages=()
  for compiler in "${compilers[@]}"; do
    packages+=("$compiler")
    [[ $compiler == g++-* ]] || packages+=("libomp-${compiler#clang-}-dev")
  done
  if [[ ! -e $root/snug ]]; then
    rm -rf --one-file-system "$root"
    debootstrap --variant=minbase trixie "$root" >"$out/debootstrap.log" || fail "debootstrap: $out/debootstrap.log"
    mkdir "$root/snug"
  fi
  in_debian /snug/scripts/setup.sh
  in_debian dpkg --status "${packages[@]}" >/dev/null 2>&1 && return
  in_debian apt-get -qq update >"$out/apt.log" 2>&1 || true
  in_debian apt-get -qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends "${packages[@]}" >>"$out/apt.log" 2>&1 ||
    fail "apt-get install ${packages[*]}: $(grep -m 1 '^E:' "$out/apt.log" || tail -n 1 "$out/apt.log")"
}

# Compiles one by one what a build folder's compile_commands.json lists and whose path has WHERE in it: FOLDER WHERE
# FLAGS, as many at once as there are cores.
compile_each='
import concurrent.futures, json, os, shlex, subprocess, sys
folder, where, flags = sys.argv[1], sys.argv[2], sys.argv[3:]

def compile(entry):
    words, command = iter(shlex.split(entry["command"])), []
    for word in words:
        if word in ("-o", "-MF", "-MT"):
            next(words)
        elif word not in ("-MD", "-c") and os.path.basename(word) != "ccache":
            command.append(word)
    done = subprocess.run(command + flags, cwd=entry["directory"], capture_output=True, text=True)
    if done.returncode or done.stderr:
        print("FAILED: " + entry["file"], done.stderr, sep="\n", flush=True)
    return done.returncode

entries = [entry for entry in json.load(open(folder + "/compile_commands.json")) if where in entry["file"]]
with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
    failed = sum(result != 0 for result in pool.map(compile, entries))
print(f"{len(entries) - failed} compiled, {failed} failed", flush=True)
sys.exit(failed != 0 or not entries)'

# COMPILER FOLDER SOURCES COMMAND...: configures the sources in the folder, and compiles them; COMMAND runs each step.
# A g++ older than the system's has a libstdc++ of its own, older than what the system's libraries need: the system's
# comes before it.
compile() {
  local compiler="$1" folder="$2" sources="$3" result=0
  local c="${compiler/g++/gcc}" each=(-fsyntax-only)
  shift 3
  "$@" cmake -S "$sources" -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSNUG_CUDA=OFF \
    -DCMAKE_CXX_STANDARD_LIBRARIES=-l:libstdc++.so.6 "-DCMAKE_C_COMPILER=$c" \
    "-DCMAKE_CXX_COMPILER=${compiler/clang/clang++}" || return
  if [[ $syntax == yes ]]; then
    "$@" python3 -c "$compile_each" "$folder" "" -fsyntax-only || result=1
  else
    "$@" cmake --build "$folder" --parallel "$(nproc)" -- -k 0 || result=1
    each=(-c -o /dev/null)
  fi
  for processor in x86-64-v3 sapphirerapids; do  # without AVX-512, and with its bf16 and AMX
    "$@" python3 -c "$compile_each" "$folder" /src/backend/cpu/ "${each[@]}" "-march=$processor" || result=1
  done
  return "$result"
}

[[ $here == yes ]] || make_debian
failed=()
for compiler in "${compilers[@]}"; do
  start=$SECONDS result=ok log=$out/$compiler.log
  if [[ $here == yes ]]; then
    compile "$compiler" "$out/here-$compiler" "$PWD" env >"$log" 2>&1 || result=FAILED
  else
    compile "$compiler" "/build/$compiler" /snug in_debian >"$log" 2>&1 || result=FAILED
  fi
  printf '%-10s %5d s  %s\n' "$compiler" $((SECONDS - start)) "$result"
  [[ $result == ok ]] && continue
  failed+=("$compiler")
  grep -E '(error|warning): |undefined reference|^CMake Error' "$log" | sort | uniq -c | sort -rn | head -n 20 || true
done
[[ ${#failed[@]} -eq 0 ]] || fail "${failed[*]}: what they printed is in $out"
