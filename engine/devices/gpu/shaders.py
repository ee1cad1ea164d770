"""Reads WGSL sources and fills in their templates, as their files stand at that moment."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2

_INCLUDE = re.compile(r'{%-?\s*include\s+"([^"]+)"')

_Sources = tuple[tuple[str, str], ...]  # (name, text) of a template and of every file that it includes, by name


def render(name: str, **values: Any) -> str:
    """Return the WGSL of ``shaders/<name>.wgsl.j2`` with its constants filled in. A name left out is an error.

    The files are read at every call: a shader that was edited while the program runs is the edited one.
    """
    hashable = ((key, tuple(value) if isinstance(value, list) else value) for key, value in values.items())
    template = f"{name}.wgsl.j2"
    return _rendered(template, _read(template), *hashable)


def _read(template: str) -> _Sources:
    found: dict[str, str] = {}
    names = [template]
    while names:
        if (name := names.pop()) not in found:
            found[name] = files("shaders").joinpath(name).read_text("utf-8")
            names += _INCLUDE.findall(found[name])
    return tuple(sorted(found.items()))


@lru_cache(256)  # filling in a large template takes longer than running it on a small problem
def _rendered(name: str, sources: _Sources, *values: tuple[str, Any]) -> str:
    return _template(name, sources).render(**dict(values))


@lru_cache(64)
def _template(name: str, sources: _Sources) -> jinja2.Template:
    import jinja2  # 0.1 s that whoever only asks whether a kernel fits does not pay

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        loader=jinja2.DictLoader(dict(sources)),
    )
    return environment.get_template(name)
