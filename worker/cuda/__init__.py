"""The worker on a CUDA device: rows that live there, and steps that are launched and not waited for.

device.py        what the runner wants of a device: copies, events, graphs, memory
host_device.py   its plain twin, on a CPU
upload.py        from the host to the device without a wait
rows.py          tokens and block tables of rows on the device, and a plan's changes to them
batch.py         a step's inputs, at addresses that captured graphs know
graphs.py        decoding steps, captured once per number of rows
sampler.py       tokens from logits, with what it keeps of rows in sampling/
scores.py        log-probabilities; likeliest.py: of which tokens
flight.py        a step that was launched: what is on its way to the host, and the result
runner.py        launch() and finish(): all of this put together
warm_up.py       steps that meet whatever serving will meet
compiles.py      watches that nothing is compiled later
memory.py        KV blocks, from a profiling run
limits.py        what is refused at start-up
load.py          from Initialize to a runner

Importing these files imports triton: they are imported where Initialize names such a device.
"""
