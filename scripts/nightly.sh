#!/usr/bin/env bash
# What takes other programs, or many minutes, to check; .ci/run --all runs it behind the tests. It installs the Python
# packages that it needs, and fetches what it reads, into build/nightly, once. Fails if any part does.
#
#   scripts/nightly.sh [PART...]
#
#   tokenizers   2,000 texts for every kind of tokenizer.json, cut as the `tokenizers` library cuts them
#   llama        exported files in llama.cpp, and files of its quantiser (scripts/check_llama_cpp.py): half an hour
#   images       a small model that learns to name drawings (scripts/demo_images.sh)
#   gguf         a real model as a GGUF file, evaluated as by transformers, and trained (scripts/check_real_gguf.py)
#   packages     a wheel, a tarball and a Debian package, each installed and used (scripts/check_packages.sh)
#   documents    the commands that README.md and docs/ show (scripts/check_doc_commands.py)
#   preferences  DPO of a real model, looked at by held-out pairs (scripts/demo_preferences.sh)
#   compilers    other compilers and the libraries of Debian 13 (scripts/check_compilers.sh): an hour, at first
set -euo pipefail
cd "$(dirname "$0")/.."

out=build/nightly
snug=build/cpu-release/snug
mkdir -p "$out"
export PYTHONPATH="$PWD/$out/python${PYTHONPATH:+:$PYTHONPATH}"

need() {  # packages that are called as what they are imported by
  for package in "$@"; do
    python3 -c "import ${package%%=*}" 2>/dev/null ||
      python3 -m pip install --quiet --disable-pip-version-check --target "$out/python" "$package"
  done
}

check_tokenizers() {
  need tokenizers==0.23.3 regex
  cmake --build --preset cpu-release --target tokenizer_kinds_test
  python3 scripts/make_tokenizer_kinds.py --cases 2000 --out "$out/tokenizer_kinds"
  build/cpu-release/tests/tokenizer_kinds_test "$out/tokenizer_kinds"
}

check_llama() {
  need gguf==0.19.0
  scripts/fetch_demo.sh
  local sources=$out/llama_cpp_python-0.3.36
  if [ ! -d "$sources" ]; then
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --dest "$out" \
      llama-cpp-python==0.3.36
    tar -xzf "$sources.tar.gz" -C "$out"
  fi
  "$snug" import build/demo/SmolLM2-135M-Instruct.Q4_1.gguf --out "$out/smollm2" --overwrite
  python3 scripts/check_llama_cpp.py "$sources/vendor/llama.cpp" "$out/smollm2" --data build/demo/heldout.jsonl \
    --snug "$snug" --out "$out/llama_cpp"
}

check_images() {
  scripts/demo_images.sh
}

check_gguf() {
  python3 scripts/check_real_gguf.py --snug "$snug" --out "$out/gemma"
}

check_packages() {
  scripts/setup.sh --packages
  scripts/package.sh
  scripts/check_packages.sh
}

check_documents() {
  python3 scripts/check_doc_commands.py --snug "$snug" --out "$out/documents"
}

check_preferences() {
  scripts/demo_preferences.sh
}

check_compilers() {
  scripts/setup.sh --packages
  scripts/check_compilers.sh g++-14
  scripts/check_compilers.sh --syntax g++-13 clang-19
}

cmake --preset cpu-release >/dev/null
cmake --build --preset cpu-release --target snug
failed=()
[ $# -gt 0 ] || set -- tokenizers llama images gguf packages documents preferences compilers
for part in "$@"; do
  printf '\n-- %s\n' "$part"
  # In a shell of its own, in which the first command that fails ends the part.
  (set -e && "check_$part") &
  wait $! || failed+=("$part")
done
[ ${#failed[@]} -eq 0 ] || { printf '\nfailed: %s\n' "${failed[*]}" && exit 1; }
