"""What a new request passes before it is queued: validation, quotas, overload, deadlines."""
