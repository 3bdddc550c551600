"""Bugs of the worker on a CUDA device."""

from tests.mutants.mutant import Mutant

RUNNER = "tests/worker/cuda/test_backend.py"
LOAD = "tests/worker/cuda/startup/test_load.py"

MUTANTS = (
    Mutant(
        name="a sampled token does not reach the device's rows",
        file="worker/cuda/backend.py",
        old="        backend.device_rows.append(row_index[: len(rows)], tokens)\n",
        new="",
        tests=(f"{RUNNER}::test_a_sampled_token_does_not_pass_the_host",),
    ),
    Mutant(
        name="a result is read before the device has come so far",
        file="worker/cuda/backend.py",
        old="        self._event.synchronize()  # the step's one wait\n",
        new="",
        tests=(f"{RUNNER}::test_a_sampled_token_does_not_pass_the_host",),
    ),
    Mutant(
        name="the host waits for each step where it launches it",
        file="worker/cuda/backend.py",
        old="        return CudaCompletion(self, self.device.record(), clock)\n",
        new="        self.device.record().synchronize()\n"
        "        return CudaCompletion(self, self.device.record(), clock)\n",
        tests=(f"{RUNNER}::test_a_sampled_token_does_not_pass_the_host",),
    ),
    Mutant(
        name="a fork of a fork copies tokens that are not there yet",
        file="worker/cuda/rows.py",
        old="roots.get(fork.source_row, fork.source_row)",
        new="fork.source_row",
        tests=(f"{RUNNER}::test_rows_of_the_device_are_those_of_the_host",),
    ),
    Mutant(
        name="a row samples after a token of another row",
        file="worker/cuda/step_buffers.py",
        old="        logit_tokens: Integers = ends[step.sample_sources] - 1\n",
        new="        logit_tokens: Integers = step.counts[step.sample_sources] - 1\n",
        tests=(f"{RUNNER}::test_a_plan_has_its_rows_in_any_order",),
    ),
    Mutant(
        name="padding of a graph samples for a row",
        file="worker/cuda/step_buffers.py",
        old="        columns[SAMPLE_ROWS] = self._rows.tokens.shape[0]\n",
        new="",
        tests=(f"{RUNNER}::test_a_step_ahead_of_a_late_device",),
    ),
    Mutant(
        name="rows that want log-probabilities sample in a graph, which gives none",
        file="worker/cuda/backend.py",
        old=" and not scores.concern(names):\n",
        new=":\n",
        tests=(f"{RUNNER}::test_a_step_ahead_of_a_late_device",),
    ),
    Mutant(
        name="tokens of padding are left as they were in a graph of fewer rows",
        file="kernels/triton/step/prepare_inputs.py",
        old="            end = num_tokens\n",
        new="            pass\n",
        tests=(
            "tests/kernels/triton/step/test_prepare_inputs.py"
            "::test_a_graph_of_fewer_rows_than_tokens_are_left",
        ),
    ),
    Mutant(
        name="warm-up leaves out steps of few rows",
        file="worker/cuda/startup/warm_up.py",
        old="    powers = {most, *(1 << power for power in range(most.bit_length()))}\n",
        new="    powers = {most}\n",
        tests=(f"{LOAD}::test_nothing_is_compiled_while_serving",),
    ),
    Mutant(
        name="memory for steps is given to the cache",
        file="worker/cuda/startup/memory.py",
        old=" - (memory.total - memory.free) - temporary\n",
        new=" - (memory.total - memory.free)\n",
        tests=(f"{LOAD}::test_blocks_that_fit",),
    ),
    Mutant(
        name="memory of other processes is not counted before weights are read",
        file="worker/cuda/startup/limits.py",
        old="    room = int(utilization * memory.total) - used\n",
        new="    room = int(utilization * memory.total)\n",
        tests=("tests/worker/cuda/startup/test_limits.py::test_weights_beside_other_processes",),
    ),
    Mutant(
        name="a write behind a branch is not seen by the check of products in flight",
        file="kernels/triton/sass.py",
        old="                work.append(places[one.target])\n",
        new="                pass\n",
        tests=("tests/kernels/triton/test_sass.py::test_writes_to_what_a_product_reads",),
    ),
)
