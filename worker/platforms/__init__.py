"""Devices, as worker.load takes them.

base.py   what a device is to loading
cpu.py    a CPU
cuda.py   a CUDA device

Others are plug-ins, as packages/pagewire-simulated is: entry points of the group pagewire.platforms.
"""
