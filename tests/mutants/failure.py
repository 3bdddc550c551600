"""Bugs in telling quarantined from cleared requests, hung from slow workers, leaving from dead processes."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        name="every request in the fatal step is quarantined",
        within="engine_core:judge",
        old="Suspect(present[key], group, death)",
        new="Suspect(present[key], group, death, STRIKES)",
        tests=("test_blame.py",),
    ),
    Mutant(
        name="a request that runs beside an isolated suspect is blamed with it",
        within="engine_core:judge",
        old="isolated or present.keys()",
        new="present.keys()",
        tests=("test_blame.py",),
    ),
    Mutant(
        name="a suspect that has got further than the last death is punished for both",
        within="engine_core:_strike",
        old="not suspect.strikes or common.first >= common.end",
        new="not suspect.strikes",
        tests=("test_blame.py",),
    ),
    Mutant(
        name="suspects never run alone",
        within="engine_core:_group_size",
        old="max(1, count // _PARTS)",
        new="max(2, count // _PARTS)",
        tests=("test_blame.py",),
    ),
    Mutant(
        name="suspects of one SIGKILL after another always run together",
        within="engine_core:_group_size",
        old="-(-count // 2) if isolated else count",
        new="count",
        tests=("test_blame.py",),
    ),
    Mutant(
        name="other requests begin beside isolated suspects",
        within="engine_core:Quarantine.isolates",
        old="bool(self._present) or bool(self._missing and self.waits)",
        new="bool(self._isolated) or bool(self._missing and self.waits)",
        tests=("test_quarantine.py",),
    ),
    Mutant(
        name="a core that dies in its first step does not know which requests were running",
        within="engine_core:Quarantine.record",
        old="self._journal.write_step(plan)",
        new="",
        tests=("test_quarantine.py", "test_crash_journal.py"),
    ),
    Mutant(
        name="a worker that computes for long counts as hung like one that is stopped",
        within="engine_core/io:",
        old="5.0",
        new="1.0",
        tests=("test_hang_detector.py",),
    ),
    Mutant(
        name="a long step counts as a hang",
        within="engine_core:HangDetector.limit",
        old="max(self._patience, _SLOWNESS * (self._small_step + self._in_flight[0] * per_token))",
        new="min(self._patience, _SLOWNESS * (self._small_step + self._in_flight[0] * per_token))",
        tests=("test_hang_detector.py",),
    ),
    Mutant(
        name="a drain refuses before balancers have noticed",
        within="frontend:Drain.begin",
        old="self._after(self._delay, self._state.refuse)",
        new="self._after(0.0, self._state.refuse)",
        tests=("test_drain.py",),
    ),
    Mutant(
        name="health is green while a frontend drains",
        within="frontend:Drain.begin",
        old=("log.info('draining')\nself._state.drain()"),
        new="log.info('draining')",
        tests=("test_drain.py",),
    ),
    Mutant(
        name="a drain that was taken back refuses later all the same",
        within="frontend:Drain._forget",
        old=("if timer is not None:\n    timer.cancel()"),
        new=("if timer is None:\n    return"),
        tests=("test_drain.py",),
    ),
    Mutant(
        name="a session meets another core in every frontend",
        within="frontend:choose",
        old="_score(core.address, routing.session_id)",
        new="_score(str(id(core)), routing.session_id)",
        tests=("test_routing.py",),
    ),
)
