#!/usr/bin/env bash
# Installs each package of dist/ (scripts/package.sh makes them) where nothing else of snug is, and plans, trains and
# exports there: the wheel in a fresh virtual environment, the tarball in a folder, the Debian package by the steps of
# packages/Dockerfile in a Debian that debootstrap makes. All train the same bits. Looks at the wheel with auditwheel,
# and runs on other processors by qemu. Needs root (chroot), and scripts/setup.sh --packages. What it makes lies in
# build/checked_packages.
set -euo pipefail
cd "$(dirname "$0")/.."

out=$PWD/build/checked_packages
demo=$PWD/build/demo
dist=$PWD/dist
umount "$out/debian/proc" 2>/dev/null || true  # of a check that was killed
rm -rf --one-file-system "$out"
mkdir -p "$out"

exec 3>&2  # for what is said while a command's own words go to a file
fail() {
  echo "check_packages.sh: $1" >&3
  exit 1
}

timed() {  # WHAT COMMAND...: says how long the command took
  local what="$1" start=$SECONDS
  shift
  "$@" || fail "$what failed: $*; what it printed is in $out"
  printf -- '-- %s: %d s\n' "$what" $((SECONDS - start)) >&3
}

tiny=(--sequence-length 64 --batch-size 1 --max-steps 2 --learning-rate 1e-3 --device cpu --threads 2)

# NAME ROOT FOLDER SNUG...: plans, trains and exports by a command that starts snug, which sees ROOT/FOLDER as FOLDER.
use() {
  local name="$1" root="$2" at="$3"
  shift 3
  local job=(--model "$at/model.gguf" --data "$at/train.jsonl" "${tiny[@]}")
  timed "$name: plan" "$@" plan "${job[@]}" >"$out/$name.plan" 2>"$out/$name.log"
  timed "$name: train" "$@" train "${job[@]}" --out "$at/$name" --json >"$out/$name.json" 2>>"$out/$name.log"
  timed "$name: export" "$@" export --model "$at/model.gguf" --adapter "$at/$name/adapter" --out "$at/$name-gguf" \
    --format f16 >>"$out/$name.log" 2>&1
  [[ $(head -c 4 "$root$at/$name-gguf/model.gguf") == GGUF ]] || fail "$name: model.gguf is no GGUF file"
  sha256sum <"$root$at/$name/adapter/adapter_model.safetensors" >>"$out/adapters"
}

files() {  # FOLDER: lays what snug is to read there
  mkdir -p "$1"
  ln "$demo/SmolLM2-135M-Instruct.Q4_1.gguf" "$1/model.gguf"
  cp "$demo/train.jsonl" "$1"
}

check_tarball() {
  files "$out/tarball"
  tar -xzf "$dist"/snug-*-linux-x86_64.tar.gz -C "$out/tarball" --strip-components 1
  use tarball "" "$out/tarball" env -i HOME="$out/tarball" "$out/tarball/bin/snug"
  bash -n "$out/tarball/share/bash-completion/completions/snug"
  grep -q '^\.TH SNUG 1 ' "$out/tarball/share/man/man1/snug.1"
}

