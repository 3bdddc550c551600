"""What the sampler of worker.cuda.sampling.sampler keeps of rows, on the device.

row_parameters      numbers that every row has: parameters, position, slots
logit_adjustments   of rows with penalties, a bias or an allowed set: dense state in a slot
logprobs            log-probabilities, without waiting
"""
