"""Runs parts one after the other, and keeps in a file how far it is."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.first_hour.facts import ROOT, Refused
from benchmarks.gpu.first_hour.parts import Part
from benchmarks.service.processes import kill_session, last_line
from pagewire.host.spawn import die_with

MOST_ATTEMPTS = 2
"""A part that was cut off so often is left out: it may be what ends the machine."""
GRACE_S = 15.0
"""Between the end of a part's time and its end by force: programs that know their time end by themselves."""
_POLL_S = 0.2
_SAVE_S = 5.0


@dataclass
class Record:
    """How one part went."""

    status: str = ""  # "under way", "done", "failed", "left out"
    why: str = ""  # of the last two
    seconds: float = 0.0  # of all attempts
    attempts: int = 0


@dataclass
class State:
    """What is known of a run, in FOLDER/state.json."""

    path: Path
    facts: dict[str, Any]
    parts: dict[str, Record] = field(default_factory=dict)

    @property
    def used(self) -> float:
        """Seconds of all parts, in this run and before it was cut off."""
        return sum(record.seconds for record in self.parts.values())

    def forget(self, name: str) -> None:
        """Lets a part be computed again: what it wrote goes."""
        self.parts.pop(name, None)
        self.path.with_name(f"{name}.json").unlink(missing_ok=True)

    def save(self) -> None:
        """Writes the file: another one takes its place, so that it is whole at any moment."""
        parts = {name: asdict(record) for name, record in self.parts.items()}
        text = json.dumps({"facts": self.facts, "parts": parts}, indent=1) + "\n"
        beside = self.path.with_suffix(".new")
        beside.write_text(text)
        beside.replace(self.path)


def open_state(folder: Path, facts: dict[str, Any]) -> State:
    """Returns the state that a folder holds, or a new one. Raises Refused where it is of something else."""
    path = folder / "state.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        return State(path, facts)
    try:
        known = json.loads(path.read_text())
        parts = {name: Record(**record) for name, record in known["parts"].items()}
        before = known["facts"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Refused(f"{path} is no state of this program: name another --folder") from None
    for name in ("device", "torch", "triton", "commit"):
        if before.get(name) != facts[name]:
            raise Refused(
                f"{folder} has figures of {name} {before.get(name)}, and this is {facts[name]}: name another"
                " --folder"
            )
    return State(path, facts, parts)


@dataclass
class Run:
    """Runs parts while there is time."""

    folder: Path
    state: State
    seconds: float
    say: Callable[[str], None]

    def part(self, part: Part) -> None:
        """Runs a part, unless it has ended before or there is no time for it."""
        record = self.state.parts.setdefault(part.name, Record())
        if record.status in ("done", "failed"):
            self.say(f"{part.name}: {record.status} before")
            return
        left = self.seconds - self.state.used
        limit = min(part.seconds, left)
        if record.attempts >= MOST_ATTEMPTS:
            record.status, record.why = "left out", f"it was cut off {record.attempts} times"
        elif left < part.least:
            record.status, record.why = "left out", f"the time was over; it needs {part.least:.0f} s"
        else:
            self.say(f"{part.name}: {part.about}, up to {limit:.0f} s ...")
            record.status, record.attempts = "under way", record.attempts + 1
            self.state.save()
            why = self._execute(part, limit, record)
            record.status, record.why = ("failed", why) if why else ("done", "")
        self.state.save()
        self.say(f"{part.name}: {record.status} {record.why}".rstrip())

    def _execute(self, part: Part, limit: float, record: Record) -> str:
        """Returns why it failed; "": it did not. Its time is in the record while it runs, for a run that is
        cut off."""
        output, log = self.folder / f"{part.name}.json", self.folder / f"{part.name}.log"
        before, began = record.seconds, time.monotonic()
        saved = began
        if part.shape and not part.model(self.folder).exists():
            from benchmarks.gpu.models import SHAPES  # it imports transformers

            SHAPES[part.shape].write(part.model(self.folder))
        with log.open("ab") as file:
            process = subprocess.Popen(
                part.words(output.absolute(), limit),
                cwd=ROOT,
                env=os.environ | part.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(die_with, os.getpid(), signal.SIGKILL),
            )
            try:
                while process.poll() is None and time.monotonic() - began < limit + GRACE_S:
                    time.sleep(_POLL_S)
                    record.seconds = before + time.monotonic() - began
                    if time.monotonic() - saved > _SAVE_S:
                        saved = time.monotonic()
                        self.state.save()
            finally:
                ended = process.poll()
                kill_session(process)
        record.seconds = before + time.monotonic() - began
        if ended is None:
            return f"not done in {limit:.0f} s; what it wrote until then counts"
        return f"exit code {ended}: {last_line(log)}" if ended else ""
