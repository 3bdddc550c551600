#!/usr/bin/env bash
# All tests that need no GPU, in two halves side by side: services of many processes, which mostly wait, and the
# rest. $1: the Python to run them with.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$python" -m pytest -m 'not gpu' --ignore=tests/e2e --ignore=tests/chaos >"$log" 2>&1 &
rest=$!
code=0
"$python" -m pytest -m 'not gpu' tests/e2e tests/chaos || code=$?
wait "$rest" || code=$?
cat "$log"
exit "$code"
