"""The steps of a model as programs of the CPU's compiled kernels: one call each, recorded while the layers
run once on buffers."""
