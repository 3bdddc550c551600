"""Vocabularies of trained models with texts and their tokens, and the chat templates of 70 models.

They are in the source archive of a Python package (llama.cpp's `models` folder, 77 MB), which pip downloads
once per user.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from pagewire.errors import StartupError

NAME, VERSION = "llama-cpp-python", "0.3.36"
INSIDE = "/vendor/llama.cpp/models/"
SEPARATOR = "\n__ggml_vocab_test__\n"
SECONDS = 200


def models_folder() -> Path:
    """Returns the folder, downloading it at the first call. Raises StartupError."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(cache) / "pagewire" / "models" / f"{NAME}-{VERSION}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            _download(Path(scratch)).rename(folder)
    return folder


def _download(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", NAME]
    try:
        subprocess.run(
            [*command, "--dest", str(scratch), f"{NAME}=={VERSION}"],
            check=True,
            capture_output=True,
            timeout=SECONDS,
        )
    except (subprocess.SubprocessError, OSError) as error:
        raise StartupError(f"cannot download {NAME}=={VERSION}", str(error)) from error
    (archive,) = scratch.glob("*.tar.gz")
    target = scratch / "models"
    target.mkdir()
    with tarfile.open(archive) as members:
        for member in members:
            name = member.name.partition(INSIDE)[2]
            content = members.extractfile(member) if name and member.isfile() else None
            if content is not None and name.endswith((".gguf", ".inp", ".out", ".jinja")):
                with content, (target / Path(name).name).open("wb") as file:
                    shutil.copyfileobj(content, file)
    return target


def vectors_of(vocabulary: Path) -> list[tuple[str, list[int]]]:
    """Texts and their tokens, which stand in two files beside a vocabulary."""
    texts = Path(f"{vocabulary}.inp").read_bytes().decode().split(SEPARATOR)
    lines = Path(f"{vocabulary}.out").read_text().split("\n")
    return [(text, [int(token) for token in line.split()]) for text, line in zip(texts, lines, strict=False)]
