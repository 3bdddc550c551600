"""Command lines of the benchmarks."""

import argparse
import sys


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """Returns a parser of the module that runs, whose help is a docstring as it is written."""
    spec, form = sys.modules["__main__"].__spec__, argparse.RawDescriptionHelpFormatter
    name = f"python -m {spec.name.removesuffix('.__main__')}" if spec else None
    return argparse.ArgumentParser(name, description=doc, formatter_class=form)


def split_at_dashes() -> tuple[list[str], list[str]]:
    """Returns this program's own arguments, and those behind `--`, which are another's."""
    given = [*sys.argv[1:], "--"]
    at = given.index("--")
    return given[:at], given[at + 1 : -1]
