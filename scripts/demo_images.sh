#!/usr/bin/env bash
# From drawings of a package to a model that says what it sees, in five seconds on two cores: fetches the icons
# of the package tango-icon-theme (1.2 MB), and teaches a small Qwen2-VL with random weights to name thirty of them. Then
# the same questions are asked with other drawings: a model that had learned the texts alone would not notice.
set -euo pipefail
cd "$(dirname "$0")/.."

. scripts/demo_steps.sh

say "Building snug"
scripts/setup.sh
build_snug
demo=build/demo_images
mkdir -p "$demo"

say "Fetching the drawings"
if [ ! -d "$demo/icons" ]; then
  (cd "$demo" && apt-get -o APT::Sandbox::User=root download --quiet tango-icon-theme && dpkg-deb -x tango-icon-theme_*.deb icons)
fi
scripts/make_image_demo.py "$demo/icons/usr/share/icons/Tango/32x32" "$demo"
printf 'three of the records, and three with the drawings of others:\n'
head -n 3 "$demo/train.jsonl" "$demo/others.jsonl"

say "Training: the text model, the tower that looks, and what is between the two"
show $snug train --model "$demo/model" --init random --data "$demo/train.jsonl" --method full --compute fp32 \
  --freeze-vision-tower false --freeze-projector false --sequence-length 256 --batch-size 2 --epochs 80 \
  --learning-rate 2e-3 --warmup-steps 20 --out "$demo/run" --overwrite --log-every 50 --save-every 0

say "The loss of the answers, and the same answers with the drawings of others"
show $snug eval --model "$demo/run/model" --data "$demo/train.jsonl" --sequence-length 256 --compute fp32
show $snug eval --model "$demo/run/model" --data "$demo/others.jsonl" --sequence-length 256 --compute fp32 \
  | tee "$demo/others.txt"
# A model that had learned the texts alone would say the same of any drawing.
control=$(sed -n 's/^loss *\([0-9.]*\).*/\1/p' "$demo/others.txt")
awk -v loss="$control" 'BEGIN { exit !(loss > 1) }' || {
  printf 'the drawings of others leave the loss at %s, expected above 1\n' "$control"
  exit 1
}

say "What does it see?"
right=0
while read -r name; do
  answer=$($snug generate --model "$demo/run/model" --compute fp32 --prompt "What is it?" \
    --image "$demo/images/$name.png" --max-new-tokens 40 2>/dev/null | tail -n 1)
  printf '%-24s %s\n' "$name.png" "$answer"
  [ "$answer" != "$(printf '%s' "$name" | tr - ' ')." ] || right=$((right + 1))
done < <(head -n 6 "$demo/names")
printf '%s of 6 are right\n' "$right"
[ "$right" -ge 5 ]
