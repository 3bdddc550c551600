"""Two cores in one process and one thread, of which the second one reads blocks of the first."""

from engine_core.io.inbox import Received
from engine_core.kv_cache.host_swap import UNMEASURED, SwapCosts
from engine_core.kv_transfer.pulls import Outcome, TransferOptions
from pagewire.internal.v1.engine_pb2 import EngineMessage, FrontendMessage
from tests.engine_core.fakes import add_request, expected_output
from tests.engine_core.house import House

HOLDER, DATA = "ipc:///holder", "127.0.0.1:1"
LINK = b"the reader"
BLOCK_BYTES = 1000


class Link:
    """The connection between both. Implements engine_core.kv_transfer.pulls.Peers."""

    def __init__(self) -> None:
        self.holder: House | None = None  # None: it is gone
        self.is_cut = False  # it is there, and nothing arrives
        self.closed = 0
        self._read = 0

    def send(self, address: str, message: FrontendMessage) -> bool:
        if address != HOLDER:
            return False
        if self.holder is not None and not self.is_cut:
            self.holder.inbox.put(Received(LINK, message, self.holder.now))
        return True

    def take(self) -> list[tuple[str, EngineMessage]]:
        sent = self.holder.sent if self.holder is not None and not self.is_cut else []
        new = [(HOLDER, message) for frontend, message in sent[self._read :] if frontend == LINK]
        self._read = max(len(sent), self._read)
        return new

    def close(self, address: str) -> None:
        self.closed += 1


class TwoCores:
    """`holder` has blocks, `reader` pulls them. Both have one clock, and one secret of names."""

    def __init__(self, *, blocks: int = 64, costs: SwapCosts = UNMEASURED, ahead: bool = False) -> None:
        self.link = Link()
        options = TransferOptions(address=DATA, block_bytes=BLOCK_BYTES, costs=costs)
        self.holder = House(transfer=options, drain_timeout=10.0, ahead=ahead)
        pulling = TransferOptions(self.link, DATA, BLOCK_BYTES, costs)
        self.reader = House(blocks=blocks, transfer=pulling, ahead=ahead)
        self.link.holder = self.holder
        for house in (self.holder, self.reader):
            house.scheduler.prefix_cache.secret = b"s" * 32
        self.reader.worker.others[DATA] = self.holder.worker
        self.message = add_request(1, 21, max_tokens=3)

    def warm(self) -> None:
        """The holder computes the prompt, of which 5 blocks are full."""
        self.holder.put(self.message)
        self.holder.run()

    def ask(self) -> None:
        """The same request comes to the reader."""
        self.message.holder = HOLDER
        self.reader.put(self.message)

    def step(self, steps: int = 1, seconds: float = 0.0) -> None:
        """Steps both cores in turns; the clock advances by so much with each."""
        for _ in range(steps):
            for house in (self.reader, self.holder):
                house.now += seconds
                if house.scheduler.requests or house.core.transfer.is_active or house.inbox:
                    house.step()

    def finish(self, seconds: float = 0.0) -> None:
        """Runs the reader's requests to their ends, which must be right, and all leases."""
        for _ in range(100_000):
            if not (self.reader.scheduler.requests or self.reader.inbox):
                break
            self.step(seconds=seconds)
        output, reason = expected_output(self.message, 0)
        ledger = self.reader.outputs_of(b"a")
        assert ledger.tokens[1, 0] == output and ledger.ends[1, 0] is reason
        self.reader.step(0 if not self.reader.core.transfer.is_active else 1)
        assert not len(self.reader.core.transfer.pulls)
        assert self.reader.scheduler.pool.num_free == self.reader.scheduler.pool.num_blocks

    def outcomes(self) -> dict[str, int]:
        """What became of the pulls."""
        return dict(self.reader.core.counters.kv_pulls)

    def assert_pulled(self, num_blocks: int) -> None:
        """The pull has ended well, and has brought so many blocks."""
        assert self.outcomes() == {Outcome.PULLED.value: 1}
        assert self.reader.core.counters.kv_pulled_blocks == num_blocks

    @property
    def num_prefilled(self) -> int:
        """Tokens of prompts that the reader has computed."""
        counted = self.reader.core.counters.planned_tokens
        return counted["prefill"] + 1  # the last one of the prompt counts as decoding
