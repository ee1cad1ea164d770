"""The only place that touches wgpu: devices, buffers, shaders, timing."""
