"""`mempo train` and `mempo warm-start` before anything is trained: what a config may hold, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from mempo_agents import cli

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture
def mempo(monkeypatch, capsys, tmp_path):
    """A function of a command's words: (exit code, stderr). The command runs in an empty folder, no trainer trains."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["mempo", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), capsys.readouterr().err

    return run


@pytest.fixture
def settings(monkeypatch):
    """What a trainer that only listens was given: (settings, options)."""
    seen = []

    class Listening:
        def __init__(self, settings, *_, **options):
            seen.append((settings, options))

        def run(self):
            return {}

    monkeypatch.setattr("mempo_agents.learners.trainer.Trainer", Listening)
    return seen


def one_line(answer: tuple[int, str]) -> str:
    code, error = answer
    assert code == 2, error
    assert error.startswith("Error: ")
    assert error.count("\n") == 1, error
    return error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("plugin = 5", "plugin: expected text or a list of texts, got 5."),
        ('plugin = ["a.py", 5]', "plugin: expected text or a list of texts, got ['a.py', 5]."),
        ('track = ["tensorboard"]', "track: expected text, got ['tensorboard']."),
        ('max_steps = "five"', "max_steps: expected a whole number of at least 1, got 'five'."),
        ('clip_high = "0.3"', "clip_high: expected a number of at least 0, got '0.3'."),
        ("instructions = 5", "instructions: expected text, got 5."),
        ("device = 5", "device: expected text, got 5."),
        ("updates = true", "updates: expected a whole number of at least 1, got True."),
        ("updates = 2.0", "updates: expected a whole number of at least 1, got 2.0."),
        ("lr = true", "lr: expected a number of at least 0, got True."),
        ("guided = 1", "guided: expected true or false, got 1."),
        ("weight_decay = -1.0", "weight_decay: expected a number of at least 0, got -1.0."),
        ("evaluate_every = -1", "evaluate_every: expected a whole number of at least 0, got -1."),
        ("eval_tasks = 0", "eval_tasks: expected a whole number of at least 1, got 0."),
        ("warmup = 1.5", "warmup: expected a number from 0 to 1, got 1.5."),
        ("temperature = nan", "temperature: expected a number, got nan."),
        ('sampler_options = "{}"', "sampler_options: expected a table, got '{}'."),
        ('out = "run"', "Unknown option in c.toml 'out'."),
    ],
)
def test_a_config_may_hold_what_the_command_line_takes(mempo, settings, text, message):
    Path("c.toml").write_text(text + "\n", encoding="utf-8")
    error = one_line(mempo("train", "--out", "run", "--config", "c.toml"))
    assert message in error
    assert "c.toml" in error
    assert not settings


def test_values_of_a_config_arrive_as_those_of_the_command_line(mempo, settings, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("ok.py").write_text("import pathlib; pathlib.Path('imported').touch()\n", encoding="utf-8")
    Path("c.toml").write_text(
        'plugin = "ok.py"\nlr = 1\nmax_steps = 5\nclip_high = 0.3\nmodel = "~/m"\ninstructions = "~"\nguided = true\n',
        encoding="utf-8",
    )
    code, error = mempo("train", "--out", "run", "--config", "c.toml")
    assert code == 0, error
    ((got, _),) = settings
    assert Path("imported").exists()
    assert (got.optimizer.lr, type(got.optimizer.lr), got.max_steps, got.update.clip_high) == (1.0, float, 5, 0.3)
    assert (got.model, got.instructions, got.guided) == (str(tmp_path / "m"), "~", True)


@pytest.mark.parametrize("option", ["--temperature", "--entropy"])
def test_a_number_that_is_none_is_named(mempo, settings, option):
    assert f"{option}: expected a number, got nan." in one_line(mempo("train", "--out", "run", option, "nan"))
    assert mempo("train", "--out", "run", "--lr", "nan")[0] == 2  # where there are limits, typer may be first
    assert not settings


@pytest.mark.parametrize("command", ["train", "warm-start"])
@pytest.mark.parametrize("device", ["foo", "cuda:99"])
def test_a_device_that_is_not_here_is_named(mempo, command, device):
    error = one_line(mempo(command, "--out", "run", "--model", "nano-mempo", "--device", device))
    assert f"device: expected cpu, or cuda where there is a GPU, got '{device}': " in error


@pytest.mark.parametrize("command", ["train", "warm-start"])
def test_a_seed_that_no_generator_takes_is_refused(mempo, settings, command):
    code, error = mempo(command, "--out", "run", "--model", "nowhere", "--seed", str(10**20))
    assert (code, "--seed" in error) == (2, True)


def test_a_loss_that_is_no_number_is_one_line(mempo, monkeypatch):
    def run(*_, **__):
        raise FloatingPointError("The loss is nan. Lower the learning rate.")

    monkeypatch.setattr("mempo_agents.learners.trainer.Trainer", run)
    assert one_line(mempo("train", "--out", "run")) == "Error: The loss is nan. Lower the learning rate.\n"
