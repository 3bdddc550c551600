"""Runs compiled kernels: programs of records, the thread pool, work splitting, memory."""
