"""Process 3: weights, model, KV cache, sampler."""