check_wheel() {
  files "$out/wheel"
  python3 -m venv "$out/wheel/venv"
  "$out/wheel/venv/bin/pip" install --quiet --disable-pip-version-check --no-index "$dist"/snug-*.whl
  use wheel "" "$out/wheel" env -i PATH= HOME="$out/wheel" "$out/wheel/venv/bin/snug"
  timed "wheel: import snug" env -i PATH= HOME="$out/wheel" "$out/wheel/venv/bin/python" - "$out/wheel" <<'PYTHON'
import sys
import snug
folder = sys.argv[1]
job = {"model": f"{folder}/model.gguf", "data": f"{folder}/train.jsonl", "sequence_length": 64, "batch_size": 1,
       "max_steps": 2, "learning_rate": 1e-3, "device": "cpu", "threads": 2}
plan = snug.plan(**job)
run = snug.train(f"{folder}/python", **job)
bytes_taken = {step.device_bytes for step in run}
assert plan.fits and run.result.steps == 2 and run.result.loss < 10, (plan, run.result)
assert bytes_taken == {plan.device_bytes}, (bytes_taken, plan.device_bytes)
PYTHON
  [[ $(env -i PATH= "$out/wheel/venv/bin/python" -m snug --version) == "$("$out/wheel/venv/bin/snug" --version)" ]]
  if grep -q '^Provides-Extra: cuda' "$out"/wheel/venv/lib/python3*/site-packages/snug-*.dist-info/METADATA; then
    timed "wheel: its extra [cuda]" "$out/wheel/venv/bin/pip" install --quiet --disable-pip-version-check \
      "$(ls "$dist"/snug-*.whl)[cuda]"
    env -i PATH= HOME="$out/wheel" "$out/wheel/venv/bin/snug" doctor --out "$out/wheel/machine.json" \
      >"$out/wheel.doctor" 2>>"$out/wheel.log"
    local blas
    blas=$("$out/wheel/venv/bin/pip" show nvidia-cublas | sed -n 's/^Version: \([0-9]*\.[0-9]*\).*/\1/p')
    grep -q "cuBLASLt $blas\." "$out/wheel.doctor" ||
      fail "the wheel's program opened another cuBLASLt than $blas: $(grep -A1 'GPU libraries' "$out/wheel.doctor")"
  fi
  python3 -m pip install --quiet --disable-pip-version-check --target "$out/auditwheel" auditwheel 2>"$out/pip.log"
  # Of names of wheels none says x86-64-v3: that is for the dynamic linker to say.
  PYTHONPATH="$out/auditwheel" python3 -m auditwheel show --disable-isa-ext-check "$dist"/snug-*.whl \
    >"$out/auditwheel.txt" 2>&1
  local verdict='is consistent with the following platform tag: "manylinux_2_35_x86_64"'
  tr '\n' ' ' <"$out/auditwheel.txt" | grep -q "$verdict" ||
    fail "auditwheel says otherwise than the wheel's name: $(cat "$out/auditwheel.txt")"
}

# Takes the steps of packages/Dockerfile behind its base image.
check_debian() {
  local root="$out/debian"
  timed "debian: debootstrap" debootstrap --variant=minbase bookworm "$root" >"$out/debootstrap.log"
  cp "$dist"/snug_*_amd64.deb "$root/tmp/"
  timed "debian: the steps of the Dockerfile" chroot "$root" sh -ec "$(sed -n 's/^RUN //p' packages/Dockerfile)" \
    >"$out/debian-install.log" 2>&1
  files "$root/data"
  mount -t proc proc "$root/proc"
  trap 'umount "$out/debian/proc"' EXIT
  use debian "$root" /data chroot "$root" env -i HOME=/data PATH=/usr/bin:/bin snug
  chroot "$root" dpkg --remove snug >/dev/null
  [[ ! -e $root/usr/lib/snug && ! -e $root/usr/bin/snug ]] || fail "debian: files stay behind dpkg --remove"
}

# Runs on processors other than this one: one without AVX-512, and one without AVX2, which is refused.
check_processors() {
  local snug="$out/tarball/lib/snug/snug" refused=0
  timed "processors: Haswell" qemu-x86_64 -cpu Haswell "$snug" train --model tests/fixtures/models/llama \
    --data tests/fixtures/models/data.jsonl --sequence-length 64 --batch-size 2 --max-steps 1 --device cpu --threads 1 \
    --out "$out/haswell" 2>"$out/haswell.log"
  qemu-x86_64 -cpu Nehalem "$snug" --version 2>"$out/nehalem.log" || refused=$?
  [[ $refused -ne 0 ]] && grep -q 'CPU ISA level is lower than required' "$out/nehalem.log" ||
    fail "Nehalem: exit code $refused: $(cat "$out/nehalem.log")"
}

scripts/fetch_demo.sh
(cd "$dist" && sha256sum --quiet --check SHA256SUMS)
for part in tarball wheel debian processors; do
  printf '== %s\n' "$part"
  # In a shell of its own, in which the first command that fails ends the part.
  (set -e && "check_$part") &
  wait $! || fail "$part"
done
[[ $(sort -u "$out/adapters" | wc -l) -eq 1 ]] || fail "the packages trained different bits: $(cat "$out/adapters")"
echo "all packages plan, train the same adapter, and export"
