"""A service that records itself: what it wrote, told to another scheduler, gives the same plans."""

import asyncio
import subprocess
import sys
from pathlib import Path

from pagewire import AsyncClient, Client, SamplingParams
from pagewire_client.params import BeamSearch
from tests.e2e import services
from tests.e2e.test_simulated import collect_all, without_weights


def replay(*arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `pagewire replay`."""
    command = [sys.executable, "-m", "pagewire", "replay", *map(str, arguments)]
    run = subprocess.run(command, cwd=services.ROOT, capture_output=True, text=True)
    return run.returncode, run.stdout, run.stderr


async def search(address: str) -> None:
    """A beam search."""
    async with AsyncClient(address) as client:
        params = SamplingParams(temperature=0, max_tokens=30, n=2, beam_search=BeamSearch(3))
        assert len((await client.generate([17, 18, 19] * 9, params)).outputs) == 2


async def abort_one(address: str) -> None:
    """A stream that its client leaves."""
    async with AsyncClient(address) as client:
        params = SamplingParams(max_tokens=500, ignore_eos=True)
        async with client.stream([17] * 40, params) as stream:
            async for _ in stream:
                break


def test_a_recorded_service_replays(tmp_path: Path):
    """Preemption, forks, cut prompts, a beam search, an abort; two frontends."""
    path = tmp_path / "recording"
    limits = {"max_num_batched_tokens": 48, "max_num_seqs": 40, "num_blocks": 40}
    with services.start(
        without_weights(tmp_path),
        device="simulated",
        profile="h200",
        worker_fault=("slow-factor=40",),  # 2 ms per step, so that requests meet
        frontends=2,
        scheduling="ahead",
        record=str(path),
        **limits,
    ) as service:
        with Client(service.address) as client:
            while not services.rank_load(client).preemptions:  # when requests come decides about that
                asyncio.run(collect_all(service.address))
        asyncio.run(search(service.address))
        asyncio.run(abort_one(service.address))
    code, output, error = replay(path)
    assert (code, error) == (0, "")
    words = output.split()
    assert words[0] == "all" and int(words[1]) > 50 and output.endswith("plans are the same\n")

    code, output, error = replay(path, "--num-blocks=400", "--policy=fcfs")
    assert (code, error) == (0, "")
    lines = output.splitlines()
    assert lines[1].startswith("step times: fitted to ") and "what if" in output
    (preemptions,) = (line.split()[1:] for line in lines if line.startswith("preemptions"))
    assert int(preemptions[0]) > 0 and preemptions[2] == "0"
