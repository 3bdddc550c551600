"""The packages pagewire and pagewire_client without what serves; everything else is in pyproject.toml."""

import os

from setuptools import find_packages, setup

SOURCES = os.path.relpath("../../pagewire")

setup(
    packages=["pagewire", *(f"pagewire.{inner}" for inner in find_packages(SOURCES)), "pagewire_client"]
    + [f"pagewire_client.{inner}" for inner in find_packages("src/pagewire_client")],
    package_dir={"pagewire": SOURCES, "pagewire_client": "src/pagewire_client"},
)
