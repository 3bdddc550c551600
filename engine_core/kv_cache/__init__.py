"""KV blocks on the host side: the pool, block tables, the prefix cache, swapping, preemption order."""
