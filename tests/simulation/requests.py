"""Writes the requests of a seed, and how their clients behave."""

import math
from random import Random

from pagewire.internal.v1 import engine_pb2
from pagewire.v1 import generation_pb2
from pagewire_simulated.media import seen
from tests.frontend.fakes import SPECIAL, encode
from tests.simulation.adapters import FATAL, INVOCATIONS, adapted
from tests.simulation.choices import expect_all, expect_sampled
from tests.simulation.grammars import GrammarDraw
from tests.simulation.vocabulary import EOS, VOCAB_SIZE
from tests.simulation.workload import EmbedJob, Job, Workload

LETTERS = encode("abcdefgh")


class RequestWriter:
    """Writes requests, one after another, each a little later than the one before."""

    def __init__(
        self, random: Random, workload: Workload, step: float, tight: bool, *, breaks: bool = True
    ) -> None:
        """tight: memory is short. breaks: some calls break on the client's side alone."""
        # Usually after the start of all processes.
        self.start = self.now = 0.0 if random.random() < 0.2 else 2 * workload.settings.restart
        self._random, self._workload, self._step = random, workload, step
        self._tight, self._breaks = tight, breaks
        self._gap = 0.0 if random.random() < 0.3 else step * log_uniform(random, 0.3, 20.0)
        config = workload.config
        self._max_model_len = min(config.max_model_len, config.num_blocks * config.block_size)
        self._max_n = min(4, config.max_num_seqs, config.max_num_batched_tokens)
        self._grammars = GrammarDraw(workload.seed)
        self._documents = [self._tokens(60) for _ in range(2)]

    def job(self, number: int) -> Job:
        random = self._random
        self.now += self._gap * random.expovariate(1.0)
        prompt = self._prompt()
        request = self._request(number, prompt)
        adapters = self._adapt(request, prompt, number)
        first = next(iter(adapters), b"")
        images = seen(self._show(request, prompt, number))
        adds = images + (adapted(prompt, first, adapters[first]) if first else b"")
        expected = expect_all(request, prompt, self._max_model_len, adds)
        if expected[0].reason.value in ("max_tokens", "context_length") and random.random() < 0.3:
            self._documents.append(prompt + expected[0].token_ids)  # the next turn of a chat
        patience = self._step * log_uniform(random, 1.0, 300.0)
        whims = random.choice([[], [], [], ["timeout"], ["cancel"], ["limit"], ["abort"], ["reading"]])
        if "limit" in whims:
            request.stopping.time_limit.FromNanoseconds(max(1, round(1e9 * patience)))
        return Job(
            number=number,
            at=self.now,
            request=request,
            prompt=prompt,
            expected=expected,
            is_refused=request.sampling.HasField("beam_search") and not self._fits(request, len(prompt)),
            sampled=expect_sampled(request, prompt, self._max_model_len, adds),
            max_model_len=self._max_model_len,
            adapters=adapters,
            seen=images,
            whole=random.random() < 0.1,
            place=random.randrange(self._workload.settings.num_frontends),
            timeout=patience if "timeout" in whims else None,
            cancel_after=patience if "cancel" in whims else None,
            reading=self._step * random.uniform(0, 30) if "reading" in whims else 0.0,
            aborted_after=patience if "abort" in whims else None,
            half_open_after=self._break_after("half-open", number) if self._breaks else None,
            breaks_after=self._break_after("broken", number) if self._breaks else None,
        )

    def embed_job(self, number: int) -> EmbedJob:
        """Embeds a few prompts, with an adapter or without."""
        random = Random(f"embed {self._workload.seed} {number}")
        made = self._workload.adapters
        assert made is not None
        prompts = [
            self._documents[0][: random.randint(1, min(20, self._max_model_len - 1))] for _ in range(3)
        ]
        for prompt in prompts:
            prompt[random.randrange(len(prompt))] = random.choice(INVOCATIONS)[0]
        name = random.choice(["", *made.folders])
        return EmbedJob(
            number=number,
            at=random.uniform(self.start, self.now),
            adapter=name,
            prompts=prompts,
            adapters=made.of_name(name),
            place=random.randrange(self._workload.settings.num_frontends),
            cancel_after=self._step * log_uniform(random, 1.0, 300.0) if random.random() < 0.2 else None,
        )

    def _adapt(
        self, request: generation_pb2.GenerateRequest, prompt: list[int], number: int
    ) -> dict[bytes, tuple[int, ...]]:
        """Gives some requests an adapter, and some prompts an invocation; returns what the name may stand
        for. Drawn apart from everything else."""
        made, random = self._workload.adapters, Random(f"adapter {self._workload.seed} {number}")
        if made is None or random.random() < 0.3:
            return {}
        if random.random() < 0.6:
            invocation = random.choice(INVOCATIONS)
            at = random.randrange(len(prompt))
            prompt[at : at + len(invocation)] = invocation[: len(prompt) - at]
            request.prompt.token_ids.ids[:] = prompt
        changed = [change.name for change in made.changes if change.name and change.folder]
        name = random.choice([*made.folders, *changed])
        if name == FATAL and random.random() < 0.5:
            name = next(iter(made.folders))
        setattr(request, random.choice(["adapter", "model"]), name)
        return made.of_name(name)

    def _show(
        self, request: generation_pb2.GenerateRequest, prompt: list[int], number: int
    ) -> list[engine_pb2.MediaItem]:
        """Puts images into some prompts; returns their items. Drawn apart from everything else."""
        images = self._workload.images
        if images is None or request.output.HasField("prompt_logprobs"):
            return []
        return images.show(
            request.sampling.seed, len(prompt), Random(f"images {self._workload.seed} {number}")
        )

    def _break_after(self, way: str, number: int) -> float | None:
        """Drawn apart from everything else."""
        random = Random(f"{way} {self._workload.seed} {number}")
        return self._step * log_uniform(random, 1.0, 100.0) if random.random() < 0.15 else None

    def _prompt(self) -> list[int]:
        """A part of a document that others begin with, and something of its own."""
        random = self._random
        longest = random.choice([4, 8, 80] if self._tight else [12, 80])
        length = random.randint(1, min(longest, self._max_model_len - 1))
        document = random.choice(self._documents)
        common = document[: random.choice([length, random.randint(0, length), 0])]
        return common + self._tokens(length - len(common))

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(len(SPECIAL), VOCAB_SIZE) for _ in range(count)]

    def _request(self, number: int, prompt: list[int]) -> generation_pb2.GenerateRequest:
        random = self._random
        seed = 1 + number + 1000 * random.randrange(1 << 40)
        request = generation_pb2.GenerateRequest(
            request_id=f"job-{number}",
            prompt={"token_ids": {"ids": prompt}},
            sampling={
                "temperature": random.choice([1.0, 1.0, 0.0]),
                "seed": seed,
                "n": random.choice([1, 1, 1, random.randint(1, self._max_n)]),
            },
            output={
                "token_ids": True,
                "text": random.random() < 0.5,
                "stream_interval": random.choice([1, 1, 2, 5]),
                "timings": True,
            },
            tenant=random.choice(["", "a", "b"]),
            priority=random.choice([0, 0, 0, -2, 5]) if self._workload.config.policy == "fair" else 0,
            cache={"salt": random.choice(["", "", "salt"]), "bypass": random.random() < 0.1},
        )
        if random.random() < 0.9:
            request.stopping.max_tokens = random.choice([12, 30, 60] if self._tight else [1, 3, 12, 30])
        if random.random() < 0.1:
            request.output.mode = generation_pb2.OutputOptions.MODE_FINAL
        self._score(request, len(prompt))
        self._end_early(request)
        self._choose(request)
        self._grammars.constrain(request)
        way = random.choice(["", "", "", "session", "rank"])
        if way == "session":
            request.routing.session_id = random.choice("st")
        elif way == "rank":
            request.routing.data_parallel_rank = random.randrange(self._workload.settings.num_engines)
        return request

    def _choose(self, request: generation_pb2.GenerateRequest) -> None:
        """Some want the best of more sequences, or of beams."""
        random, sampling, stopping = self._random, request.sampling, request.stopping
        most, way = self._max_n, random.choice([""] * 8 + ["best_of", "beams"])
        if way == "best_of" and most > 1:
            sampling.best_of = random.randint(2, most)
            sampling.n = random.randint(1, sampling.best_of)
        elif way == "beams" and not stopping.stop and not request.output.HasField("logprobs"):
            sampling.beam_search.width = random.randint(1, most)
            sampling.n = random.randint(1, sampling.beam_search.width)
            if random.random() < 0.5:
                sampling.beam_search.length_penalty = random.choice([0.0, 0.5, 2.0, -1.0])
            sampling.beam_search.early_stopping = random.random() < 0.3
            stopping.max_tokens = random.choice([1, 3, 8, 20])
            stopping.min_tokens = min(stopping.min_tokens, stopping.max_tokens)

    def _fits(self, request: generation_pb2.GenerateRequest, prompt_len: int) -> bool:
        """Whether all beams find room when they share no more than the full blocks of the prompt."""
        size, width = self._workload.config.block_size, request.sampling.beam_search.width
        most = min(request.stopping.max_tokens, self._max_model_len - prompt_len)
        own = -(-(prompt_len + most - 1) // size) - prompt_len // size
        return prompt_len // size + width * own <= self._workload.config.num_blocks

    def _score(self, request: generation_pb2.GenerateRequest, prompt_len: int) -> None:
        """Some want log-probabilities, of the output, of the prompt or of both."""
        random, output = self._random, request.output
        if random.random() < 0.15:
            output.logprobs.top_n = random.choice([0, 0, 3])
        if random.random() < 0.15:
            output.prompt_logprobs.top_n = random.choice([0, 2])
            output.prompt_logprobs_start = random.randrange(prompt_len)

    def _end_early(self, request: generation_pb2.GenerateRequest) -> None:
        """EOS and stop tokens come only where they are allowed by name."""
        random, stopping = self._random, request.stopping
        way = random.choice(["", "", "tokens", "string"])
        if way == "tokens":
            request.sampling.allowed_token_ids.extend([EOS, *random.sample(range(VOCAB_SIZE), 12)])
            stopping.stop_token_ids.extend(random.sample(list(request.sampling.allowed_token_ids[1:]), 2))
            stopping.ignore_eos = random.random() < 0.2
            stopping.include_stop = random.random() < 0.3
            stopping.min_tokens = random.choice([0, 0, 1, 3])
            if stopping.HasField("max_tokens"):
                stopping.min_tokens = min(stopping.min_tokens, stopping.max_tokens)
        elif way == "string":
            request.sampling.allowed_token_ids.extend(LETTERS)
            stopping.stop.append(random.choice(["a", "bc", "ef", "gg"]))


def log_uniform(random: Random, low: float, high: float) -> float:
    """Every order of magnitude is as likely as the next."""
    return math.exp(random.uniform(math.log(low), math.log(high)))
