#!/usr/bin/env bash
# checkov, which reads manifests and Dockerfiles for `make policy`; prints the environment's directory.
#
#   scripts/policy_env.sh     make it if need be, then print its path (everything else goes to stderr)
#
# The rest is in scripts/cached_env.sh.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$here/scripts/cached_env.sh"
constraints=$here/tests/deploy/policy/constraints.txt

fill() {
  run "checkov" "${pip[@]}" install --progress-bar off -c "$constraints" checkov
}

cached_env policy 600 "about a minute with a fast network, 290 MB when done" "$constraints"
echo "$target"
