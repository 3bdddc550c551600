#!/usr/bin/env bash
# Generates pagewire/**/_pb2 code from protos/, that of packages/pagewire-gateways, and protos/published.binpb: the
# public API as clients know it. Refuses a change of the API that would break one of them. With --check, writes nothing, and fails
# when something of it is stale.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}

gateways=packages/pagewire-gateways/src

# The oldest compiler whose code the lowest protobuf and grpcio of pyproject.toml run: code of a version runs with it and
# with the next major one. In an environment of its own, since it needs that protobuf.
python=$(command -v "$python" | xargs realpath -s)
compiler=$(dirname "$python")/../protoc-1.76.0
[ -e "$compiler/installed" ] || {
  "$python" -m venv "$compiler"
  "$compiler/bin/python" -m pip install --quiet --disable-pip-version-check grpcio-tools==1.76.0 'protobuf>=6.31.1,<7'
  touch "$compiler/installed"
}

generate() { # of folder $1, package $2, into folder $3
  (cd "$1" && find "$2" -name '*.proto' | sort | xargs "$compiler/bin/python" -m grpc_tools.protoc -I. \
    --python_out="$3" --pyi_out="$3" --grpc_python_out="$3")
  # This compiler's stubs take None for every optional field but for those of bool, which take it, too.
  grep -rl --include='*_pb2.pyi' ': bool = \.\.\.' "$3/$2" | xargs -r sed -i 's/: bool = \.\.\./: _Optional[bool] = .../g'
  # Files without services get an empty grpc module: leave it out.
  grep -rL 'class .*Stub' --include='*_pb2_grpc.py' "$3/$2" | xargs -r rm
}

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
