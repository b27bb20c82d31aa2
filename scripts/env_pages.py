"""Write docs/environment.md from the docstrings of the registered environments: `python scripts/env_pages.py`.

The docstring is the source; a test compares the page with it.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import gymnasium as gym

import mempo_env  # noqa: F401  (registers the environments)

PAGE = Path(__file__).resolve().parents[1] / "docs" / "environment.md"


def page() -> str:
    """The whole page: for each environment class its ids, the arguments that each id fixes, and its docstring."""
    ids: dict[type, list[str]] = {}
    for name, spec in sorted(gym.registry.items()):
        if name.startswith("MemPO-"):
            fixed = ", ".join(f"{key}={value!r}" for key, value in spec.kwargs.items())
            ids.setdefault(_load(spec.entry_point), []).append(f"- `{name}`" + (f": {fixed}" if fixed else ""))
    parts = ["# Environments", "", "Made from the docstrings by `python scripts/env_pages.py`.", ""]
    for cls, names in ids.items():
        parts += [f"## {cls.__name__}", "", *names, "", _below_heading(inspect.cleandoc(cls.__doc__ or "")), ""]
    return "\n".join(parts)


def _load(entry_point: object) -> type:
    loaded = gym.envs.registration.load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    assert isinstance(loaded, type)
    return loaded


def _below_heading(text: str) -> str:
    """Headings one level down, to stand below the class's own."""
    return "\n".join("#" + line if line.startswith("## ") else line for line in text.splitlines())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"Written: {PAGE}")
