# What the demos do first; they source this.
say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
show() {
  printf '$ %s\n' "$*"
  "$@"
}

snug=build/cpu-release/snug

build_snug() {
  cmake --preset cpu-release >/dev/null
  cmake --build --preset cpu-release --target snug
}

# SmolLM2-135M-Instruct and the Jargon File's conversations, in build/demo.
demo=build/demo
fetch_model_and_data() {
  scripts/fetch_demo.sh
  [ -d "$demo/model" ] || show $snug import "$demo/SmolLM2-135M-Instruct.Q4_1.gguf" --out "$demo/model"
}
