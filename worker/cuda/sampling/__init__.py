"""What the sampler of worker.cuda.sampling.sampler keeps of rows, on the device.

columns      numbers that every row has: parameters, position, slots
adjusting    of rows with penalties, a bias or an allowed set: dense state in a slot
forbidding   of rows with bad words or min_tokens: lists in a slot
examples     rows that use all of it, for warm-up
"""
