"""Bugs in telling quarantined from cleared requests, hung from slow workers, leaving from dead processes."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        name="every request in the fatal step is quarantined",
        file="engine_core/quarantine/blame.py",
        old="    group = max(1, len(blamed) // parts)\n    for key in blamed:\n"
        "        known[key] = Suspect(present[key], group, death)\n",
        new="    group = max(1, len(blamed) // parts)\n    for key in blamed:\n"
        "        known[key] = Suspect(present[key], group, death, STRIKES)\n",
        tests=("tests/engine_core/quarantine/test_blame.py",),
    ),
    Mutant(
        name="a request that runs beside an isolated suspect is blamed with it",
        file="engine_core/quarantine/blame.py",
        old="    blamed = isolated or present.keys()\n",
        new="    blamed = present.keys()\n",
        tests=("tests/engine_core/quarantine/test_blame.py",),
    ),
    Mutant(
        name="a suspect that has got further than the last death is punished for both",
        file="engine_core/quarantine/blame.py",
        old="    if not suspect.strikes or common.first >= common.end:\n",
        new="    if not suspect.strikes:\n",
        tests=("tests/engine_core/quarantine/test_blame.py",),
    ),
    Mutant(
        name="suspects never run alone",
        file="engine_core/quarantine/blame.py",
        old="    group = max(1, len(blamed) // parts)\n",
        new="    group = max(2, len(blamed) // parts)\n",
        tests=("tests/engine_core/quarantine/test_blame.py",),
    ),
    Mutant(
        name="suspects of one SIGKILL after another always run together",
        file="engine_core/quarantine/blame.py",
        old="    parts = 1 if killed and not isolated else _PARTS\n",
        new="    parts = 1 if killed else _PARTS\n",
        tests=("tests/engine_core/quarantine/test_blame.py",),
    ),
    Mutant(
        name="other requests begin beside isolated suspects",
        file="engine_core/quarantine/quarantine.py",
        old="        return bool(self._present) or bool(self._missing and self.waits)\n",
        new="        return bool(self._isolated) or bool(self._missing and self.waits)\n",
        tests=("tests/engine_core/quarantine/test_quarantine.py",),
    ),
    Mutant(
        name="a core that dies in its first step does not know which requests were running",
        file="engine_core/quarantine/quarantine.py",
        old="        self._journal.write_step(plan)\n",
        new="",
        tests=(
            "tests/engine_core/quarantine/test_quarantine.py",
            "tests/engine_core/quarantine/test_crash_journal.py",
        ),
    ),
    Mutant(
        name="a worker that computes for long counts as hung like one that is stopped",
        file="engine_core/io/hang_detector.py",
        old="_COMPUTING = 5.0\n",
        new="_COMPUTING = 1.0\n",
        tests=("tests/engine_core/io/test_hang_detector.py",),
    ),
    Mutant(
        name="a long step counts as a hang",
        file="engine_core/io/hang_detector.py",
        old="        return max(self._patience, _SLOWNESS",
        new="        return min(self._patience, _SLOWNESS",
        tests=("tests/engine_core/io/test_hang_detector.py",),
    ),
    Mutant(
        name="a drain refuses before balancers have noticed",
        file="frontend/rpc/drain.py",
        old="            self._refusal = self._after(self._delay, self._state.refuse)\n",
        new="            self._refusal = self._after(0.0, self._state.refuse)\n",
        tests=("tests/frontend/rpc/test_drain.py",),
    ),
    Mutant(
        name="health is green while a frontend drains",
        file="frontend/rpc/drain.py",
        old='            log.info("draining")\n            self._state.drain()\n',
        new='            log.info("draining")\n',
        tests=("tests/frontend/rpc/test_drain.py",),
    ),
    Mutant(
        name="a drain that was taken back refuses later all the same",
        file="frontend/rpc/drain.py",
        old="            if timer is not None:\n                timer.cancel()\n",
        new="            if timer is None:\n                return\n",
        tests=("tests/frontend/rpc/test_drain.py",),
    ),
    Mutant(
        name="a session meets another core in every frontend",
        file="frontend/engine/routing.py",
        old="        return max(cores, key=lambda core: _score(core.address, routing.session_id))\n",
        new="        return max(cores, key=lambda core: _score(str(id(core)), routing.session_id))\n",
        tests=("tests/frontend/engine/test_routing.py",),
    ),
)
