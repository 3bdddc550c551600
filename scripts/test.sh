#!/usr/bin/env bash
# Tests that need no GPU, in groups, the longest of both parts first. Services of many processes
# mostly wait and kernels mostly compute, so that one more group runs at a time than there are cores; JOBS=N is
# another number.
#   test.sh PYTHON PART          all groups; PART: quick, rest or all (tests/thorough.toml)
#   test.sh PYTHON PART ROOM     the tests of one folder of tests/, in two halves, and the import rules
# Prints what each group prints when it ends, and at the end the last line of each.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHON=$1 PART=$2
room=${3:-}
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export logs

run_group() {
  local log code=0
  log=$(mktemp -p "$logs")
  # shellcheck disable=SC2086 # paths and options, which have no spaces
  "$PYTHON" -m pytest -q -m 'not gpu' --part "$PART" $1 >"$log" 2>&1 || code=$?
  [ "$code" != 5 ] || code=0 # no test of this part
  flock "$logs" cat "$log"
  printf '%s: %s\n' "$1" "$(tail -n 1 "$log")" >>"$logs/summary"
  return "$code"
}
export -f run_group

groups() {
  if [ -n "$room" ]; then
    [ -d "tests/$room" ] || { echo "there is no tests/$room" >&2; exit 2; }
    printf '%s\n' "--share 0/2 tests/$room tests/test_imports.py" "--share 1/2 tests/$room"
    return
  fi
  local others="tests packages" containers=tests/e2e/test_containers.py folder
  local e2e="tests/e2e --ignore=$containers"
  for folder in e2e chaos worker kernels frontend pagewire; do others+=" --ignore=tests/$folder"; done
  printf '%s\n' "--share 0/2 $others" "--share 1/2 $others" "tests/worker --ignore=tests/worker/cuda" \
    "--share 0/2 $e2e" "--share 1/2 $e2e" "tests/kernels --ignore=tests/kernels/cpu" tests/worker/cuda \
    "tests/frontend tests/pagewire" $containers tests/kernels/cpu/isa tests/chaos \
    "tests/kernels/cpu --ignore=tests/kernels/cpu/isa"
}

code=0
list=$(groups)
jobs=${JOBS:-$(($(getconf _NPROCESSORS_ONLN) + 1))}
xargs -P "$jobs" -d '\n' -I{} bash -c 'run_group "$1" || exit 1' group {} <<<"$list" || code=$?
cat "$logs/summary"
exit "$code"
