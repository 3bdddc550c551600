"""Clients of a running service: `pagewire.Client` and `pagewire.AsyncClient`.

params.py         SamplingParams and prompts -> messages of pagewire.v1
tools.py          functions -> tools of a conversation, and calls of them
schemas.py        forms of outputs: pydantic models, dataclasses and JSON schemas
results.py        messages of pagewire.v1 -> Generation, Delta and other results
errors.py         gRPC statuses -> exceptions
credentials.py    token and certificates
channel.py        channel options and method names
recovery.py       one request over several attempts, without I/O
exchange.py       many requests over one stream, without I/O
aio.py            AsyncClient; sync.py (Client) is generated from it
multiplex_aio.py  AsyncMultiplex; multiplex.py (Multiplex) is generated from it
io_aio.py         the I/O of both for asyncio; io_sync.py for threads
"""
