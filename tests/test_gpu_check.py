"""The check for CUDA machines: skips everything aloud where there is none, and says FAIL where something is wrong."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "gpu_check.py"


@pytest.fixture(scope="module")
def gpu_check():
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA: run the script itself")
def test_without_cuda_all_is_skipped_aloud():
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=120)
    lines = done.stdout.splitlines()[1:]
    assert done.returncode == 0, done.stderr
    assert len(lines) >= 9
    assert all(line.startswith("SKIP") and "no CUDA device" in line for line in lines)


@pytest.mark.parametrize("name", ["score_packed", "distributed"])
def test_the_checks_themselves_pass_in_rehearsal(gpu_check, capsys, name):
    assert gpu_check.main(["--device", "cpu", "--only", name]) == 0
    assert f"PASS  {name}" in capsys.readouterr().out


@pytest.mark.slow
def test_the_slower_checks_pass_in_rehearsal(gpu_check, capsys):
    assert gpu_check.main(["--device", "cpu"]) == 0
    assert "FAIL" not in capsys.readouterr().out


def test_a_failing_check_is_said_and_counted(gpu_check, capsys, monkeypatch):
    def wrong(device):
        gpu_check._expect(False, "two differ")

    def missing(device):
        gpu_check._needs("no_such_module", "no-such-package")

    monkeypatch.setattr(gpu_check, "CHECKS", {"wrong": wrong, "missing": missing, "fine": lambda device: "well"})
    assert gpu_check.main(["--device", "cpu"]) == 1
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[:2] for line in lines] == [["FAIL", "wrong"], ["SKIP", "missing"], ["PASS", "fine"]]
    assert "two differ" in lines[0]
    assert "no-such-package is not installed" in lines[1]
    with pytest.raises(SystemExit):
        gpu_check.main(["--only", "nothing of the kind"])


@pytest.mark.gpu
def test_everything_on_cuda():
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
