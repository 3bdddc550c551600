#!/usr/bin/env bash
# Fills the virtual environment $1 with the development install.
#
# On Linux, PyPI's torch is the CUDA build of 3 GB. A machine without an NVIDIA GPU gets the CPU
# build from PyTorch's own index when that can be reached; TORCH_INDEX=URL names another, TORCH_INDEX=
# (empty) leaves it to pip's configuration.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt)

cpu_index=https://download.pytorch.org/whl/cpu
reachable() {
  "$venv/bin/python" - "$1" <<'PYTHON' 2>/dev/null
import sys, urllib.request
urllib.request.urlopen(sys.argv[1] + "/torch/", timeout=3)
PYTHON
}
if [ -z "${TORCH_INDEX+set}" ] && ! [ -e /dev/nvidia0 ] && [ "$(uname)" = Linux ] && reachable "$cpu_index"; then
  TORCH_INDEX=$cpu_index
fi
if [ -n "${TORCH_INDEX:-}" ]; then
  pip+=(--extra-index-url "$TORCH_INDEX")
fi
"${pip[@]}" -e '.[dev]'
