#!/usr/bin/env bash
# Fills the virtual environment $1 with the development install.
#
# On Linux, PyPI's torch is the CUDA build of 3 GB. A machine without an NVIDIA GPU gets the CPU build
# where pip knows of one: through its configuration, or through TORCH_INDEX=URL, for example the index
# of CPU wheels that PyTorch's own installation page names.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt)
[ -z "${TORCH_INDEX:-}" ] || pip+=(--extra-index-url "$TORCH_INDEX")

torch=()
if [ "$(uname)" = Linux ] && ! [ -e /dev/nvidia0 ]; then
  pinned=$(grep -E '^torch==' constraints.txt)
  if "${pip[@]}" --dry-run --no-deps "$pinned+cpu" >/dev/null 2>&1; then
    torch=("$pinned+cpu")
  else
    echo "pip knows no CPU build of torch: taking the CUDA build of 3 GB (or stop, and set TORCH_INDEX)"
  fi
fi
"${pip[@]}" "${torch[@]}" -e '.[dev]'
