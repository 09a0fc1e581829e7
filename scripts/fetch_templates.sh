#!/usr/bin/env bash
# Fetches published chat templates into build/templates: those of llama.cpp's sources, which the source distribution of
# the Python package llama-cpp-python carries (77 MB). Tests labelled 'nightly' use them; they are not kept here. Does
# nothing where they are there already.
#
#   scripts/fetch_templates.sh [SOURCE.tar.gz]     from a source distribution that is here already
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.3.36 # tests/fixtures/jinja/published.json was made from this one's
templates=build/templates
[ -d "$templates" ] && exit 0
mkdir -p build
fetched=$(mktemp -d build/fetch.XXXXXX)
trap 'rm -rf "$fetched"' EXIT
source="${1:-}"
if [ -z "$source" ]; then
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python --dest "$fetched" \
    "llama-cpp-python==$version"
  source=$(find "$fetched" -name '*.tar.gz')
fi
tar -xzf "$source" -C "$fetched" --wildcards --strip-components=5 '*/vendor/llama.cpp/models/templates/*.jinja'
mkdir "$fetched/templates"
mv "$fetched"/*.jinja "$fetched/templates"
mv "$fetched/templates" "$templates"
