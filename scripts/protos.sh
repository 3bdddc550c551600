#!/usr/bin/env bash
# Generates pagewire/**/_pb2 code from protos/, that of packages/pagewire-gateways, and protos/published.binpb: the
# public API as clients know it. Refuses a change of the API that would break one of them. With --check, writes nothing, and fails
# when something of it is stale.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}

gateways=packages/pagewire-gateways/src

generate() { # of folder $1, package $2, into folder $3
  (cd "$1" && find "$2" -name '*.proto' | sort | xargs "$python" -m grpc_tools.protoc -I. \
    --python_out="$3" --pyi_out="$3" --grpc_python_out="$3")
  # Files without services get an empty grpc module: leave it out.
  grep -rL 'class .*Stub' --include='*_pb2_grpc.py' "$3/$2" | xargs -r rm
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
  mkdir -p "$fresh/$gateways"
  generate protos pagewire "$fresh"
  generate "$gateways" pagewire_gateways "$fresh/$gateways"
  for folder in pagewire/v1 pagewire/internal/v1 "$gateways/pagewire_gateways/protos"; do
    diff -r -x '__pycache__' -x '__init__.py' -x '*.proto' "$folder" "$fresh/$folder" >&2 || {
      echo "$folder is stale: run 'make protos'" >&2
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
  generate protos pagewire "$PWD"
  generate "$gateways" pagewire_gateways "$PWD/$gateways"
  publish protos/published.binpb
fi
