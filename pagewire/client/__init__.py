"""Clients of a running service; `pagewire.Client` and `pagewire.AsyncClient` are the front doors.

params.py    SamplingParams and prompts, as people write them -> messages of pagewire.v1
results.py   messages of pagewire.v1 -> results, as people read them
errors.py    statuses -> exceptions
credentials.py  token and certificates
channel.py   channel options and method names, shared by both clients
exchange.py  many requests over one stream, without I/O; multiplex.py and multiplex_aio.py drive it
sync.py      Client
aio.py       AsyncClient
"""
