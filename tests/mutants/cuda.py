"""Bugs of the worker on a CUDA device."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        name="a sampled token does not reach the device's rows",
        within="worker:CudaOutputs._launch_sampling",
        old="backend.device_rows.append(row_index[:len(rows)], tokens)",
        new="",
        tests=("cuda/test_backend.py::test_a_sampled_token_does_not_pass_the_host",),
    ),
    Mutant(
        name="a result is read before the device has come so far",
        within="worker:CudaCompletion.wait",
        old="self._event.synchronize()",
        new="",
        tests=("cuda/test_backend.py::test_a_sampled_token_does_not_pass_the_host",),
    ),
    Mutant(
        name="the host waits for each step where it launches it",
        within="worker:CudaBackend.submit",
        old="return CudaCompletion(self, self.device.record(), clock)",
        new=("self.device.record().synchronize()\nreturn CudaCompletion(self, self.device.record(), clock)"),
        tests=("cuda/test_backend.py::test_a_sampled_token_does_not_pass_the_host",),
    ),
    Mutant(
        name="a fork of a fork copies tokens that are not there yet",
        within="worker:DeviceRows._copy_tokens",
        old="roots.get(fork.source_row, fork.source_row)",
        new="fork.source_row",
        tests=("cuda/test_backend.py::test_rows_of_the_device_are_those_of_the_host",),
    ),
    Mutant(
        name="a row samples after a token of another row",
        within="worker:StepBuffers.load",
        old="ends[step.sample_sources]",
        new="step.counts[step.sample_sources]",
        tests=("cuda/test_backend.py::test_a_plan_has_its_rows_in_any_order",),
    ),
    Mutant(
        name="padding of a graph samples for a row",
        within="worker:StepBuffers._padding",
        old="columns[SAMPLE_ROWS] = self._no_row",
        new="",
        tests=("cuda/test_backend.py::test_a_step_ahead_of_a_late_device",),
    ),
    Mutant(
        name="rows that want log-probabilities sample in a graph, which gives none",
        within="worker:CudaOutputs.sample",
        old="self._in_graph and index is None and (not scores.watches(names))",
        new="self._in_graph and index is None",
        tests=("cuda/test_backend.py::test_a_step_ahead_of_a_late_device",),
    ),
    Mutant(
        name="tokens of padding are left as they were in a graph of fewer rows",
        within="kernels:_prepare_kernel",
        old=("if i == tl.num_programs(0) - 1:\n    end = num_tokens"),
        new=("if i == tl.num_programs(0) - 1:\n    pass"),
        tests=("triton/step/test_prepare_inputs.py::test_a_graph_of_fewer_rows_than_tokens_are_left",),
    ),
    Mutant(
        name="warm-up leaves out steps of few rows",
        within="worker:_plans",
        old="{most, *(1 << power for power in range(most.bit_length()))}",
        new="{most}",
        tests=("startup/test_load.py::test_nothing_is_compiled_while_serving",),
    ),
    Mutant(
        name="memory for steps is given to the cache",
        within="worker:choose_num_blocks",
        old="int(demand.utilization * memory.total) - (memory.total - memory.free) - temporary",
        new="int(demand.utilization * memory.total) - (memory.total - memory.free)",
        tests=("startup/test_load.py::test_blocks_that_fit",),
    ),
    Mutant(
        name="memory of other processes is not counted before weights are read",
        within="worker:check_weights",
        old="int(utilization * memory.total) - used",
        new="int(utilization * memory.total)",
        tests=("startup/test_limits.py::test_weights_beside_other_processes",),
    ),
)
