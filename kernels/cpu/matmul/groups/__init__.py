"""Products with weights in 4 bits: a scale and a zero point per group of inputs."""
