"""Reads WGSL sources and fills in their templates."""

from __future__ import annotations

from functools import cache, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2


def render(name: str, **values: Any) -> str:
    """Return the WGSL of ``shaders/<name>.wgsl.j2`` with its constants filled in. A name left out is an error."""
    hashable = ((key, tuple(value) if isinstance(value, list) else value) for key, value in values.items())
    return _rendered(name, *hashable)


@lru_cache(256)  # filling in a large template takes longer than running it on a small problem
def _rendered(name: str, *values: tuple[str, Any]) -> str:
    return _template(name).render(**dict(values))


@cache
def _template(name: str) -> jinja2.Template:
    source = files("shaders").joinpath(f"{name}.wgsl.j2").read_text("utf-8")
    return _environment().from_string(source)


@cache
def _environment() -> jinja2.Environment:
    import jinja2  # 0.1 s that whoever only asks whether a kernel fits does not pay

    return jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        loader=jinja2.FunctionLoader(lambda name: files("shaders").joinpath(name).read_text("utf-8")),
    )
