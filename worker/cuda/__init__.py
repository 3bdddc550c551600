"""The worker on a CUDA device: rows live on the device, and steps are launched without waiting for them.

backend.py        the backend of the step executor: all of this put together
device.py         operations of a device: copies, events, graphs, memory; the same on a CPU, as reference
upload.py         copies from the host that do not wait
rows.py           tokens and block tables of rows on the device, and a plan's changes to them
step_buffers.py   a step's inputs, at fixed addresses for captured graphs
graphs.py         steps, captured once per number of tokens
sampler.py        tokens from logits; sampling/ has its processors and parameters
logprobs.py       log-probabilities; top_n.py: their candidates
warm_up.py        steps that compile every kernel configuration that serving needs; a log of what they lack
memory.py         the number of KV blocks, from a profiling run
limits.py         checks at start-up

worker.platforms.cuda puts them together. Importing these files imports triton: they are imported once
Initialize names a CUDA device.
"""
