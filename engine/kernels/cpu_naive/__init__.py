"""cpu-naive: attention through whole score matrices in NumPy, forward and backward."""
