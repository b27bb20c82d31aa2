"""Tag protocols: how a step is written, read and answered.

    mempo       <mem> <think>, then <tool_call> with JSON or <answer>      made for the context rule last_step
    mem1        <think> (which is the memory), then <search> or <answer>   last_step
    react       <think>, then <tool_call> with JSON or <answer>            full
    search_r1   <think>, then <search> or <answer>                         full

Results come back in <information>. `parser` holds the rules of reading, `render` those of writing results, `inert`
keeps foreign text from opening or closing a tag, `plan` describes a step for guided decoding, `prompts` holds the
words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mempo_env.protocols.base import ANSWER_SEPARATOR, Protocol, TagProtocol
from mempo_env.protocols.inert import TAG_NAMES, neutralise
from mempo_env.protocols.parser import TOOLS
from mempo_env.protocols.plan import Branch, Choice, Forced, Free, Segment
from mempo_env.protocols.render import Budget, render_hits
from mempo_env.registry import Registry
from mempo_env.text import replace_surrogates

__all__ = [
    "ANSWER_SEPARATOR",
    "TAG_NAMES",
    "TOOLS",
    "Branch",
    "Budget",
    "Choice",
    "Forced",
    "Free",
    "Protocol",
    "Segment",
    "TagProtocol",
    "get_protocol",
    "neutralise",
    "protocol_names",
    "register_protocol",
    "render_hits",
    "replace_surrogates",
]

_MEMBERS = tuple(name for name in vars(Protocol) if not name.startswith("_"))

_PROTOCOLS: Registry[Protocol] = Registry("protocol")


def register_protocol(protocol: Protocol) -> Protocol:
    """Make a protocol known under its `name`. Raises ValueError if another one has that name."""
    return _PROTOCOLS.add(protocol.name, protocol)


def protocol_names() -> tuple[str, ...]:
    """The registered names, sorted."""
    return tuple(_PROTOCOLS)


def get_protocol(protocol: str | Protocol, tools: Sequence[str] | None = None) -> Protocol:
    """The protocol of that name, or the given object itself; offering `tools` instead of its own, if given.

    Raises `UnknownNameError` for an unknown name, TypeError for tools with a protocol that is no `TagProtocol`.
    """
    found = _PROTOCOLS.get(protocol) if isinstance(protocol, str) else protocol
    # A look for the members: `isinstance` of a typing protocol that is itself called Protocol accepts anything.
    missing = [member for member in _MEMBERS if not hasattr(found, member)]
    if missing:
        raise TypeError(
            f"protocol: expected a registered name or an object with {', '.join(_MEMBERS)}; "
            f"got {type(protocol).__name__} without {', '.join(missing)}."
        )
    if isinstance(tools, str) or not (tools is None or isinstance(tools, Sequence)):
        raise TypeError(f"tools: expected a sequence of names such as ('search',), got {tools!r}.")
    if tools is None or tuple(tools) == found.tools:
        return found
    if not isinstance(found, TagProtocol):
        raise TypeError(f"tools: expected a TagProtocol to change the tools of, got {type(found).__name__}.")
    return replace(found, tools=tuple(tools))


register_protocol(TagProtocol("mempo", "last_step", blocks=("mem", "think"), memory_block="mem"))
register_protocol(
    TagProtocol("mem1", "last_step", blocks=("think",), memory_block="think", json_calls=False, hints=True)
)
register_protocol(TagProtocol("react", "full", blocks=("think",)))
register_protocol(TagProtocol("search_r1", "full", blocks=("think",), json_calls=False))
