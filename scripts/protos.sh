#!/usr/bin/env bash
# Generates pagewire/**/_pb2 code from protos/. With --check, fails when the checked-in code is stale.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}

generate() { # into folder $1
  (cd protos && find pagewire -name '*.proto' | sort | xargs "$python" -m grpc_tools.protoc -I. \
    --python_out="$1" --pyi_out="$1" --grpc_python_out="$1")
  # Files without services get an empty grpc module: leave it out.
  grep -rL 'class .*Stub' --include='*_pb2_grpc.py' "$1/pagewire" | xargs -r rm
}

python=$(command -v "$python" | xargs realpath -s)
if [ "${1:-}" = --check ]; then
  fresh=$(mktemp -d)
  trap 'rm -rf "$fresh"' EXIT
  generate "$fresh"
  for folder in v1 internal/v1; do
    diff -r -x '__pycache__' -x '__init__.py' -x 'py.typed' "pagewire/$folder" "$fresh/pagewire/$folder" >&2 || {
      echo "pagewire/$folder is stale: run 'make protos'" >&2
      exit 1
    }
  done
  echo "generated code is up to date"
else
  generate "$PWD"
fi
