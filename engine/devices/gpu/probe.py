"""Finds a device's subgroup size by asking a tiny shader: the adapter does not tell."""

from __future__ import annotations

from typing import Any

import numpy as np

MIN_LANES = 8  # fewer are not worth a shuffle
_THREADS = 32
_MASKS = (1, 2, 4, 8, 16)
_SOURCE = f"""
@group(0) @binding(0) var<storage, read_write> found: array<array<u32, {len(_MASKS) + 1}>, {_THREADS}>;

@compute @workgroup_size({_THREADS})
fn main(@builtin(local_invocation_index) lane: u32, @builtin(subgroup_size) size: u32) {{
    found[lane][0] = size;
    {"".join(f"found[lane][{i}] = subgroupShuffleXor(lane, {mask}u);" for i, mask in enumerate(_MASKS, 1))}
}}
"""


def subgroup_size(device: Any) -> int:
    """Return the subgroup size in lanes, 0 where shuffles cannot serve to reduce over neighbouring threads.

    ``device`` is a raw wgpu device with the ``subgroup`` feature. The size counts as usable when it is at least 8 and
    shuffles meet the neighbours by local index (a driver may map threads to lanes as it likes).
    """
    buffer = device.create_buffer(size=_THREADS * 4 * (len(_MASKS) + 1), usage=128 | 4)  # STORAGE | COPY_SRC
    try:
        pipeline = device.create_compute_pipeline(
            layout="auto", compute={"module": device.create_shader_module(code=_SOURCE), "entry_point": "main"}
        )
        group = device.create_bind_group(
            layout=pipeline.get_bind_group_layout(0),
            entries=[{"binding": 0, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}}],
        )
        encoder = device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(1)
        compute.end()
        device.queue.submit([encoder.finish()])
        found = np.frombuffer(device.queue.read_buffer(buffer), np.uint32).reshape(_THREADS, -1)
    except Exception:  # a driver that names the feature and cannot compile it: do without
        return 0
    finally:
        buffer.destroy()
    size = int(found[:, 0].min())
    lane = np.arange(_THREADS)
    neighbours = all((found[:, i] == lane ^ mask).all() for i, mask in enumerate(_MASKS, 1) if mask < size)
    return size if neighbours and size >= MIN_LANES else 0
