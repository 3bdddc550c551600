#!/usr/bin/env bash
# Tests that need no GPU, in groups, the longest of both parts first. Services of many processes mostly wait and
# kernels mostly compute, so they take turns, and one more group runs at a time than there are cores; JOBS=N is another number.
#   test.sh PYTHON PART          all groups; PART: quick, rest or all (tests/thorough.toml)
#   test.sh PYTHON PART ROOM     the tests of one folder of tests/, in two halves, and the import rules
# Prints what each group prints when it ends, and at the end the last line of each.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C PYTHON=$1 PART=$2
room=${3:-}
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export logs

run_group() { # NAME PATH...
  local name=$1 log code=0
  log=$(mktemp -p "$logs")
  "$PYTHON" -m pytest -q -m 'not gpu' --part "$PART" "${@:2}" >"$log" 2>&1 || code=$?
  [ "$code" != 5 ] || code=0 # no test of this part
  flock "$logs" cat "$log"
  printf '%s: %s\n' "$name" "$(tail -n 1 "$log")" >>"$logs/summary"
  return "$code"
}
export -f run_group

absent='^$'
"$PYTHON" -c 'import triton' 2>/dev/null || absent='^tests/(kernels/triton|worker/cuda)/' # Triton is for Linux alone
files() { find "$@" -name 'test_*.py' | { grep -vE "$absent" || true; }; }

# Makes COUNT groups of the files that it reads, each a line. Files are dealt in turn, by name: neighbours take about as long as one another.
# tests/ comes before packages/: its conftest.py says what gRPC does when a process forks, before any other imports it.
deal() { # NAME COUNT
  sort -r | awk -v name="$1" -v count="$2" '
    { group[NR % count] = group[NR % count] " " $0 }
    END { for (number in group) print name (count > 1 ? "/" number + 1 : "") group[number] }'
}

groups() {
  if [ -n "$room" ]; then
    [ -d "tests/$room" ] || { echo "there is no tests/$room" >&2; exit 2; }
    { files "tests/$room"; echo tests/test_imports.py; } | deal "$room" 2
    return
  fi
  local containers=tests/e2e/test_containers.py
  {
    files tests packages | grep -vE '^tests/(e2e|chaos|worker|kernels|frontend|pagewire)/' | deal others 3
    files tests/worker | grep -v '^tests/worker/cuda/' | deal worker 1
    files tests/kernels | grep -v '^tests/kernels/cpu/' | deal kernels 1
    files tests/worker/cuda | deal worker/cuda 1
    files tests/frontend tests/pagewire | deal frontend 1
    files tests/kernels/cpu/isa | deal kernels/cpu/isa 1
    files tests/chaos | deal chaos 1
    files tests/kernels/cpu | grep -v '^tests/kernels/cpu/isa/' | deal kernels/cpu 1
  } >"$logs/computing"
  {
    files tests/e2e | grep -vx "$containers" | deal e2e 4
    echo "containers $containers"
  } | paste -d '\n' - "$logs/computing" | grep .
}

code=0
list=$(groups)
jobs=${JOBS:-$(($(getconf _NPROCESSORS_ONLN) + 1))}
# shellcheck disable=SC2016 # paths have no spaces
xargs -P "$jobs" -L 1 bash -c 'run_group "$@" || exit 1' group <<<"$list" || code=$?
cat "$logs/summary"
exit "$code"
