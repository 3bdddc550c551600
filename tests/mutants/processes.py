"""Bugs of the supervisor, the sockets, the worker and its kernels."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        name="a newcomer may take a peer's place on a ROUTER",
        file="pagewire/transport.py",
        old="zmq.ROUTER_HANDOVER, 0)",
        new="zmq.ROUTER_HANDOVER, 1)",
        tests=("tests/pagewire/test_transport.py",),
    ),
    Mutant(
        name="a ROUTER drops what it cannot send, and says nothing",
        file="pagewire/transport.py",
        old="zmq.ROUTER_MANDATORY, 1)",
        new="zmq.ROUTER_MANDATORY, 0)",
        tests=("tests/pagewire/test_transport.py",),
    ),
    Mutant(
        name="a frame may be as long as it likes",
        file="pagewire/transport.py",
        old="    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)\n",
        new="",
        tests=("tests/pagewire/test_transport.py",),
    ),
    Mutant(
        name="sockets lie in a folder that others may read",
        file="pagewire/transport.py",
        old="    if info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o077:\n",
        new="    if info.st_uid != os.getuid():\n",
        tests=("tests/pagewire/test_transport.py",),
    ),
    Mutant(
        name="a frame of another protocol version is read",
        file="pagewire/transport.py",
        old="    if frame[0] != PROTOCOL_VERSION:\n",
        new="    if not frame[0]:\n",
        tests=("tests/pagewire/test_transport.py",),
    ),
    Mutant(
        name="children outlive their parent",
        file="pagewire/process.py",
        old="    _prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)\n",
        new="",
        tests=("tests/pagewire/test_process.py",),
    ),
    Mutant(
        name="who is silent is never given up",
        file="pagewire/liveness.py",
        old="        self.silent_s += max(0.0, awake_s)\n",
        new="        self.silent_s += 0.0\n",
        tests=("tests/pagewire/test_liveness.py",),
    ),
    Mutant(
        name="who gets no processor counts as silent",
        file="pagewire/liveness.py",
        old="            awake_s -= vitals.starved_s - before.starved_s\n",
        new="",
        tests=("tests/pagewire/test_liveness.py",),
    ),
    Mutant(
        name="who dies again and again is started for ever",
        file="pagewire/posts.py",
        old="        return counted < self._max_deaths\n",
        new="        return True\n",
        tests=("tests/pagewire/test_posts.py",),
    ),
    Mutant(
        name="a start that was disturbed ends the service",
        file="pagewire/supervisor.py",
        old=" and child.failure is not None and not child.failure.may_pass\n",
        new=" and child.failure is not None\n",
        tests=("tests/pagewire/test_supervisor.py::test_a_child_whose_start_is_disturbed_may_try_again",),
    ),
    Mutant(
        name="random numbers depend on how many were drawn",
        file="worker/sampling/uniforms.py",
        old="        starts = [position - position % BLOCK for position in positions]\n",
        new="        positions = [self._starts.get(row, -1) + 1 for row in rows]\n"
        "        starts = positions\n",
        tests=("tests/worker/test_sampler.py",),
    ),
    Mutant(
        name="siblings draw the same random numbers",
        file="worker/sampling/uniforms.py",
        old="        counters[:, :, 0] = self._indexes[rows, None]\n",
        new="",
        tests=("tests/worker/test_sampler.py",),
    ),
    Mutant(
        name="an index may name files outside its checkpoint",
        file="pagewire/checkpoint_files.py",
        old="    if Path(name).is_absolute() or not (",
        new="    if not path.name and not (",
        tests=("tests/worker/test_weights.py",),
    ),
)
