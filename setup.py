"""Where the packages go in a wheel; everything else is in pyproject.toml.

The repository has its rooms (frontend, engine_core, worker, kernels) at the top level, and plug-ins in
packages/. In site-packages such names would collide with other distributions, so a wheel has both in
pagewire/_rooms, which pagewire.rooms puts on the import path of our own processes. The client, which programs
of users import, stays pagewire_client. An editable install leaves all of them where they are, and also has
the packages that no wheel of pagewire has.
"""

import sys
from pathlib import Path

from setuptools import find_packages, setup

EDITABLE = "editable_wheel" in sys.argv
FOLDER = "" if EDITABLE else "pagewire._rooms."
FOLDERS = ("docs", "docs/decisions", "protos", "protos/pagewire", "protos/pagewire/v1")
FILES = {
    f"pagewire.{each.replace('/', '.')}": each for each in FOLDERS if not EDITABLE and Path(each).is_dir()
}
"""Folders outside of packages that a wheel has within one, for importlib.resources."""
DATA = ["pagewire.demo_model", f"{FOLDER}pagewire_console.static", *FILES]
"""Folders of files, for setuptools packages like others."""

plugins = Path("packages").glob(f"{'' if EDITABLE else 'pagewire-'}*/src/*/__init__.py")
sources = {room: room for room in ("frontend", "engine_core", "worker", "kernels")}
sources |= {file.parent.name: file.parent.as_posix() for file in sorted(plugins)}
public = {"pagewire_client": sources.pop("pagewire_client")}
folders = {f"{FOLDER}{name}": folder for name, folder in sources.items()} | public

setup(
    packages=[
        *find_packages(include=["pagewire", "pagewire.*"]),
        *folders,
        *(f"{name}.{inner}" for name, folder in folders.items() for inner in find_packages(folder)),
        *DATA,
    ],
    package_dir=folders | FILES,
)
