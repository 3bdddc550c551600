"""The language that CPU kernels are written in: a small part of Python, lowered to LLVM and cached on
disk."""
