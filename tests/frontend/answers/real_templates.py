"""Chat templates of real checkpoints: those in the source distribution of llama-cpp-python.

They are downloaded once, with pip, into the user's cache; they are not part of this repository.
"""

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
FOLDER = Path.home() / ".cache/pagewire/test-data" / f"{PACKAGE}-{VERSION}"
TIMEOUT_S = 240


def folder_of_templates() -> Path | None:
    """Returns the folder with the templates; None where they cannot be downloaded."""
    if any(FOLDER.glob("*.jinja")):
        return FOLDER
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", PACKAGE, "--retries", "0"]
    with tempfile.TemporaryDirectory() as scratch:
        try:
            subprocess.run(
                [*command, "--timeout", "10", "-d", scratch, f"{PACKAGE}=={VERSION}"],
                check=True,
                capture_output=True,
                timeout=TIMEOUT_S,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        (archive,) = Path(scratch).glob("*.tar.gz")
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive) as files:
            for member in files:
                path = Path(member.name)
                content = files.extractfile(member) if path.parent.name == "templates" else None
                if content is not None and path.suffix == ".jinja":
                    (FOLDER / path.name).write_bytes(content.read())
    return FOLDER if any(FOLDER.glob("*.jinja")) else None
