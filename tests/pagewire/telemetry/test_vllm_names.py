"""vLLM's names of metrics, as a scraper of vLLM reads them."""

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from engine_core import metrics as engine_core
from frontend import metrics as frontend
from frontend.telemetry.counters import Counters
from pagewire.telemetry.board import Board
from pagewire.telemetry.figures import Metric, Reading
from pagewire.telemetry.vllm_names import VLLM
from pagewire.v1 import generation_pb2


def samples(board: Board) -> dict[tuple[str, ...], float]:
    """The samples of vLLM's series, by name and labels."""
    found = {}
    for family in parse(board.render("")[1].decode()):
        for sample in family.samples:
            if sample.name.startswith("vllm:"):
                labels = dict(sample.labels)
                assert (labels.pop("process"), labels.pop("model_name")) == ("me", "m")
                found[sample.name, *labels.values()] = sample.value
    return found


def test_counters_and_histograms_are_the_same_under_both_names():
    counters = Counters(prompt_tokens=3, generated_tokens=4)
    counters.finishes.update(eos=1, tool_calls=2, max_tokens=3, aborted=4, repetition=5)
    counters.first_token_seconds.observe(0.5)
    counters.inter_token_seconds.observe(0.25, 2)
    board = Board("me")
    board.add_counters(counters)
    assert samples(board) == {}
    board.add_vllm_names(model_name="m")
    found = samples(board)
    assert found["vllm:prompt_tokens_total",] == 3 and found["vllm:generation_tokens_total",] == 4
    success = {labels[0]: value for (name, *labels), value in found.items() if "success_total" in name}
    assert success == {"stop": 3, "length": 3, "abort": 4, "repetition": 5}
    assert found["vllm:time_to_first_token_seconds_sum",] == 0.5
    for name in ("inter_token_latency", "time_per_output_token"):
        assert found[f"vllm:{name}_seconds_count",] == 2 and found[f"vllm:{name}_seconds_sum",] == 0.5


def test_labels_that_vllm_lacks_are_summed_and_others_renamed():
    board = Board("me")
    kinds = Metric("pagewire_core_preemptions_total", "counter", "P.", ("kind",))
    info = Metric("pagewire_core_cache_info", "gauge", "C.", ("block_tokens", "blocks"))
    board.add_readings(None, [Reading(kinds, lambda _: {"recompute": 2, "swap": 3})])
    board.add_readings(None, [Reading(info, lambda _: {("16", "100"): 1.0})])
    board.add_vllm_names(model_name="m")
    text = board.render("")[1].decode()
    assert 'vllm:num_preemptions_total{model_name="m",process="me"} 5.0' in text
    labels = 'block_size="16",model_name="m",num_gpu_blocks="100",process="me"'
    assert f"vllm:cache_config_info{{{labels}}} 1.0" in text


@pytest.mark.parametrize("name", VLLM)
def test_every_row_is_a_metric_of_ours(name: str):
    metrics = {metric.name: metric for metric in (*frontend.METRICS, *engine_core.METRICS)}
    assert all(theirs.endswith("_total") == (metrics[name].kind == "counter") for theirs in VLLM[name].names)
    assert bool(metrics[name].labels) >= bool(VLLM[name].labels)


def test_reasons_are_reasons_of_ours():
    names = generation_pb2.FinishReason.DESCRIPTOR.values_by_name
    reasons = {name.removeprefix("FINISH_REASON_").lower() for name in names}
    assert VLLM["pagewire_frontend_sequences_finished_total"].values.keys() < reasons
