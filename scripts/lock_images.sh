#!/usr/bin/env bash
# Write deploy/docker/*.lock anew: what each image installs, at the versions of constraints.txt, with the hashes of all
# files that the package index has for them.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=${UV:-uv}
command -v "$uv" >/dev/null || { echo "uv is not installed: pip install uv, or say UV=/path/to/uv" >&2; exit 1; }

lock() { # lock NAME SOURCE OPTION...
  local name=$1
  shift
  "$uv" pip compile "$@" --quiet --constraints constraints.txt --python-version 3.13 --generate-hashes --no-header \
    --no-annotate --no-emit-index-url --output-file "deploy/docker/$name.lock"
}
lock render pyproject.toml --extra harmony --extra otel
lock multimodal pyproject.toml --extra harmony --extra multimodal --extra otel
lock multimodal-video pyproject.toml --extra harmony --extra image-kernels --extra multimodal --extra otel --extra video
lock orchestrator pyproject.toml --extra dns --extra kv-events --extra otel --extra redis
lock engine pyproject.toml --extra demo
echo "setuptools==$("$uv" --quiet pip compile - --no-header --no-annotate --no-emit-index-url <<<'setuptools>=77' | cut -d= -f3)" |
  "$uv" pip compile - --quiet --generate-hashes --no-header --no-annotate --no-emit-index-url \
    --output-file deploy/docker/build.lock
