"""The only place that imports a WebGPU engine: devices, buffers, shaders, timing."""
