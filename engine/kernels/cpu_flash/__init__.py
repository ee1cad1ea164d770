"""cpu-flash and cpu-flash-jit: blocked attention in NumPy, and compiled by Numba."""
