"""`mempo train` and `mempo warm-start` before anything is trained: what a config may hold, and what is refused."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path

import pytest

from mempo_agents import cli

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture
def mempo(monkeypatch, capsys, tmp_path):
    """A function of a command's words: (exit code, stderr). The command runs in an empty folder."""
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


def test_a_constant_goes_with_its_aggregation(mempo, settings):
    code, error = mempo("train", "--out", "run", "--aggregation", "constant", "--constant", "160")
    assert code == 0, error
    assert (settings[0][0].update.aggregation, settings[0][0].update.constant) == ("constant", 160.0)


@pytest.mark.parametrize("best", [True, False])
def test_where_the_models_are_is_said_as_it_is(mempo, settings, best):
    if best:
        Path("run/best").mkdir(parents=True)
    _, error = mempo("train", "--out", "run")
    assert ("The best model is run/best." if best else "The models are in run/checkpoints.") in error


@pytest.mark.parametrize(("rank", "lines"), [("0", 1), ("1", 0)])
def test_of_several_processes_the_first_speaks_and_draws(mempo, settings, monkeypatch, rank, lines):
    drawn = []

    @contextmanager
    def bar(console, begun=0.0):
        drawn.append(console.is_terminal)
        yield lambda *_: None

    monkeypatch.setattr("mempo_agents.progress.training_bar", bar)
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as if stderr were a terminal
    code, error = mempo("train", "--out", "run")
    assert (code, error.count("Done")) == (0, lines)
    assert drawn == [lines == 1]


def _no_model(*_, **__):
    raise AssertionError("the model is loaded")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--out", "file"), "file: expected a folder to write to, found a file."),
        (("--out", "file/run"), "file: expected a folder to write to, found a file."),
        (("--out", "other"), "other holds another run, with other"),
        (("--out", "mine", "--objectives", "3"), "mine holds another run, with other objectives."),
        (("--out", "run", "--policy", "mempo,mempp"), "Unknown policy 'mempp'. Did you mean 'mempo'?"),
        (("--out", "run", "--optimizer", "sgd"), "optimizer: expected 'adamw' or 'muon', got 'sgd'."),
        (("--out", "run", "--trajectories", "t.jsonl"), "t.jsonl: expected a file of trajectories"),
        (("--out", "run", "--drop", "nan"), "drop"),
    ],
)
def test_a_warm_start_checks_what_is_cheap_first(mempo, monkeypatch, words, message):
    Path("file").touch()
    about = {"kind": "warm_start", "chunks": 1, "model": "smollm2", "policy": "mempo", "objectives": 2}
    for folder, value in (("other", {"kind": "train", "seed": 0}), ("mine", about)):
        Path(folder).mkdir()
        Path(folder, "settings.json").write_text(json.dumps(value), encoding="utf-8")
    monkeypatch.setattr("mempo_agents.engines.hf.HFEngine", _no_model)
    code, error = mempo("warm-start", *words)
    assert (code, message in error) == (2, True), error


def test_train_refuses_a_file_for_a_folder_before_the_trainer(mempo, settings):
    Path("file").touch()
    assert "file: expected a folder to write to, found a file." in one_line(mempo("train", "--out", "file"))
    assert not settings


def test_a_small_vocabulary_is_told_of_terse(mempo):
    words = ("--model", "nano-mempo", "--dataset", "world-compact:size=200", "--objectives", "1", "--tasks", "1")
    assert "give --terse." in one_line(mempo("warm-start", "--out", "run", *words, "--device", "cpu"))


def test_a_damaged_checkpoint_without_one_before_it_promises_none(tmp_path):
    from mempo_agents.learners.checkpoint import load_checkpoint
    from mempo_env.errors import DataError

    for step, advice in ((1, "begin anew"), (2, "go on from the checkpoint before it")):
        folder = tmp_path / f"step-{step:08d}"
        folder.mkdir()
        (folder / "state.json").write_text("{", encoding="utf-8")
        with pytest.raises(DataError, match=rf"Remove \S+{folder.name} to {advice}\."):
            load_checkpoint(folder)
