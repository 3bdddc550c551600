"""vllm.grpc.engine.VllmEngine: its service, and the messages that it reads and writes."""
