#!/usr/bin/env bash
# lm-evaluation-harness for its test; prints the environment's directory.
#
#   scripts/lm_eval_env.sh     make it if need be, then print its path (everything else goes to stderr)
#
# LM_EVAL_ENV=DIR names another environment, used as it is. The rest is in scripts/cached_env.sh.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$here/scripts/cached_env.sh"
constraints=$here/tests/vllm/lm_eval/constraints.txt

if [ -n "${LM_EVAL_ENV:-}" ]; then
  [ -x "$LM_EVAL_ENV/bin/lm_eval" ] || die "LM_EVAL_ENV=$LM_EVAL_ENV has no bin/lm_eval"
  echo "$LM_EVAL_ENV"
  exit 0
fi

fill() {
  run "lm-eval" "${pip[@]}" install --progress-bar off -c "$constraints" "lm-eval[api]"
}

cached_env lm-eval 2000 "about a minute with a fast network, 800 MB when done" "$constraints"
echo "$target"
