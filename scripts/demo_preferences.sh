#!/usr/bin/env bash
# Teaches SmolLM2-135M-Instruct what is preferred: the Jargon File's answers to its own (DPO). Shows before and after how
# likely the preferred answers of held-out pairs are to it, and what it says. Builds and fetches what scripts/demo.sh does;
# can be run again.
set -euo pipefail
cd "$(dirname "$0")/.."

. scripts/demo_steps.sh

say "Building snug, fetching the model and the Jargon File"
scripts/setup.sh
build_snug
fetch_model_and_data

say "Pairs: to each of 72 questions the Jargon File's answer is preferred to the model's own"
if [ ! -f "$demo/answers.jsonl" ]; then
  python3 scripts/preference_pairs.py questions "$demo/train.jsonl" --count 72 --longest 200 >"$demo/questions.jsonl"
  $snug generate --model "$demo/model" --prompts "$demo/questions.jsonl" --max-new-tokens 32 --json \
    >"$demo/answers.jsonl.part"
  mv "$demo/answers.jsonl.part" "$demo/answers.jsonl"
fi
python3 scripts/preference_pairs.py pairs "$demo/train.jsonl" "$demo/answers.jsonl" >"$demo/pairs.jsonl"
awk 'NR % 6 == 0' "$demo/pairs.jsonl" >"$demo/pairs_heldout.jsonl"
awk 'NR % 6 != 0' "$demo/pairs.jsonl" >"$demo/pairs_train.jsonl"
printf 'one of the pairs:\n'
head -n 1 "$demo/pairs.jsonl"

prompts=(--prompt "What does the hacker term kluge mean?" --prompt "What does the hacker term grok mean?")
job=(--model "$demo/model" --data "$demo/pairs_train.jsonl" --validation "$demo/pairs_heldout.jsonl" --objective dpo
  --nll-weight 0.2 --sequence-length 512 --batch-size 2 --epochs 3 --learning-rate 1e-4 --warmup-steps 2)
held_out=(--model "$demo/model" --data "$demo/pairs_heldout.jsonl" --sequence-length 512)
adapter=(--adapter "$demo/preferences/adapter")

say "Before: of pairs that training never sees, which answer is likelier, a token; and two answers"
show $snug eval "${held_out[@]}" --objective simpo
show $snug generate --model "$demo/model" --max-new-tokens 40 "${prompts[@]}"

say "Training: a pair is told rightly if its preferred answer gained more than the other; at the beginning none is"
show $snug train "${job[@]}" --out "$demo/preferences" --overwrite --eval-every 5 --save-every 0 --log-every 5

say "After: the same pairs by what they gained, and by themselves; and the same questions"
show $snug eval "${held_out[@]}" "${adapter[@]}" --objective dpo
show $snug eval "${held_out[@]}" "${adapter[@]}" --objective simpo
show $snug generate --model "$demo/model" "${adapter[@]}" --max-new-tokens 40 "${prompts[@]}"

# Fails unless most held-out pairs are told rightly, and preferred answers are likelier than they were.
python3 - <("$snug" eval "${held_out[@]}" "${adapter[@]}" --objective dpo --json) \
  <("$snug" eval "${held_out[@]}" --objective simpo --json) \
  <("$snug" eval "${held_out[@]}" "${adapter[@]}" --objective simpo --json) <<'EOF'
import json
import sys

told, before, after = (json.load(open(path)) for path in sys.argv[1:])
print(f"held-out pairs: {told['accuracy']:.2f} told rightly; margin a token {before['margin']:.2f} -> {after['margin']:.2f}")
sys.exit(0 if told["accuracy"] > 0.5 and after["margin"] > before["margin"] else "nothing was learnt")
EOF
