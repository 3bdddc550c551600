"""tei.v1.Embed: vectors of texts and of tokens, and weights of the vocabulary."""

import shutil

from pagewire.internal.v1.engine_pb2 import POOLING_TYPE_ALL, POOLING_TYPE_LAST, POOLING_TYPE_MAX, Pooling
from pagewire.ipc.columns import unpack_u32
from pagewire_gateways.protos import tei_pb2, tei_pb2_grpc
from tei_calls import EMBEDS, LAST, collect, each_of, embed, fields_of, refusal, text, tokenize
from tests.frontend.fakes import BEGIN, EMBEDDING_SIZE, MAX_MODEL_LEN, encode, fake_vector, pool, run_service


async def test_a_text_becomes_a_vector(checkpoint):
    async with run_service(checkpoint, pool, **EMBEDS) as service:
        answer = await embed(service).Embed(text("yé"))
        ids = [BEGIN, *encode("yé")]
        assert list(answer.embeddings) == fake_vector(ids, LAST), "normalized unless told otherwise"
        about = answer.metadata
        assert (about.compute_chars, about.compute_tokens) == (2, len(ids))
        stages = about.tokenization_time_ns + about.queue_time_ns + about.inference_time_ns
        assert about.tokenization_time_ns > 0 and about.inference_time_ns > 0
        assert stages <= about.total_time_ns
        plain = await embed(service).Embed(text("x", normalize=False, dimensions=3))
        pooling = Pooling(type=POOLING_TYPE_LAST, normalize=False, dimensions=3)
        assert list(plain.embeddings) == fake_vector([BEGIN, *encode("x")], pooling)


async def test_truncation_keeps_what_the_tokenizer_adds(checkpoint):
    long = "a" * MAX_MODEL_LEN + "b"
    async with run_service(checkpoint, pool, **EMBEDS) as service:
        assert fields_of(await refusal(embed(service).Embed(text(long)))) == ["inputs"]
        for direction, kept in (
            (tei_pb2.TRUNCATION_DIRECTION_RIGHT, "a" * (MAX_MODEL_LEN - 1)),
            (tei_pb2.TRUNCATION_DIRECTION_LEFT, "a" * (MAX_MODEL_LEN - 2) + "b"),
        ):
            answer = await embed(service).Embed(text(long, truncate=True, truncation_direction=direction))
            assert answer.metadata.compute_tokens == MAX_MODEL_LEN
            sent = service.engine.requests.get_nowait()
            assert unpack_u32(sent.prompt_token_ids) == [BEGIN, *encode(kept)]


async def test_prompts_and_the_length_of_the_checkpoint(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint, tmp_path / "sentences")
    (folder / "config_sentence_transformers.json").write_text('{"prompts": {"query": "find "}}')
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 8}')
    async with run_service(folder, pool, **EMBEDS) as service:
        info = await tei_pb2_grpc.InfoStub(service.channel).Info(tei_pb2.InfoRequest())
        assert info.max_input_length == 8
        long = text("zzz", prompt_name="query")
        assert fields_of(await refusal(embed(service).Embed(long))) == ["inputs"], "TEI cuts on request only"
        long.truncate = True
        assert (await embed(service).Embed(long)).metadata.compute_tokens == 8
        sent = service.engine.requests.get_nowait()
        assert unpack_u32(sent.prompt_token_ids) == [BEGIN, *encode("find zz")]
        tokens = await tokenize(service).Tokenize(tei_pb2.EncodeRequest(inputs="a", prompt_name="query"))
        assert "".join(token.text for token in tokens.tokens) == "find a"


async def test_a_model_that_does_not_embed(checkpoint):
    async with run_service(checkpoint, tei=True) as service:
        error = await refusal(embed(service).Embed(text()))
        assert fields_of(error) == ["model"] and "--pooling-type" in str(error.details())


async def test_vectors_of_tokens(checkpoint):
    """As the model has them: not normalized."""
    async with run_service(checkpoint, pool, **EMBEDS) as service:
        answer = await embed(service).EmbedAll(tei_pb2.EmbedAllRequest(inputs="yé"))
        ids = [BEGIN, *encode("yé")]
        values = [value for each in answer.token_embeddings for value in each.embeddings]
        assert values == fake_vector(ids, Pooling(type=POOLING_TYPE_ALL))
        assert len(answer.token_embeddings) == answer.metadata.compute_tokens == len(ids)
        assert answer.metadata.compute_chars == 2
        messages = [tei_pb2.EmbedAllRequest(inputs=each) for each in ("a", "yé")]
        found, error = await collect(embed(service).EmbedAllStream(each_of(*messages)))
        assert error is None and len(found[0].token_embeddings) == 2
        assert found[1].token_embeddings == answer.token_embeddings
        long = tei_pb2.EmbedAllRequest(inputs="a" * MAX_MODEL_LEN)
        assert fields_of(await refusal(embed(service).EmbedAll(long))) == ["inputs"]
        long.truncate = True
        assert len((await embed(service).EmbedAll(long)).token_embeddings) == MAX_MODEL_LEN


async def test_weights_of_the_vocabulary(checkpoint):
    options = {"pooling_type": "splade", "engine_options": {"head_sizes": [0, 0, EMBEDDING_SIZE]}}
    async with run_service(checkpoint, pool, tei=True, **options) as service:
        answer = await embed(service).EmbedSparse(tei_pb2.EmbedSparseRequest(inputs="yé"))
        ids = [BEGIN, *encode("yé")]
        weights = fake_vector(ids, Pooling(type=POOLING_TYPE_MAX))
        found = {each.index: each.value for each in answer.sparse_embeddings}
        assert found == {place: value for place, value in enumerate(weights) if value}
        assert answer.metadata.compute_tokens == len(ids)
        messages = [tei_pb2.EmbedSparseRequest(inputs=each) for each in ("a", "yé")]
        answers, error = await collect(embed(service).EmbedSparseStream(each_of(*messages)))
        assert error is None and answers[1].sparse_embeddings == answer.sparse_embeddings
        assert fields_of(await refusal(embed(service).Embed(text()))) == ["inputs"]
    async with run_service(checkpoint, pool, **EMBEDS) as service:
        refused = embed(service).EmbedSparse(tei_pb2.EmbedSparseRequest(inputs="a"))
        assert fields_of(await refusal(refused)) == ["inputs"]
