"""Configurations that cannot work are refused by name, before anything is started."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import zmq

from engine_core.errors import Refused
from engine_core.io.remote_ranks import RemoteRanks
from engine_core.kv_transfer.peers import PeerSockets
from engine_core.queue.base import FirstComeQueue
from engine_core.queue.fair import FairQueue
from engine_core.startup import (
    check_config,
    initialize_message,
    make_identity,
    make_scheduler,
    remote_ranks,
    transfer_options,
    worker_arguments,
)
from pagewire import __version__
from pagewire.config import EngineConfig
from pagewire.errors import StartupError
from pagewire.internal.v1.engine_pb2 import (
    CORE_ROLE_PREFILL,
    MEDIA_KIND_IMAGE,
    POOLING_TYPE_LAST,
    ModelFacts,
    Pooling,
)
from pagewire.internal.v1.worker_pb2 import Ready
from tests.engine_core.fakes import FakeWorker, Ledger, add_request, make, run


def ready(num_blocks: int = 64, max_model_len: int = 512) -> Ready:
    model = ModelFacts(vocab_size=100, max_model_len=max_model_len, eos_token_ids=[2, 3])
    return Ready(model=model, num_blocks=num_blocks, device="cpu")


def test_the_default_is_valid() -> None:
    check_config(EngineConfig())


@pytest.mark.parametrize(
    ("change", "flag"),
    [
        ({"tensor_parallel_size": 0}, "--tensor-parallel-size"),
        ({"pipeline_parallel_size": 0}, "--pipeline-parallel-size"),
        ({"swap_space": -1.0}, "--swap-space"),
        ({"swap_space": float("nan")}, "--swap-space"),
        ({"block_size": 0}, "--block-size"),
        ({"max_num_batched_tokens": 0}, "--max-num-batched-tokens"),
        ({"max_num_seqs": 0}, "--max-num-seqs"),
        ({"max_num_seqs": 2**32}, "--max-num-seqs"),
        ({"max_model_len": -1}, "--max-model-len"),
        ({"num_blocks": -1}, "--num-blocks"),
        ({"dummy_seed": -1}, "--dummy-seed"),
        ({"hang_timeout": 1.0}, "--hang-timeout"),
        ({"tenant_weight": ("a=1", "b=0")}, "--tenant-weight b"),
        ({"prompt_token_weight": -1.0}, "--prompt-token-weight"),
        ({"output_token_weight": 0.0}, "--output-token-weight"),
        ({"gpu_memory_utilization": 1.5}, "--gpu-memory-utilization"),
        ({"gpu_memory_utilization": float("nan")}, "--gpu-memory-utilization"),
        ({"role": "prefill"}, "--role prefill without --prefix-cache-key"),
        ({"role": "decode", "prefix_cache_key": "f", "record": "f"}, "--role decode with --record"),
        ({"role": "decode", "prefix_cache_key": "f", "device": "cuda"}, "with --device cuda"),
        ({"role": "decode", "prefix_cache_key": "f", "tensor_parallel_size": 2}, "--tensor-parallel-size"),
        (
            {"role": "decode", "prefix_cache_key": "f", "pipeline_parallel_size": 2},
            "--pipeline-parallel-size",
        ),
        ({"role": "decode", "no_prefix_cache": True}, "--role decode with --no-prefix-cache"),
    ],
)
def test_refused_by_name(change: dict[str, Any], flag: str) -> None:
    with pytest.raises(StartupError) as error:
        check_config(dataclasses.replace(EngineConfig(), **change))
    assert flag in error.value.why and error.value.todo


def test_the_worker_is_told_the_limits(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({}))
    config = EngineConfig(model=str(tmp_path), max_num_seqs=300, max_num_batched_tokens=100, device="cuda")
    message = initialize_message(config)
    assert message.model_path == str(tmp_path.resolve())
    assert message.max_num_seqs == 100, "every running sequence needs a token of every step's budget"
    assert message.device == "cuda", "whether there is one is the worker's to say"
    assert message.tensor_parallel_size == 1


def test_the_worker_is_told_of_another_tokenizer_and_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    config = EngineConfig(model=str(tmp_path), tokenizer=str(tmp_path), hf_overrides='{"a": 1}')
    message = initialize_message(config)
    assert (message.tokenizer_path, message.config_overrides) == (str(tmp_path.resolve()), '{"a": 1}')
    assert initialize_message(EngineConfig(model=str(tmp_path))).tokenizer_path == ""


def test_faults_are_passed_to_the_worker() -> None:
    faults = ("die-at-step=3", "slow-factor=1.5")
    config = EngineConfig(worker_fault=faults, log_level="error")
    faults = ["--fault-die-at-step=3", "--fault-slow-factor=1.5"]
    assert worker_arguments(config) == [["--log-level=error", "--log-format=text", *faults]]


@pytest.mark.parametrize(
    "change",
    [
        {"worker_fault": ("sing=1",)},
        {"worker_fault": ("die-at-step=1",), "device": "cuda"},
        {"worker_fault": ("die-at-step=1",), "external_workers": True},
    ],
)
def test_an_impossible_fault_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(StartupError, match="--worker-fault"):
        worker_arguments(EngineConfig(**change))


def test_each_rank_gets_its_part_of_the_cores() -> None:
    def cores(**change: Any) -> list[list[str]]:
        ranks = worker_arguments(EngineConfig(**change))
        return [[each for each in rank if each.startswith("--cores")] for rank in ranks]

    assert cores() == [[]] and cores(tensor_parallel_size=2) == [[], []]
    assert cores(worker_cores="0,8,1,9") == [["--cores=0,8,1,9"]]
    split = cores(worker_cores="2-7", tensor_parallel_size=2)
    assert split == [["--cores=2-4"], ["--cores=5-7"]]


NODES: dict[str, Any] = {
    "tensor_parallel_size": 4,
    "nnodes": 2,
    "master_addr": "127.0.0.1",
    "master_port": 7,
    "curve_key": "k",
}


def test_ranks_on_several_hosts(tmp_path: Path) -> None:
    """This one starts its part, on its cores, and awaits the others."""
    (tmp_path / "config.json").write_text("{}")
    config = EngineConfig(model=str(tmp_path), worker_cores="0-3", parent_starts_worker=True, **NODES)
    check_config(config)
    first, second = worker_arguments(config)
    assert {"--master-addr=127.0.0.1", "--group-size=4"} < set(first) & set(second)
    assert ("--cores=0-1" in first, "--cores=2-3" in second) == (True, True)
    assert "--outlives-core" not in first
    assert remote_ranks(config) == RemoteRanks("tcp://127.0.0.1:7", 2, 2)
    assert remote_ranks(EngineConfig()) is None
    assert initialize_message(config).num_hosts == 2


@pytest.mark.parametrize(
    ("change", "flag"),
    [
        ({"external_workers": True}, "--external-workers"),
        ({"data_parallel_size": 2}, "--data-parallel-size"),
        ({"device": "cuda"}, "--device cuda"),
        ({"nnodes": 3}, "--nnodes 3"),
    ],
)
def test_what_ranks_on_several_hosts_do_not_go_with(change: dict[str, Any], flag: str) -> None:
    with pytest.raises(StartupError) as error:
        check_config(EngineConfig(**NODES | change))
    assert flag in error.value.why and error.value.todo


def test_nixl_is_installed_and_has_something_to_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine_core.startup.find_spec", lambda name: None)
    with pytest.raises(StartupError, match="not installed") as refused:
        check_config(EngineConfig(kv_transfer="nixl", prefix_cache_key="f"))
    assert "pagewire[nixl]" in refused.value.todo
    check_config(EngineConfig(kv_transfer="nixl", prefix_cache_key="f", external_workers=True))
    monkeypatch.setattr("engine_core.startup.find_spec", lambda name: name == "nixl_cu12" or None)
    with pytest.raises(StartupError, match="without --prefix-cache-key"):
        check_config(EngineConfig(kv_transfer="nixl"))
    check_config(EngineConfig(kv_transfer="nixl", prefix_cache_key="f"))


def test_a_role_needs_a_worker_that_copies_blocks() -> None:
    config, facts = EngineConfig(role="prefill"), ready()
    with zmq.Context() as context:
        peers = PeerSockets(context)
        with pytest.raises(StartupError) as refused:
            transfer_options(config, facts, peers)
        assert "--role prefill: the worker of" in refused.value.why
        facts.transfer_address = "127.0.0.1:1"
        assert transfer_options(config, facts, peers).address == facts.transfer_address
    assert make_identity(config, facts, 1).welcome.role == CORE_ROLE_PREFILL


def test_the_context_is_capped_by_the_pool() -> None:
    identity = make_identity(EngineConfig(block_size=16), ready(num_blocks=10), 5)
    assert identity.limits.max_model_len == 160 == identity.welcome.model.max_model_len
    identity = make_identity(EngineConfig(block_size=16), ready(num_blocks=99), 5)
    assert identity.limits.max_model_len == 512


@pytest.mark.parametrize(
    ("flags", "largest", "tokens", "cache", "budget"),
    [
        ({}, 0, 0, 2048, 2048),
        ({}, 4096, 1, 4096, 1024),
        ({"max_num_batched_tokens": 512}, 576, 10, 576, 25),
        ({"max_num_batched_tokens": 512}, 576, 1000, 576, 1),
        ({"encoder_cache_tokens": 100, "max_num_encoder_tokens": 9}, 576, 10, 100, 9),
    ],
)
def test_the_encoder_has_room_for_a_step_or_the_largest_image(
    flags: dict[str, Any], largest: int, tokens: int, cache: int, budget: int
) -> None:
    config, facts = EngineConfig(**flags), ready()
    facts.max_item_vectors, facts.tokens_per_vector = largest, tokens
    facts.model.media_kinds.append(MEDIA_KIND_IMAGE)
    encoder, limits = make_scheduler(config, facts).encoder, make_identity(config, facts, 1).limits
    assert (encoder.capacity, encoder.budget) == (cache, budget)
    assert (limits.max_item_vectors, limits.media_kinds) == (cache, {MEDIA_KIND_IMAGE})
    assert limits.max_whole_item is None
    facts.model.whole_media = True
    whole = make_identity(config, facts, 1).limits.max_whole_item
    assert whole == config.max_num_batched_tokens - config.max_num_seqs + 1


@pytest.mark.parametrize("facts", [ready(num_blocks=0), ready(max_model_len=1)])
def test_no_room_for_anything(facts: Ready) -> None:
    with pytest.raises(StartupError, match="no room"):
        make_identity(EngineConfig(), facts, 5)


def test_frontends_are_told_what_was_found() -> None:
    config = EngineConfig(max_num_seqs=7, max_num_batched_tokens=64)
    identity = make_identity(config, ready(), 1_700_000_000_123_456_789)
    welcome = identity.welcome
    assert welcome.epoch == identity.epoch == 1_700_000_000_123_456_789
    assert welcome.start_time.ToNanoseconds() == welcome.epoch
    assert welcome.engine_version == __version__ and len(welcome.instance_id) == 32
    assert (welcome.num_blocks, welcome.block_size, welcome.max_num_seqs) == (64, 16, 7)
    assert welcome.device == "cpu" and welcome.parallelism.tensor == 1
    assert identity.limits.eos_token_ids == {2, 3}
    scheduler = make_scheduler(config, ready())
    assert (scheduler.num_rows, scheduler.pool.num_blocks) == (7, 64)


def test_the_prefix_cache_can_be_left_out() -> None:
    message = add_request(1, prompt=40)
    for config, cached in ((EngineConfig(), 2), (EngineConfig(no_prefix_cache=True), 0)):
        scheduler = make_scheduler(config, ready())
        scheduler.add(make(message))
        scheduler.schedule(0.0)
        assert scheduler.pool.num_cached == cached


def test_prompts_share_nothing_where_blocks_depend_on_their_length() -> None:
    """Dynamic rope scaling: the same tokens have other keys in a longer prompt."""
    facts = ready()
    facts.depends_on_prompt_len = True
    scheduler = make_scheduler(EngineConfig(), facts)
    scheduler.add(make(add_request(1, prompt=40)))
    scheduler.schedule(0.0)
    assert scheduler.pool.num_cached == 0


def test_whole_prompts_are_neither_cached_nor_swapped() -> None:
    facts = ready()
    facts.model.whole_prompts, facts.num_host_blocks = True, 9
    scheduler = make_scheduler(EngineConfig(max_num_batched_tokens=50), facts)
    for handle in (1, 2):
        scheduler.add(make(add_request(handle, prompt=40, pooling=Pooling(type=POOLING_TYPE_LAST))))
        assert scheduler.schedule(0.0).counts == [40]
    assert scheduler.pool.num_cached == 0 and scheduler.swap.num_blocks == 0
    limits = make_identity(EngineConfig(), facts, 5).limits
    with pytest.raises(Refused, match="is an encoder") as refused:
        make(add_request(3), limits)
    assert refused.value.field == "model"


def test_prompts_share_nothing_without_checkpoints_of_states(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """A state holds all tokens of its row: it cannot begin behind a cached prefix alone. The log says so."""
    (tmp_path / "config.json").write_text("{}")
    for flags, asked in (({}, 16), ({"state_checkpoints": 3}, 3), ({"no_prefix_cache": True}, 0)):
        message = initialize_message(EngineConfig(model=str(tmp_path), **flags))
        assert message.state_checkpoints == asked
    facts = ready()
    facts.has_states = True
    with caplog.at_level("INFO"):
        scheduler = make_scheduler(EngineConfig(), facts)
    scheduler.add(make(add_request(1, prompt=40)))
    scheduler.schedule(0.0)
    assert scheduler.pool.num_cached == 0
    assert "--state-checkpoints is 0" in caplog.text
    facts.num_state_checkpoints = 2
    scheduler = make_scheduler(EngineConfig(), facts)
    scheduler.add(make(add_request(1, prompt=40)))
    assert scheduler.schedule(0.0).save_positions == [32]


def test_rows_have_room_for_drafts_where_the_worker_makes_some(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({}))
    for flag, room in (("", 0), ("lookup:tokens=3", 3)):
        config, facts = EngineConfig(model=str(tmp_path), speculate=flag), ready()
        command = initialize_message(config)
        assert command.speculation.flag == flag and command.HasField("speculation") == bool(flag)
        facts.draft_tokens, facts.draft_batch = command.speculation.tokens, 8
        scheduler = make_scheduler(config, facts)
        worker = FakeWorker(scheduler.pool.num_blocks, config.block_size)
        worker.num_drafts = 99
        scheduler.add(make(add_request(1, 5, max_tokens=30, ignore_eos=True)))
        run(scheduler, worker, Ledger(), steps=2)
        assert worker.plans[1].num_extra_samples == room


@pytest.mark.parametrize(("batch", "counts"), [(8, [4, 4]), (16, [8, 8])])
def test_rows_share_the_room_for_drafts_that_the_worker_has(batch: int, counts: list[int]) -> None:
    config, facts = EngineConfig(speculate="lookup"), ready()
    facts.draft_tokens, facts.draft_batch = 7, batch
    scheduler = make_scheduler(config, facts)
    worker = FakeWorker(scheduler.pool.num_blocks, config.block_size)
    worker.num_drafts = 99
    for handle in (1, 2):
        scheduler.add(make(add_request(handle, 5, max_tokens=30, ignore_eos=True)))
    run(scheduler, worker, Ledger(), steps=2)
    assert worker.plans[1].sample_counts == counts


@pytest.mark.parametrize("flag", ["guess", "lookup:tokens=0"])
def test_a_wrong_way_to_draft_names_the_flag(flag: str) -> None:
    with pytest.raises(StartupError, match="--speculate"):
        initialize_message(EngineConfig(model="none/here", speculate=flag))


def test_a_draft_model_is_looked_for_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    config = EngineConfig(model=str(tmp_path), speculate=f"draft:{tmp_path}")
    assert initialize_message(config).speculation.model_path == str(tmp_path.resolve())
    with pytest.raises(StartupError, match="none/here is not a folder"):
        initialize_message(dataclasses.replace(config, speculate="draft:none/here"))


def test_the_policy_is_fair_with_the_weights_that_were_given() -> None:
    config = EngineConfig(tenant_weight=("a=3", "a=b=0.5"), prompt_token_weight=2.0, output_token_weight=8.0)
    queue = make_scheduler(config, ready()).waiting
    assert isinstance(queue, FairQueue)
    counters = queue.tenants
    costs = {
        name: (tenant.prompt_cost, tenant.output_cost)
        for name in ("a", "a=b", "b")
        for tenant in [counters.find(name)]
    }
    assert costs == {"a": (2 / 3, 8 / 3), "a=b": (4, 16), "b": (2, 8)}
    assert make_identity(config, ready(), 1).welcome.max_priority == 1000


def test_without_classes_no_priority_is_taken() -> None:
    config = EngineConfig(policy="fcfs")
    assert isinstance(make_scheduler(config, ready()).waiting, FirstComeQueue)
    identity = make_identity(config, ready(), 1)
    assert identity.welcome.max_priority == identity.limits.max_priority == 0


@pytest.mark.parametrize(
    ("change", "expected"), [({}, 0), ({"lora_folder": "f"}, 8), ({"lora": ("a=f",), "max_loras": 2}, 2)]
)
def test_adapters_of_a_step_are_bounded_where_there_are_any(
    change: dict[str, Any], expected: int, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    config = dataclasses.replace(EngineConfig(model=str(tmp_path)), **change)
    assert initialize_message(config).max_loras == expected
    found = ready()
    found.model.max_adapters_per_step = expected
    assert make_scheduler(config, found).planner.adapter_slots.num_slots == expected
