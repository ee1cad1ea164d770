"""The kernels that are raced, one file each."""
