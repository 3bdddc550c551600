"""The line of --verbose."""

from pagewire.cli.generate import timings_line
from pagewire_client.results import Generation, Timings, Usage, Waits

USAGE = Usage(prompt_tokens=100, cached_prompt_tokens=64, completion_tokens=11)


def test_phases_and_causes():
    timings = Timings(0.001, 0.5, 0.02, 0.2, 0.721, waits=Waits(queue=0.1, rows=0.4))
    line = timings_line(Generation(request_id="one", usage=USAGE, timings=timings))
    assert line == (
        "[request one, 100 tokens of prompt (64 cached), 11 of output; preprocess 1.0 ms, queue 0.50 s, "
        "prefill 20.0 ms, decode 0.20 s, total 0.72 s; 20.0 ms per token; waited for rows 0.40 s]"
    )


def test_an_answer_that_was_broken_off():
    assert "broken off" in timings_line(Generation(request_id="one", usage=USAGE))
