"""Bugs of the engine core: blocks, requests, positions, refusals, the step loop."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        name="a block leaks when a sequence ends",
        within="engine_core:BlockTables.close",
        old="self.pool.free(sequence.blocks)",
        new="self.pool.free(sequence.blocks[1:])",
        tests=("test_scheduler.py",),
    ),
    Mutant(
        name="a reference is not taken back when a block is copied",
        within="engine_core:BlockPool.replace_shared",
        old="self._references[block] -= 1",
        new="",
        tests=("test_block_pool.py",),
    ),
    Mutant(
        name="a block that is handed out again is still known for what it was",
        within="engine_core:BlockPool._evict",
        old=("block, _ = self._cached.popitem(last=False)\nself._forget(block)"),
        new="block, _ = self._cached.popitem(last=False)",
        tests=("test_block_pool.py",),
    ),
    Mutant(
        name="a worker is not told that a block is written to again",
        within="engine_core:ContentChanges.forgotten",
        old="self._forgotten[place] = None",
        new="pass",
        tests=("test_kept_cache.py",),
    ),
    Mutant(
        name="a worker is not told that a state is forgotten",
        within="engine_core:StateCheckpoints.forget",
        old="self.changes.forgotten(slot)",
        new="pass",
        tests=("test_kept_cache.py",),
    ),
    Mutant(
        name="tenants share what is cached",
        within="engine_core:PrefixCache._root",
        old="(request.tenant, request.cache_salt)",
        new="(request.cache_salt,)",
        tests=("kv_cache/test_prefix_cache.py",),
    ),
    Mutant(
        name="tenant and salt run into one another",
        within="engine_core:PrefixCache._root",
        old="lengths + b''.join(names)",
        new="b''.join(names)",
        tests=("kv_cache/test_prefix_cache.py",),
    ),
    Mutant(
        name="hashes of blocks have no secret",
        within="engine_core:PrefixCache.__init__",
        old="self._secret = token_bytes(32)",
        new="self._secret = b'pagewire'",
        tests=("kv_cache/test_prefix_cache.py",),
    ),
    Mutant(
        name="a state is found in the plan that saves it",
        within="engine_core:StateCheckpoints._save",
        old="self._planned[content]",
        new="self._slots[content]",
        tests=("test_state_checkpoints.py",),
    ),
    Mutant(
        name="a position is repeated",
        within="engine_core:Outputs.add_tokens",
        old="[len(sequence.output) for sequence in sequences]",
        new="[max(len(sequence.output) - 1, 0) for sequence in sequences]",
        tests=("test_core.py",),
    ),
    Mutant(
        name="an abort does not reach what waits",
        within="engine_core:FrontendMessages._abort",
        old="if request:\n    self._scheduler.abort(...)",
        new="if request and request.num_running:\n    self._scheduler.abort(...)",
        tests=("test_core.py",),
    ),
    Mutant(
        name="a frontend that has forgotten its requests is still served",
        within="engine_core:FrontendMessages._answer_hello",
        old=(
            "for request in self._scheduler.requests.of_frontend(frontend):\n"
            "    self.detached.detach(request)"
        ),
        new="",
        tests=("test_core.py",),
    ),
    Mutant(
        name="a bug in one request ends the step loop",
        within="engine_core:FrontendMessages.handle",
        old="Exception",
        new="KeyError",
        tests=("test_core.py",),
    ),
    Mutant(
        name="the outputs of two frontends are mixed up",
        within="engine_core:_by_frontend",
        old="parts[sequence.request.frontend]",
        new="next(iter(parts.values()))",
        tests=("test_outputs.py",),
    ),
    Mutant(
        name="no request ends when its deadline passes",
        within="engine_core:_first",
        old="(request.time_limit_at, request.owner.abort_at)",
        new="(request.time_limit_at,)",
        tests=("test_timeouts.py", "test_core.py"),
    ),
    Mutant(
        name="a time limit fails a request instead of finishing it",
        within="engine_core:Timeouts.due",
        old="when == request.time_limit_at",
        new="False",
        tests=("test_timeouts.py",),
    ),
    Mutant(
        name="the answer to another plan is taken",
        within="engine_core:decode_result",
        old="result.step != plan.step or len(result.token_ids) != num_tokens",
        new="len(result.token_ids) > num_tokens",
        tests=("test_result.py",),
    ),
    Mutant(
        name="the core believes a bias that is not a number",
        within="engine_core:_check_sampling",
        old="not all(map(isfinite, sampling.logit_bias.values()))",
        new="False",
        tests=("test_validation.py",),
    ),
    Mutant(
        name="the core does not look whether a stop token exists",
        within="engine_core:_check_stopping",
        old="_check_few_tokens('stopping.stop_token_ids', stopping.stop_token_ids, limits)",
        new="",
        tests=("test_validation.py",),
    ),
    Mutant(
        name="the queue has no end",
        within="engine_core:Intake._admit",
        old="self._overload.check_queue(message, now)",
        new="",
        tests=("intake/test_overload.py",),
    ),
    Mutant(
        name="a tenant may have as many requests as it likes",
        within="engine_core:Quotas.check",
        old="in_flight + 1 > terms.max_requests * stretch",
        new="in_flight > terms.max_requests * stretch",
        tests=("test_quotas.py",),
    ),
    Mutant(
        name="a request of the journal is refused by a full queue",
        within="engine_core:stretch",
        old=("if message.again:\n    return inf"),
        new="",
        tests=("intake/test_overload.py",),
    ),
    Mutant(
        name="a frontend that does not read is kept for ever",
        within="engine_core:FrontendSockets._keep",
        old="backlog.bytes > MAX_BACKLOG_BYTES",
        new="backlog.bytes > 1000 * MAX_BACKLOG_BYTES",
        tests=("test_frontend_sockets.py",),
    ),
    Mutant(
        name="a pickle on a socket is opened",
        within="engine_core:FrontendSockets._parse",
        old=("if len(frames) != 1:\n    return None"),
        new=(
            "if frames[0][1:2] == b'\\x80':\n"
            "    __import__('pickle').loads(frames[0][1:])\n"
            "if len(frames) != 1:\n"
            "    return None"
        ),
        tests=("test_frontend_sockets.py", "tests/test_imports.py"),
    ),
    Mutant(
        name="what comes as a continuation is not charged",
        within="engine_core:num_tokens_of",
        old="len(message.prompt_token_ids) + delivered",
        new="len(message.prompt_token_ids)",
        tests=("test_quotas.py",),
    ),
    Mutant(
        name="a flood of aborts makes the core forget those of all tenants",
        within="engine_core:_tenant_of",
        old="tenant if slash else ''",
        new="''",
        tests=("test_recent_aborts.py",),
    ),
    Mutant(
        name="a pause by preemption is not told",
        within="engine_core:SequenceStates.preempt",
        old="self.wait_causes.paused(victim.request)",
        new="pass",
        tests=("test_wait_causes.py",),
    ),
)
