# Sourced by scripts that make a directory outside the checkout, once, and print it.
#
#   cached_env NAME NEEDED_MB WHAT FILE...    a Python environment, which the function `fill` installs into; named by a
#                                             digest of the interpreter, the files and $recipe
#   cached NAME NEEDED_MB WHAT STEP           what the function STEP puts there
#
# Both set $target to ${XDG_CACHE_HOME:-~/.cache}/disagg-frontend/NAME, which clones share, and do nothing when it is
# complete. The functions call `run` and write into $target; $work is for what is thrown away.
# WHAT says how long and how big.
#
# Everything but the result goes to stderr. PYTHON names the interpreter. A stamp written last says that a directory
# is complete; one without stamp is the rest of an interrupted run and is made anew (an environment cannot be built
# elsewhere and moved in: its scripts hold full paths). A lock keeps two runs apart.
python=${PYTHON:-python3}
recipe=1 # raise it when a changed step of `fill` must rebuild existing environments

say() { echo "[${label:-environment}] $*" >&2; }
die() { say "$*"; exit 1; }

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

cached_env() {
  label=$1-env
  local name=$1 needed=$2 what=$3
  shift 3
  "$python" -c 'import sys; sys.exit(not ((3, 11) <= sys.version_info < (3, 14)))' 2>/dev/null \
    || die "$name needs Python 3.11 to 3.13 and '$python' is not one: set PYTHON=/path/to/python3"
  local digest
  digest=$(
    { "$python" -c 'import platform, sys; print(sys.version, platform.machine())'
      cat "$@"
      echo "$recipe"
    } | sha256sum | cut -c1-12
  )
  cached "$name-$digest" "$needed" "$what" environment
}

environment() {
  pip=("$target/bin/python" -m pip --disable-pip-version-check --no-input)
  run "environment" "$python" -m venv "$target"
  fill
}

cached() {
  local name=$1 needed=$2 what=$3 step=$4
  local parent=${XDG_CACHE_HOME:-$HOME/.cache}/disagg-frontend
  target=$parent/$name
  local stamp=$target/.complete
  [ ! -f "$stamp" ] || return 0

  mkdir -p "$parent"
  exec 9>"$target.lock"
  if ! flock -n 9; then
    say "another run is making $target; waiting for it"
    flock -w 1800 9 || die "gave up after 30 minutes"
  fi
  [ ! -f "$stamp" ] || return 0

  local free_mb
  free_mb=$(($(df -Pk "$parent" | awk 'NR == 2 { print $4 }') / 1000))
  [ "$free_mb" -gt "$needed" ] || die "needs $needed MB of free disk while it is made; $parent has $free_mb MB"
  say "making $target: $what"
  started=$SECONDS
  log=$target.log
  work=$(mktemp -d)
  job=
  trap '[ -z "$job" ] || kill "$job" 2>/dev/null || true; rm -rf "$work"' EXIT
  rm -rf "$target"
  mkdir "$target"
  : >"$log"
  "$step"
  date -u +%FT%TZ >"$stamp.tmp" && mv "$stamp.tmp" "$stamp"
  say "ready after $((SECONDS - started)) s"
}
