"""gpu-flash: tiled flash attention in WGSL, forward and backward."""
