"""Write what is made from docstrings: docs/environment.md and the tree in README.md. `make docs` runs it.

The docstrings are the source; a test compares both with them.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import gymnasium as gym

import mempo_env

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "environment.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- tree: made by `make docs` -->", "<!-- end of tree -->"
FOLDERS = ("mempo_env", "mempo_agents", "benchmarks", "examples", "scripts")


def environment_page() -> str:
    """For each environment class its ids, the arguments that each id fixes, and its docstring."""
    ids: dict[type, list[str]] = {}
    for name in [*mempo_env.ENV_IDS, *(name for name in gym.registry if name.startswith("MemPO-"))]:
        spec = gym.spec(name)
        module, _, cls_name = str(spec.entry_point).partition(":")
        fixed = ", ".join(f"{key}={value!r}" for key, value in spec.kwargs.items())
        cls = getattr(importlib.import_module(module), cls_name)
        line = f"- `{name}`" + (f": `{fixed}`" if fixed else "")
        if line not in ids.setdefault(cls, []):
            ids[cls].append(line)
    parts = ["# Environments", "", "Made from the docstrings by `make docs`.", ""]
    for cls, names in ids.items():
        text = inspect.cleandoc(cls.__doc__ or "")
        parts += [f"## {cls.__name__}", "", *names, "", re.sub(r"^## ", "### ", text, flags=re.M), ""]
    return "\n".join(parts)


def tree() -> str:
    """Every module of the project with the first sentence of its docstring."""
    lines = []
    for folder in FOLDERS:
        files = sorted((ROOT / folder).rglob("*.py"), key=lambda path: (path.parent, path.name))
        for path in files:
            text = summary(path)
            if text:
                name = str(path.relative_to(ROOT)).removesuffix("/__init__.py")
                lines.append(f"{name:<42} {text}")
    return "\n".join(lines)


def summary(path: Path) -> str:
    """The first sentence of a module's docstring, "" for a module without one."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    first = " ".join(docstring.split("\n\n")[0].split())
    sentence = re.split(r"(?<=[^.A-Z])[.:] (?=[A-Z`\"(])", first)[0].rstrip(".:")
    return sentence


def readme_with_tree(readme: str) -> str:
    """`readme` with the tree between its two marks replaced by today's."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n```\n{tree()}\n```\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(environment_page(), encoding="utf-8")
    README.write_text(readme_with_tree(README.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"Written: {PAGE.relative_to(ROOT)}, {README.relative_to(ROOT)}")
