"""gpu-naive: attention through whole score matrices in WGSL, forward and backward."""
