#!/usr/bin/env bash
# Installs the tree into the virtual environment $1 with the extra $2: `serve` to run a service, `dev` for tests and tools. Makes the
# environment, and does nothing in one that has what pyproject.toml and constraints.txt ask for.
#
# On Linux, PyPI's torch is the CUDA build of 3 GB. A machine without an NVIDIA GPU gets the CPU build
# where pip knows of one: through its configuration, or through TORCH_INDEX=URL, for example the index
# of CPU wheels that PyTorch's own installation page names.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1 extra=$2
python=${PYTHON:-python3}

# What pip reads, with the folders that an editable install maps.
wanted=$("$python" - <<'PYTHON'
import glob, hashlib, sys

if sys.version_info < (3, 11):
    sys.exit("pagewire needs Python 3.11 or newer; set PYTHON=")
import tomllib

project = tomllib.load(open("pyproject.toml", "rb"))["project"]
asked = [project, open("constraints.txt").read(), open("setup.py").read(), sorted(glob.glob("packages/*/src/*"))]
print(hashlib.sha256(repr(asked).encode()).hexdigest())
PYTHON
)
is_installed() { [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.installed-$1" 2>/dev/null)" = "$wanted" ]; }
if is_installed "$extra" || is_installed dev; then exit; fi

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
# Bytecode is written by what imports a module: compiling all of torch takes longer than installing it.
pip=("$venv/bin/python" -u -m pip install --disable-pip-version-check --no-compile -c constraints.txt)
[ -z "${TORCH_INDEX:-}" ] || pip+=(--extra-index-url "$TORCH_INDEX")

# Shows what pip prints as one line: on a terminal the latest package, elsewhere the end alone.
progress() { # of step $1
  local line name size packages="" count=0 start=$SECONDS clear=""
  [ ! -t 2 ] || clear=$'\r\e[K'
  show() { [ -z "$clear" ] || printf '%s%s: %s' "$clear" "$1" "$2" >&2; }
  show "$1" "looking for packages"
  while IFS= read -r line; do
    case $line in
      *"Downloading "* | *"Using cached "* | "Processing "*)
        name=${line##*Downloading } name=${name##*cached } name=${name##*/}
        count=$((count + 1))
        [[ $line =~ \([0-9.]+\ .?B\) ]] && size=" ${BASH_REMATCH[0]}" || size=""
        show "$1" "package $count, ${name%%-[0-9]*}$size"
        ;;
      "Installing collected packages: "*)
        packages=$(wc -w <<<"${line#*: }")
        show "$1" "unpacking $packages packages"
        ;;
    esac
  done
  [ -z "$packages" ] || printf '%s%s: %d packages in %d s\n' "$clear" "$1" "$packages" $((SECONDS - start)) >&2
}

torch=()
if [ "$(uname)" = Linux ] && ! [ -e /dev/nvidia0 ]; then
  torch=("$(grep -E '^torch==' constraints.txt)+cpu")
  if ! "${pip[@]}" "${torch[@]}" 2>"$venv/pip.log" | progress "installing torch"; then
    echo "pip knows no CPU build of torch: taking the CUDA build of 3 GB (or stop, and set TORCH_INDEX; $venv/pip.log)" >&2
    torch=()
  fi
fi
"${pip[@]}" "${torch[@]}" -e ".[$extra]" | progress "installing pagewire[$extra]"
echo "$wanted" >"$venv/.installed-$extra"
