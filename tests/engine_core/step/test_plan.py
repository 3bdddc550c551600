"""A plan survives the wire."""

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.step.plan import AdapterUse, ForkRow, MediaItem, NewRow, Plan, RowParameters, encode_plan
from pagewire.internal.v1.engine_pb2 import InputEmbeddings, Pooling
from pagewire.internal.v1.worker_pb2 import StepPlan
from pagewire.v1.generation_pb2 import LogprobOptions
from tests.engine_core.fakes import decode_plan, resolved_sampling

u32 = st.integers(0, 2**32 - 1)
column = st.lists(u32, max_size=5)
logprobs = st.none() | st.builds(LogprobOptions, top_n=u32)
new_rows = st.builds(
    NewRow,
    row=u32,
    token_ids=column.map(lambda values: array("I", values)),
    prompt_len=u32,
    blocks=column,
    sequence_index=u32,
    parameters=st.builds(
        RowParameters,
        sampling=st.builds(resolved_sampling, seed=st.integers(0, 2**64 - 1), n=u32),
        min_tokens=u32,
        stop_token_ids=column.map(tuple),
        bad_words=st.lists(column.map(tuple), max_size=3).map(tuple),
        logprobs=logprobs,
        grammar=st.text(max_size=5),
        pooling=st.none() | st.builds(Pooling, dimensions=u32, normalize=st.booleans()),
    ),
    prompt_logprobs=logprobs,
    prompt_logprobs_start=u32,
    num_beam_candidates=u32,
    tenant=st.text(max_size=8),
)
plans = st.builds(
    Plan,
    step=st.integers(0, 2**64 - 1),
    removed_rows=column,
    new_rows=st.lists(new_rows, max_size=3),
    forks=st.lists(st.builds(ForkRow, u32, u32, u32), max_size=3),
    table_rows=column,
    table_starts=column,
    table_counts=column,
    table_blocks=column,
    copy_sources=column,
    copy_targets=column,
    rows=column,
    starts=column,
    counts=column,
    sample_rows=column,
    sample_sources=column,
    append_rows=column,
    append_token_ids=column,
    swap_out_blocks=column,
    swap_out_host_blocks=column,
    swap_in_host_blocks=column,
    swap_in_blocks=column,
    sample_counts=column,
    restore_rows=column,
    restore_checkpoints=column,
    save_rows=column,
    save_positions=column,
    save_checkpoints=column,
)


@settings(deadline=None)
@given(plans)
def test_a_plan_survives_the_wire(plan: Plan) -> None:
    assert decode_plan(StepPlan.FromString(encode_plan(plan).SerializeToString())) == plan


def test_every_field_of_the_contract_is_written() -> None:
    """A field added to the message must not be forgotten here."""
    top, item = LogprobOptions(top_n=1), MediaItem(1, (1, 1, 3), b"rgb", bytes(32), array("I", [0]))
    parameters = RowParameters(
        resolved_sampling(),
        *(1, (1,), ((1,),), top, "g", Pooling(type=1)),
        embeddings=InputEmbeddings(dtype="float32"),
        adapter=AdapterUse("a", "/a", b"d", 1),
        media=(item,),
    )
    row = NewRow(1, array("I", [1]), 1, [1], 1, parameters, top, 1, 1, "t")
    plan = Plan(1, [1], [row], [ForkRow(1, 1, 1)], *([[1]] * 23), [item], [item.digest], micro_batch=True)
    message = encode_plan(plan)
    of_connection = {"kept_changes"}  # engine_core.io.worker_group adds them on the way
    assert {field.name for field, _ in message.ListFields()} == {
        field.name for field in StepPlan.DESCRIPTOR.fields
    } - of_connection
    assert {field.name for field, _ in message.new_rows[0].ListFields()} == {
        field.name for field in message.new_rows[0].DESCRIPTOR.fields
    }
    (of_row,) = message.new_rows[0].media  # positions of Qwen's images follow from their shapes
    assert list(of_row.shape) == [1, 1, 3] and not of_row.data
