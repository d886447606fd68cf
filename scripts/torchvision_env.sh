#!/usr/bin/env bash
# torchvision, which the environment of scripts/vllm_env.sh lacks, for the comparison of images' pixels; prints the
# directory to import it from, beside that environment's torch.
#
#   scripts/torchvision_env.sh     make it if need be, then print its path (everything else goes to stderr)
#
# Only its Python part is used: what it has compiled needs a torch built for CUDA. Apart, because vLLM would import it.
# The rest is in scripts/cached_env.sh.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$here/scripts/cached_env.sh"
constraints=$here/tests/vllm/env/constraints.txt

fill() {
  run "torchvision" "${pip[@]}" install --progress-bar off --no-deps -c "$constraints" torchvision
}

cached_env torchvision 200 "some seconds, 60 MB when done" "$constraints"
"$target/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
