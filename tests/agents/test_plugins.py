"""`--plugin`: a file or a module of the user's registers something, and the shell can name it."""

from __future__ import annotations

import json
import sys

import pytest

from mempo_agents import cli
from mempo_agents.commands.plugins import load_plugins
from mempo_env.errors import DataError
from mempo_env.rewards import get_reward

POLICY = """
from beside import CONTEXT
from mempo_agents.policies import Policy, register_policy

@register_policy
class Mine(Policy):
    name = "{name}"
    protocol = "react"
    default_context = CONTEXT
"""
REWARD = """
from mempo_env.rewards import RewardResult, register_reward, reward_parts

class Mine:
    name = "{name}"

    def __call__(self, score, format_valid):
        return RewardResult(0.5, reward_parts(score, format_valid))

register_reward(Mine())
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Leaves no trace in sys.path."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside.py").write_text('CONTEXT = "last_k:3"\n', encoding="utf-8")
    yield tmp_path
    sys.modules.pop("beside", None)


def mempo(monkeypatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["mempo", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_a_policy_from_a_file_is_evaluated_by_name(folder, monkeypatch, capsys):
    plugin = folder / "mine.py"
    plugin.write_text(POLICY.format(name="react_from_a_file"), encoding="utf-8")
    other = folder / "other.py"
    other.write_text("", encoding="utf-8")
    words = ("eval", "--out", str(folder / "run"), "--plugin", str(plugin), "--plugin", str(other), "--policies",
             "react_from_a_file", "--objectives", "1", "--tasks", "2")  # fmt: skip
    for _ in range(2):  # again in one process: registered once, and the run is known again
        assert mempo(monkeypatch, *words) == 0
    results = json.loads((folder / "run" / "results.json").read_text(encoding="utf-8"))
    assert results["cells"][0]["policy"] == "react_from_a_file"
    assert f"--plugin {plugin} --plugin {other}" in results["run"]["command"]
    assert results["run"]["arguments"]["plugin"] == [str(plugin), str(other)]


def test_without_plugins_a_run_is_described_as_before_there_were_any(folder, monkeypatch):
    words = ("eval", "--out", str(folder / "run"), "--policies", "react", "--objectives", "1", "--tasks", "1")
    assert mempo(monkeypatch, *words) == 0
    run = json.loads((folder / "run" / "results.json").read_text(encoding="utf-8"))["run"]
    assert "plugin" not in run["arguments"]
    assert "--plugin" not in run["command"]


def test_a_module_of_the_working_folder(folder, monkeypatch):
    (folder / "reward_plugin_module.py").write_text(REWARD.format(name="f1_from_a_module"), encoding="utf-8")
    monkeypatch.chdir(folder)
    load_plugins(["reward_plugin_module"])
    assert get_reward("f1_from_a_module").name == "f1_from_a_module"


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (None, "no.py", r"--plugin \S*no\.py: expected a Python file or a module that imports; there is none\."),
        (None, "no_such_module", r"--plugin no_such_module: .* there is none\."),
        ("import nothing_of_that_name\n", "bad.py", r"it fails with ModuleNotFoundError: .*nothing_of_that_name"),
        ("def broken(:\n", "bad.py", r"it fails with SyntaxError"),
        ("open('/no/such/file')\n", "bad.py", r"it fails with FileNotFoundError: .*/no/such/file"),
        ("1 / 0\n", "bad.py", r"it fails with ZeroDivisionError: division by zero"),
        ("raise SystemExit(0)\n", "bad.py", r"it fails with SystemExit: 0"),
        (None, "./c", r"--plugin \./c: expected a path that ends in \.py, or a module's name such as my\.module\."),
        (None, ".foo", r"--plugin \.foo: expected a path that ends in \.py"),
    ],
)
def test_what_cannot_be_imported_is_named(folder, text, name, message):
    path = folder / name
    if text is not None:
        path.write_text(text, encoding="utf-8")
    for _ in range(2):  # a plugin that failed is not taken for one that was imported
        with pytest.raises(DataError, match=message):
            load_plugins([str(path) if name.endswith(".py") else name])


def test_training_names_what_a_plugin_registers(folder, monkeypatch, capsys):
    pytest.importorskip("torch")
    plugin = folder / "rewards.py"
    plugin.write_text(REWARD.format(name="f1_to_train_on"), encoding="utf-8")
    words = ("train", "--out", str(folder / "run"), "--reward", "f1_to_train_on", "--dataset", "world-compact:size=200",
             "--objectives", "1", "--max-steps", "1", "--max-new-tokens", "4", "--tasks", "1", "--group-size", "2",
             "--updates", "1", "--evaluate-every", "0", "--device", "cpu", "--track", "none")  # fmt: skip
    assert mempo(monkeypatch, *words) == 2
    assert "Unknown reward 'f1_to_train_on'" in capsys.readouterr().err
    assert mempo(monkeypatch, *words, "--plugin", str(plugin)) == 0
    other, config = folder / "others.py", folder / "c.toml"
    other.write_text(REWARD.format(name="another_to_train_on"), encoding="utf-8")
    config.write_text(f'plugin = ["{other}"]\n', encoding="utf-8")
    words = tuple(word.replace("f1_to_train_on", "another_to_train_on").replace("run", "second") for word in words)
    assert mempo(monkeypatch, *words, "--config", str(config)) == 0
