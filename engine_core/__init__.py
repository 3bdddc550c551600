"""Process 2: requests, scheduler, block pool, step loop. Never imports torch."""
