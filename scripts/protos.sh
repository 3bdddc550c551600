#!/usr/bin/env bash
# Generates pagewire/**/_pb2 code from protos/, and protos/published.binpb: the public API as clients know
# it. Refuses a change of the API that would break one of them. With --check, writes nothing, and fails
# when something of it is stale.
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
buf=$(dirname "$python")/buf
"$buf" breaking protos --against protos/published.binpb || {
  echo "clients of the published API would break; to publish it all the same, delete protos/published.binpb" \
    "and run 'buf build protos --path protos/pagewire/v1 --exclude-source-info -o protos/published.binpb'" >&2
  exit 1
}
publish() { # to file $1
  "$buf" build protos --path protos/pagewire/v1 --exclude-source-info -o "$1"
}
if [ "${1:-}" = --check ]; then
  fresh=$(mktemp -d)
  trap 'rm -rf "$fresh"' EXIT
  generate "$fresh"
  for folder in v1 internal/v1 inference orca; do
    diff -r -x '__pycache__' -x '__init__.py' -x 'py.typed' "pagewire/$folder" "$fresh/pagewire/$folder" >&2 || {
      echo "pagewire/$folder is stale: run 'make protos'" >&2
      exit 1
    }
  done
  publish "$fresh/published.binpb"
  cmp "$fresh/published.binpb" protos/published.binpb >&2 || {
    echo "protos/published.binpb is stale: run 'make protos'" >&2
    exit 1
  }
  echo "generated code is up to date"
else
  generate "$PWD"
  publish protos/published.binpb
fi
