"""Generated: the Open Inference Protocol, and load reports of xDS."""
