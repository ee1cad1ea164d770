"""The devices: CPU, NVIDIA card through PyTorch, and GPUs through WebGPU, with their limits."""
