"""How kernels are measured and judged: sampling, statistics, memory, verification, peaks, environment."""
