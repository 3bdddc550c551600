#!/usr/bin/env bash
# All tests that need no GPU, in groups, the longest first. Services of many processes mostly wait and kernels mostly
# compute, so that one more group runs at a time than there are cores; JOBS=N is another number.
# $1: the Python to run them with. Prints what each group prints when it ends.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHON=$1
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export logs

run_group() {
  local log code=0
  log=$(mktemp -p "$logs")
  # shellcheck disable=SC2086 # paths and options, which have no spaces
  "$PYTHON" -m pytest -m 'not gpu' $1 >"$log" 2>&1 || code=$?
  flock "$logs" cat "$log"
  return "$code"
}
export -f run_group

others="tests packages"
for folder in e2e chaos worker kernels; do others+=" --ignore=tests/$folder"; done
xargs -P "${JOBS:-$(($(getconf _NPROCESSORS_ONLN) + 1))}" -d '\n' -I{} bash -c 'run_group "$1" || exit 1' group {} <<GROUPS
tests/e2e
$others
tests/worker
tests/kernels/cpu/isa
tests/kernels --ignore=tests/kernels/cpu
tests/chaos
tests/kernels/cpu --ignore=tests/kernels/cpu/isa
GROUPS
