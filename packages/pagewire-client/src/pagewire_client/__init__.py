"""Clients of a running service: `pagewire.Client` and `pagewire.AsyncClient`.

params.py           SamplingParams and prompts -> messages of pagewire.v1
images.py           images in prompts
audio.py            sounds in prompts
tools.py            functions -> tools of a conversation, and calls of them
schemas.py          forms of outputs: pydantic models, dataclasses and JSON schemas
results.py          messages of pagewire.v1 -> Generation, Delta and other results
errors.py           gRPC statuses -> exceptions
credentials.py      token and certificates
channel.py          channel options and method names
recovery.py         one request over several attempts, without I/O
exchange.py         many requests over one stream, without I/O
aio.py              AsyncClient: calls that the model computes; sync.py has Client
operations_aio.py   its calls about the service; operations.py
connections_aio.py  the connections below both; connections.py
stream_aio.py       AsyncStream; stream.py has Stream
multiplex_aio.py    AsyncMultiplex; multiplex.py has Multiplex
io_aio.py           the I/O of all of them for asyncio; io_sync.py for threads

sync.py is generated from aio.py, and every file NAME.py from its NAME_aio.py, but for io_sync.py.
"""
