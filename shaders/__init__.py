"""WGSL sources, one per kernel pass; Jinja2 templates where loops must be unrolled."""
