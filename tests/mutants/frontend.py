"""Bugs of the frontend and of the clients: streams, resuming, refusals, who may come in."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        name="a position that was there already is taken",
        file="frontend/stream.py",
        old="        if position != len(sequence.tokens):\n",
        new="        if position > len(sequence.tokens):\n",
        tests=("tests/frontend/test_stream.py",),
    ),
    Mutant(
        name="a gap between positions is not noticed",
        file="frontend/stream.py",
        old="        if position != len(sequence.tokens):\n",
        new="        if position < len(sequence.tokens):\n",
        tests=("tests/frontend/test_stream.py",),
    ),
    Mutant(
        name="the epoch of outputs is not looked at",
        file="frontend/engine_connection.py",
        old="            if message.step_outputs.epoch == self.epoch:\n",
        new="            if message.step_outputs.epoch:\n",
        tests=("tests/frontend/test_engine_client.py", "tests/frontend/test_resume.py"),
    ),
    Mutant(
        name="what was delivered is not sent with a request that is sent again",
        file="frontend/journal.py",
        old="            request.delivered.add(index=index, token_ids=pack_u32(token_ids))\n",
        new="            pass\n",
        tests=("tests/frontend/test_resume.py",),
    ),
    Mutant(
        name="sequences that had ended run again after a resume",
        file="frontend/journal.py",
        old="            request.ended_indexes.append(index)\n",
        new="            pass\n",
        tests=("tests/frontend/test_resume.py",),
    ),
    Mutant(
        name="a deadline begins anew after a resume",
        file="frontend/journal.py",
        old="FromNanoseconds(round(self._left(entry, request.deadline) * 1e9))",
        new="FromNanoseconds(request.deadline.ToNanoseconds())",
        tests=("tests/frontend/test_resume.py",),
    ),
    Mutant(
        name="a time limit begins anew after a resume",
        file="frontend/journal.py",
        old="            limit.FromNanoseconds(round(self._left(entry, limit) * 1e9))\n",
        new="            pass\n",
        tests=("tests/frontend/test_resume.py",),
    ),
    Mutant(
        name="the deadline of a call does not travel to the core",
        file="frontend/generation.py",
        old="            if time_left is not None:\n                message.deadline",
        new="            if time_left is None:\n                message.deadline",
        tests=("tests/frontend/test_generation.py",),
    ),
    Mutant(
        name="a client that leaves does not end its request",
        file="frontend/generation.py",
        old="            try:\n                yield stream\n            finally:\n"
        "                self._engine.release(entry.ticket)\n",
        new="            yield stream\n",
        tests=("tests/frontend/test_generation.py",),
    ),
    Mutant(
        name="a stop string is lost where a stream is continued",
        file="frontend/sequence.py",
        old="        ended = self._accept_tokens(token_ids, reason, matched)\n"
        "        if len(self.tokens) < len(token_ids):\n",
        new="        matcher, self._matcher = self._matcher, None\n"
        "        ended = self._accept_tokens(token_ids, reason, matched)\n"
        "        self._matcher = matcher\n"
        "        if len(self.tokens) < len(token_ids):\n",
        tests=("tests/frontend/test_continuation.py",),
    ),
    Mutant(
        name="half a code point is forgotten where a stream is continued",
        file="frontend/sequence.py",
        old="            self._take_text()\n            self._num_sent = len(self.tokens)\n",
        new="            self._take_text()\n            if self._detokenizer is not None:\n"
        "                self._detokenizer.flush()\n            self._num_sent = len(self.tokens)\n",
        tests=("tests/frontend/test_continuation.py",),
    ),
    Mutant(
        name="what may become a stop string is shown",
        file="frontend/stop_strings.py",
        old="        border = len(text) - max(self._states)\n",
        new="        border = len(text)\n",
        tests=("tests/frontend/test_stop_strings.py",),
    ),
    Mutant(
        name="text splits a code point",
        file="frontend/detokenizer.py",
        old='        text, used = codecs.utf_8_decode(data, "replace", False)\n',
        new='        text, used = codecs.utf_8_decode(data, "replace", True)\n',
        tests=("tests/frontend/test_detokenizer.py",),
    ),
    Mutant(
        name="a parameter that is not a number passes",
        file="frontend/rules.py",
        old="        if (low < value if above else low <= value) and value <= high:\n",
        new="        if not (value <= low if above else value < low) and not value > high:\n",
        tests=("tests/frontend/test_validation.py",),
    ),
    Mutant(
        name="a refusal does not say when to come back",
        file="frontend/errors.py",
        old="    if error.retry_after is not None:\n        retry = ",
        new="    if error.retry_after == 0:\n        retry = ",
        tests=("tests/frontend/test_errors.py",),
    ),
    Mutant(
        name="gRPC's own retries are not told when to come back",
        file="frontend/errors.py",
        old="    if error.retry_after is None:\n        return status\n",
        new="    return status\n",
        tests=("tests/frontend/test_errors.py",),
    ),
    Mutant(
        name="an unexpected error reaches the client as it is",
        file="frontend/servicers/guard.py",
        old="            await context.abort_with_status(to_grpc(InternalError()))\n",
        new="            raise\n",
        tests=("tests/frontend/test_generation.py",),
    ),
    Mutant(
        name="tokens are compared with ==",
        file="frontend/auth/tokens.py",
        old="        if not hmac.compare_digest(entry.digest, digest) or entry is self._nobody:\n",
        new="        if entry.digest != digest or entry is self._nobody:\n",
        tests=("tests/frontend/auth/test_tokens.py",),
    ),
    Mutant(
        name="the beginning of a token's hash suffices",
        file="frontend/auth/tokens.py",
        old="        if not hmac.compare_digest(entry.digest, digest) or entry is self._nobody:\n",
        new="        if entry is self._nobody:\n",
        tests=("tests/frontend/auth/test_tokens.py",),
    ),
    Mutant(
        name="a token never expires",
        file="frontend/auth/tokens.py",
        old="        if entry.expires is not None and now >= entry.expires:\n",
        new="        if entry.expires is None and now < 0:\n",
        tests=("tests/frontend/auth/test_tokens.py",),
    ),
    Mutant(
        name="a method that nobody listed is open to everybody",
        file="frontend/auth/gate.py",
        old="    return Access.KNOWN\n",
        new="    return Access.EVERYBODY\n",
        tests=("tests/frontend/auth/test_gate.py",),
    ),
    Mutant(
        name="every token is an admin's",
        file="frontend/auth/gate.py",
        old="            if access is Access.ADMINS and not caller.is_admin:\n",
        new="            if access is Access.ADMINS and not caller:\n",
        tests=("tests/frontend/auth/test_gate.py",),
    ),
    Mutant(
        name="a caller may act as any tenant",
        file="frontend/generation.py",
        old="        tenant = caller.act_as(request.tenant)\n",
        new="        tenant = request.tenant\n",
        tests=("tests/frontend/auth/test_service.py::test_reasons",),
    ),
    Mutant(
        name="the client does not say what it holds when it continues",
        file="pagewire/client/recovery.py",
        old="sequences.add(index=output.index, token_ids=output.token_ids)\n",
        new="sequences.add(index=output.index)\n",
        tests=("tests/pagewire/test_recovery.py",),
    ),
    Mutant(
        name="the client continues with a seed of its own",
        file="pagewire/client/recovery.py",
        old="        request.sampling.seed = self.generation.seed\n",
        new="",
        tests=("tests/pagewire/test_recovery.py",),
    ),
    Mutant(
        name="the client tries for ever what breaks every connection",
        file="pagewire/client/recovery.py",
        old="            self._num_breaks += 1\n",
        new="            pass\n",
        tests=("tests/pagewire/test_recovery.py",),
    ),
)
