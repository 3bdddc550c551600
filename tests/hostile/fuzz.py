"""Looks for inputs that the readers of strangers' bytes cannot bear, driven by coverage (atheris).

    python -m tests.hostile.fuzz --seconds 60                 # each target for so long, one after the other
    python -m tests.hostile.fuzz --seconds 600 --only plans stops

Prints executions and crashes of each target; exits with 1 when there is a crash, whose input stays in
build/fuzz/. Inputs that have reached new code stay there too, and are where the next run begins.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "fuzz"
ROOMS = ["frontend", "engine_core", "worker", "pagewire"]
LONGEST = 4096
"""Bytes of an input."""
SLOWEST_S = 10
"""An input that takes longer is a crash."""
MEMORY_MB = 4096


def main() -> int:
    """Runs the targets in processes of their own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=int, default=60, help="per target")
    parser.add_argument("--only", nargs="*", default=[], help="targets")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments, rest = parser.parse_known_args()
    if arguments.child:
        return fuzz(arguments.child, rest)
    from tests.hostile.targets import TARGETS

    crashed = False
    print(f"{'target':<16}{'executions':>12}{'coverage':>10}{'crashes':>9}")
    for name in arguments.only or TARGETS:
        crashed |= run(name, arguments.seconds)
    return int(crashed)


def run(name: str, seconds: int) -> bool:
    """One target; whether it crashed."""
    from tests.hostile.targets import SEEDS

    corpus, crashes = BUILD / name / "corpus", BUILD / name / "crashes"
    for folder in (corpus, crashes):
        folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[name]):
        (corpus / f"seed-{number}").write_bytes(seed)
    before = set(crashes.iterdir())
    flags = [f"-max_total_time={seconds}", f"-max_len={LONGEST}", f"-timeout={SLOWEST_S}"]
    flags += [f"-rss_limit_mb={MEMORY_MB}", f"-artifact_prefix={crashes}/", "-print_final_stats=1"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile.fuzz", f"--child={name}", *flags, str(corpus)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    executions = _last(r"stat::number_of_executed_units: *(\d+)", done.stderr)
    coverage = _last(r"cov: (\d+)", done.stderr)
    found = sorted(set(crashes.iterdir()) - before)
    print(f"{name:<16}{executions:>12}{coverage:>10}{len(found):>9}", flush=True)
    if done.returncode:
        print(done.stderr[-3000:])
        for path in found:
            print(f"  {path.relative_to(ROOT)}: {path.read_bytes()[:200]!r}")
    return done.returncode != 0


def _last(pattern: str, text: str) -> str:
    found = re.findall(pattern, text)
    return found[-1] if found else "-"


def fuzz(name: str, flags: list[str]) -> int:
    """In the child. Does not return but for its exit code."""
    import atheris

    with atheris.instrument_imports(include=ROOMS):
        from tests.hostile.targets import TARGETS
    atheris.Setup([sys.argv[0], *flags], TARGETS[name])
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
