"""Devices, as worker.load takes them.

base.py   what a device is to loading
cpu.py    a CPU
cuda.py   a CUDA device

The simulated device is worker.simulated.platform.
"""
