#!/usr/bin/env bash
# Builds a wheel from the tree and tries it in an empty environment away from the tree: what a base install can do, what it says about
# what it cannot, what serves without torch, and README's quickstarts.
# INTERPRETER: the Python of that environment. CONSTRAINTS: a file with versions. WITH_TORCH=1: the extra serve is installed, too, with
# torch of the index TORCH_INDEX where that is set; without, README's quickstarts run with the caller's torch.
set -euo pipefail
unset PYTHONPATH # else pip takes the tree itself for an installed package
cd "$(dirname "$0")/.."
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
interpreter=${INTERPRETER:-$python}
constraints=$(realpath "${CONSTRAINTS:-constraints.txt}")
work=$(mktemp -d)
cleanup() {
  if [ -n "${frontend:-}" ]; then kill "$frontend" 2>/dev/null || true; fi
  if [ -n "${service:-}" ]; then kill "$service" 2>/dev/null || true; fi
  rm -rf "$work"
}
trap cleanup EXIT

say() { printf '  %s\n' "$*"; }
fail() { printf 'wheel-test: %s\n' "$*" >&2; exit 1; }

# From a copy of what git tracks: leftovers of other builds would end up in the wheel.
mkdir "$work/tree"
git ls-files -z | xargs -0 cp --parents -t "$work/tree"
"$python" -m build --wheel --outdir "$work/dist" "$work/tree" >"$work/log" 2>&1 || fail "$(cat "$work/log")"
wheel=$(echo "$work"/dist/*.whl)
say "built $(basename "$wheel"), $(du -k "$wheel" | cut -f1) KiB"

"$python" -m zipfile -l "$wheel" >"$work/contents"
for needed in pagewire/py.typed pagewire_client/py.typed pagewire/v1/generation_pb2.pyi pagewire/demo_model/model.safetensors \
  pagewire/demo_model/tokenizer.json pagewire/_rooms/pagewire_console/static/index.html pagewire/protos/pagewire/v1/generation.proto \
  pagewire/protos/service_config.json pagewire/docs/tutorial.md; do
  grep -q "$needed" "$work/contents" || fail "$needed is not in the wheel"
done
sed -n '2,$s/ .*//p' "$work/contents" | grep -vE '^pagewire(/|_client/|-[^/]*\.(dist-info|data)/)' >"$work/strays" &&
  fail "the wheel installs more than pagewire: $(head -3 "$work/strays")"

install() {
  "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check -c "$constraints" "$@"
}
size() { # of the environment without pip, MiB
  du -sm --exclude={pip,setuptools,pkg_resources,_distutils_hack} --exclude='pip-*' --exclude='setuptools-*' "$work/venv/lib" | cut -f1
}
cd "$work" # where no folder of the tree can be imported by accident
"$python" -m build --wheel --outdir client tree/packages/pagewire-client >log 2>&1 || fail "$(cat log)"
"$interpreter" -m venv venv
install client/*.whl
export PATH="$work/venv/bin:$PATH"
[ "$(size)" -le 28 ] || fail "pagewire-client takes $(size) MiB"
python -c 'import pagewire; pagewire.Client; pagewire.AsyncClient'
for command in serve frontend engine worker demo token keys; do
  code=0
  pagewire "$command" >out 2>error || code=$?
  [ "$code" = 1 ] && grep -q 'uninstall pagewire-client' error || fail "pagewire $command: $(cat error)"
done
pagewire completion bash >out || fail "pagewire completion"
say "pagewire-client takes $(size) MiB, and says that it has no server"
"$interpreter" -m venv --clear venv
install "$wheel"
for absent in torch numpy transformers zmq tokenizers llguidance; do
  ! python -c "import $absent" 2>/dev/null || fail "the base install brings $absent"
done
say "a base install on $(python -V) takes $(size) MiB"

# Other distributions have packages of these names, too; `kernels` is widely installed.
site=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
for name in kernels worker frontend engine_core; do
  mkdir "$site/$name" && echo 'OWNER = "another distribution"' >"$site/$name/__init__.py"
done
python -c '
import pagewire, pagewire.cli
pagewire.Client; pagewire.AsyncClient; pagewire.LLM; pagewire.SamplingParams
import engine_core, frontend, kernels, worker
assert {each.OWNER for each in (engine_core, frontend, kernels, worker)} == {"another distribution"}'
say "packages called kernels, worker, frontend and engine_core of other distributions are left alone"
pagewire --help >help
grep -q 'start everything on this host' help || fail "pagewire --help"
test "$(pagewire version)" = "$(python -c 'import importlib.metadata as m; print(m.version("pagewire"))')" ||
  fail "two versions"
pagewire bench --help >help
grep -q -- --goodput help || fail "pagewire bench is not found"
say "imports, --help, version"

# A user's type checker sees the annotations of the installed client.
cat >program.py <<'PYTHON'
import pagewire

with pagewire.Client("127.0.0.1:50051") as client:
    text: str = client.generate("hello", max_tokens=3).text
    client.generate("hello", max_token=3)


async def number(client: pagewire.AsyncClient) -> int:
    return (await client.generate("hello", pagewire.SamplingParams(seed=7))).text
PYTHON
"$python" -m mypy --strict --config-file= --python-executable "$work/venv/bin/python" program.py >errors && fail "mypy finds nothing"
[ "$(grep -c error: errors)" = 2 ] && grep -q '^program.py:5: .*"max_token"' errors && grep -q '^program.py:9: .*"int"' errors ||
  fail "mypy of a user's program: $(cat errors)"
say "mypy --strict finds a misspelt keyword and a wrong type"

pagewire docs >out
test -s "$(cut -d ' ' -f 1 out)" || fail "pagewire docs: $(cat out)"
say "pagewire docs names a page that is there"

for command in engine serve demo worker frontend token keys; do
  code=0
  pagewire "$command" >out 2>error || code=$?
  [ "$code" = 1 ] && grep -q "pip install .*'pyzmq<" error || fail "pagewire $command: $(cat error)"
  case $command in engine | serve | demo) grep -q "'torch<" error || fail "pagewire $command: $(cat error)" ;; esac
done
say "commands name what to install"

install "$wheel[frontend]"
for absent in torch numpy transformers; do
  ! python -c "import $absent" 2>/dev/null || fail "the extra frontend brings $absent"
done

port=$(python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
pagewire frontend --port "$port" --http-port -1 --engine "ipc://$work/no-engine/frontends.ipc" &
frontend=$!
python - "127.0.0.1:$port" <<'PYTHON'
import sys, time
import pagewire
from pagewire_client.errors import Unavailable

client = pagewire.Client(sys.argv[1])
deadline = time.monotonic() + 60
while True:
    try:
        assert client.healthy() is False  # there is no engine
        break
    except Unavailable:
        assert time.monotonic() < deadline, "the frontend does not answer"
        time.sleep(0.05)
ids = client.tokenize("The capital of France is").token_ids
assert ids and client.detokenize(ids) == "The capital of France is", ids
PYTHON
kill "$frontend"
wait "$frontend" || fail "the frontend ended with $? on SIGTERM"
frontend=
say "a frontend without an engine: NOT_SERVING, tokenizes, stops"
install "$wheel[engine]"
api=$(python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
pagewire serve --device simulated --profile instant --port "$port" --http-port -1 --openai-port "$api" \
  --open-inference --tei --orca >ready &
service=$!
pagewire health --wait 60 --address "127.0.0.1:$port" >/dev/null || fail "a simulated service: $(cat ready)"
python - "127.0.0.1:$port" "http://127.0.0.1:$api/" <<'PYTHON'
import kernels, sys, urllib.request
import grpc
from grpc_health.v1 import health_pb2
import pagewire

assert pagewire.Client(sys.argv[1]).generate("hello", max_tokens=3).token_ids
assert sys.modules["kernels"].OWNER == "another distribution"
with grpc.insecure_channel(sys.argv[1]) as channel:
    assert channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"") == b"\x08\x01"
    assert channel.unary_unary("/tei.v1.Info/Info")(b"")
    try:
        listed = channel.unary_unary("/grpc.health.v1.Health/List")(b"")
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED, error
        listed = b""
    assert (b"pagewire.v1.GenerationService" in listed) == hasattr(health_pb2, "HealthListRequest")
for name in ("console/", "console/main.js", "v1/models"):
    assert urllib.request.urlopen(sys.argv[2] + name, timeout=10).status == 200
PYTHON
pagewire bench --concurrency 2 --num-requests 4 --output-len 4 --address "127.0.0.1:$port" >/dev/null || fail "no figures"
test -n "$(pagewire generate hello --max-tokens 8 --address "127.0.0.1:$port")" || fail "no answer"
kill "$service"
wait "$service" || fail "the service ended with $? on SIGTERM"
service=
! python -c 'import torch' 2>/dev/null || fail "the engine extra brings torch"
say "with the extra engine: a whole service on a simulated device, its plug-ins, without torch"
if [ -n "${WITH_TORCH:-}" ]; then
  install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$wheel[serve,tracing]"
  pagewire demo >out 2>error || fail "pagewire demo: $(cat error)"
  say "with the extra serve: $(tail -n 1 out)"
elif [ -z "${INTERPRETER:-}${CONSTRAINTS:-}" ]; then
  # torch alone is the caller's, since it takes a gigabyte: a folder of links, so that nothing else of that environment is found.
  mkdir linked
  (cd "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" && ln -s "$PWD"/{torch,torch-*,torchgen,functorch} "$work/linked")
  echo "$work/linked" >"$site/linked.pth"
fi
if python -c 'import importlib.metadata as m; m.version("torch")' 2>/dev/null; then
  mkdir empty
  (cd empty && HOME=$PWD HF_HUB_OFFLINE=1 "$python" "$work/tree/scripts/quickstarts.py" "$wheel" "$constraints") || fail "README's quickstarts"
  say "README's quickstarts, as pasted"
else
  say "README's quickstarts are left out: WITH_TORCH=1 would install torch for this Python, too"
fi
echo "the wheel works"
