"""KV blocks on the device, and their copies in host memory."""
