"""The project as a stranger finds it: true pages, links that lead somewhere, nothing that belongs to one machine."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def make_docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_docs", ROOT / "scripts" / "make_docs.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_environment_page_is_made_from_the_docstrings(make_docs: ModuleType) -> None:
    assert make_docs.PAGE.read_text() == make_docs.environment_page(), "run `make docs`"


def test_readme_tree_is_true(make_docs: ModuleType) -> None:
    readme = make_docs.README.read_text()
    assert readme == make_docs.readme_with_tree(readme), "run `make docs`"


def test_every_module_says_what_it_is(make_docs: ModuleType) -> None:
    modules = [
        path
        for folder in make_docs.FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "__init__.py" or path.read_text().strip()
    ]
    assert len(modules) > 50
    assert [str(path.relative_to(ROOT)) for path in modules if not make_docs.summary(path)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http://", "https://")):
            path, _, anchor = target.partition("#")
            found = (page.parent / path).resolve() if path else page
            assert found.exists(), f"{page.name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.+)$", found.read_text(), flags=re.M)
                slugs = {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
                assert anchor in slugs, f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_in_the_pages_compiles(page: Path) -> None:
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S):
        compile(code, str(page), "exec")


def test_quoted_files_exist() -> None:
    """What the pages put in backticks as a path of this repository is there."""
    for page in PAGES:
        if page.name == "CHANGELOG.md":
            continue
        for name in re.findall(
            r"`((?:mempo_env|mempo_agents|benchmarks|docs|scripts|tests|examples)/[\w./-]*)`", page.read_text()
        ):
            assert (ROOT / name).exists(), f"{page.name}: {name}"


def test_nothing_belongs_to_one_machine() -> None:
    # Spelt in parts, or this file would find itself.
    forbidden = [
        "(^|[^a-zA-Z0-9_./])/" + "(work|farm|root|home)/",
        "py" + r"pi\.org|files\.python" + r"hosted|registry\.npm" + r"js|download\.py" + r"torch\.org",
    ]
    found = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for pattern in forbidden:
            match = re.search(pattern, text, flags=re.M)
            if match:
                found.append(f"{path.relative_to(ROOT)}: {match[0]!r}")
    assert found == []


def test_layers() -> None:
    """The environment imports no agents; the light core imports nothing heavy at the top of a file."""
    for path in (ROOT / "mempo_env").rglob("*.py"):
        assert not re.search(r"^\s*(from|import) (mempo_agents|benchmarks)", path.read_text(), flags=re.M), path
    heavy = r"^(from|import) (torch|transformers|faiss|sentence_transformers)"
    for path in [*(ROOT / "mempo_env").rglob("*.py"), ROOT / "mempo_agents/learners/advantages.py"]:
        assert not re.search(heavy, path.read_text(), flags=re.M), path


def test_import_is_light() -> None:
    script = (
        "import sys, mempo_env; print(sorted({'torch', 'transformers', 'faiss', 'scipy', 'bm25s'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_version_is_one() -> None:
    assert version("mempo-gym") == project()["version"]


def test_extras_are_constrained() -> None:
    """What `make test` installs has an exact release in constraints.txt."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    pinned = {re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower() for line in lines}
    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)
    elsewhere = ("ray", "faiss-gpu", "vllm")  # no make target installs them
    wanted = [*project()["dependencies"], *(r for name, rows in extras.items() if name not in elsewhere for r in rows)]  # type: ignore[misc]
    names = {re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~; ]", requirement)[0]).lower() for requirement in wanted}
    assert names - pinned - {"mempo-gym"} == set()


def test_errors_name_extras_that_exist() -> None:
    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)
    named = {
        (path.name, name)
        for folder in ("mempo_env", "mempo_agents", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r'MissingExtraError\(\s*[^,]+,\s*"([\w-]+)"', path.read_text())
    }
    assert len(named) > 5
    assert {(file, name) for file, name in named if name not in extras} == set()


def test_test_files_have_names_of_their_own() -> None:
    """Two test files of one name cannot be collected together, because the folders are no packages."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.+)$", makefile, flags=re.M)
    assert phony
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    for target in phony[1].split():
        assert f"  make {target} " in done.stdout


def test_licence_is_apache() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_every_environment_and_example_explains_itself(make_docs: ModuleType) -> None:
    import subprocess
    import sys

    import gymnasium as gym

    page = make_docs.environment_page()
    ids = [name for name in gym.registry if name.startswith("MemPO-")]
    assert len(ids) >= 3
    assert all(page.count(f"- `{name}`") == 1 for name in ids)
    for example in (ROOT / "examples").glob("*.py"):
        said = subprocess.run([sys.executable, str(example), "--help"], capture_output=True, text=True, timeout=60)
        assert said.returncode == 0, said.stderr
        assert said.stdout.startswith("usage:"), example
