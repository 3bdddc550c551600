"""Bugs of requests that are submitted again, and of those whose client is gone."""

from tests.mutants.mutant import Mutant

_HANDOVER = "tests/engine_core/frontends/test_handover.py"
_DETACHED = "tests/engine_core/frontends/test_detached.py"

MUTANTS = (
    Mutant(
        name="another content with the id of a request in flight takes it over",
        file="engine_core/frontends/handover.py",
        old=" or request.content != message.content_digest:\n",
        new=":\n",
        tests=(_HANDOVER,),
    ),
    Mutant(
        name="an earlier call that is sent again takes a request back",
        file="engine_core/frontends/handover.py",
        old="        if detached is None and submitted_at(message, arrival) < request.submitted:\n",
        new="        if False:\n",
        tests=(_HANDOVER,),
    ),
    Mutant(
        name="the call that had a request is not told that another one has it",
        file="engine_core/frontends/handover.py",
        old="            self._replies.fail(request.frontend, request.handle, Code.ABORTED, REASON, _TEXT)\n",
        new="            pass\n",
        tests=(_HANDOVER,),
    ),
    Mutant(
        name="a call that takes a request over is sent what it holds once more",
        file="engine_core/frontends/handover.py",
        old="            position, end = len(delivered.get(sequence.index, ())), len(sequence.output)\n",
        new="            position, end = 0, len(sequence.output)\n",
        tests=(_HANDOVER,),
    ),
    Mutant(
        name="a client that holds other tokens than the core is believed",
        file="engine_core/frontends/handover.py",
        old="    if sequence.output[:position] != delivered:\n        return False\n",
        new="",
        tests=(_HANDOVER,),
    ),
    Mutant(
        name="the core sends what it lacks of a sequence that ended at another core",
        file="engine_core/frontends/handover.py",
        old="            request.ended_elsewhere |= ended\n",
        new="",
        tests=(_HANDOVER,),
    ),
    Mutant(
        name="the deadline of the first call ends the last one",
        file="engine_core/frontends/handover.py",
        old="            self._scheduler.set_deadline(request, deadline_of(message, arrival))\n",
        new="            pass\n",
        tests=(_HANDOVER,),
    ),
    Mutant(
        name="log-probabilities behind a gap count as those before it",
        file="engine_core/score_history.py",
        old="        if position != self.first + len(self._tokens):\n            self._restart(position)\n",
        new="",
        tests=("tests/engine_core/test_score_history.py",),
    ),
    Mutant(
        name="log-probabilities that are kept have no bound",
        file="engine_core/score_history.py",
        old="            if self._num_bytes + size > MOST_BYTES:\n",
        new="            if False:\n",
        tests=("tests/engine_core/test_score_history.py",),
    ),
    Mutant(
        name="a request whose client is gone ends at once",
        file="engine_core/frontends/detached.py",
        old="        if not (request.disconnect_grace and request.content):\n",
        new="        if True:\n",
        tests=(_DETACHED,),
    ),
    Mutant(
        name="a request whose client is gone never ends",
        file="engine_core/frontends/detached.py",
        old="        self._next_end = min(self._next_end, until)\n",
        new="",
        tests=(_DETACHED,),
    ),
    Mutant(
        name="a tenant leaves as many requests behind as it likes",
        file="engine_core/frontends/detached.py",
        old="        if len(of_tenant) > MOST_PER_TENANT and not is_refunded:\n",
        new="        if False:\n",
        tests=(_DETACHED,),
    ),
    Mutant(
        name="what has ended without a call is forgotten",
        file="engine_core/frontends/detached.py",
        old="        if detached is None:\n            return None\n",
        new="        if detached is None or not detached.request.num_live:\n            return None\n",
        tests=(_DETACHED,),
    ),
    Mutant(
        name="the output of a request without a call is sent to a socket that does not exist",
        file="engine_core/core.py",
        old="        if frontend != NOWHERE:\n            self._send(frontend, message)\n",
        new="        self._send(frontend, message)\n",
        tests=(_DETACHED,),
    ),
    Mutant(
        name="a frontend says that a request has ended whose client may come back",
        file="frontend/streams/generator.py",
        old="                self._engine.release(entry.ticket, detach=True)\n",
        new="                self._engine.release(entry.ticket)\n",
        tests=("tests/frontend/streams/test_generator.py",),
    ),
    Mutant(
        name="calls of one request that begin together go to different cores",
        file="frontend/engine/questions.py",
        old="session_id=routing.session_id or request_id)",
        new="session_id=routing.session_id)",
        tests=("tests/frontend/engine/test_questions.py",),
    ),
)
