"""The set-up dock: device, problem, kernels and run length."""
