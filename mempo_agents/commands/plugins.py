"""`--plugin`: Python files or modules that a command imports first, so that what they register can be named."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

Plugins = Annotated[
    list[str] | None,
    typer.Option(
        help="Python file or module to import first: what it registers (a policy, a protocol, ...) can be named. "
        "Repeatable."
    ),
]


def load_plugins(names: Sequence[str] | None) -> None:
    """Import each: a path that ends in .py, or a module's name (the working folder counts). Twice is once.

    Raises DataError for one that is not there or that fails, with the reason.
    """
    from mempo_env.errors import DataError

    for name in names or ():
        if not name.endswith(".py") and not all(part.isidentifier() for part in name.split(".")):
            raise DataError(f"--plugin {name}: expected a path that ends in .py, or a module's name such as my.module.")
        try:
            if name.endswith(".py"):
                _import_file(Path(name).expanduser().resolve())
            else:
                _first(Path.cwd())
                importlib.import_module(name)
        except (Exception, SystemExit) as error:
            known = isinstance(error, FileNotFoundError | ModuleNotFoundError) and _is_about(error, name)
            said = "there is none" if known else f"it fails with {type(error).__name__}: {error}"
            raise DataError(f"--plugin {name}: expected a Python file or a module that imports; {said}.") from error


def _import_file(path: Path) -> None:
    key = f"_mempo_plugin_{hashlib.blake2b(str(path).encode(), digest_size=6).hexdigest()}"
    if key in sys.modules:
        return
    if not path.is_file():
        raise FileNotFoundError(2, "No such file", str(path))
    spec = importlib.util.spec_from_file_location(key, path)
    assert spec is not None
    assert spec.loader is not None
    _first(path.parent)  # as for a script: the files beside it
    module = sys.modules[key] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[key]
        raise


def _first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _is_about(error: BaseException, name: str) -> bool:
    """Whether the plugin itself is missing, not something that it wants."""
    if isinstance(error, ModuleNotFoundError):
        return error.name is not None and (name == error.name or name.startswith(error.name + "."))
    return isinstance(error, FileNotFoundError) and error.filename == str(Path(name).expanduser().resolve())
