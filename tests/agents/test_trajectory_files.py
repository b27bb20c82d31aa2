"""Trajectory files: nothing is lost, and a damaged file says where."""

import dataclasses
import json
import math

import numpy as np
import pytest
from agents_world import make_step, make_trajectory

from mempo_agents.files import TrajectoryWriter, read_trajectories, resume_trajectories, to_record, write_trajectories
from mempo_env.errors import DataError
from mempo_env.types import StopReason

ODD = "Crème – 東京 🧠 \u2028 \ud800 \x00 \r\n </mem>"


def equal(a, b) -> bool:
    """Deep equality in which NaN equals NaN and arrays must agree in dtype."""
    if dataclasses.is_dataclass(a):
        return type(a) is type(b) and all(equal(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, float) and math.isnan(b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, tuple):
        return type(b) is tuple and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


def hard_trajectory():
    steps = [
        make_step(
            [5, 6, 7], 3, 2,
            logprobs=np.array([-0.1, math.nan, -1e-38], dtype=np.float32),
            policy_mask=np.array([True, False, True]),
            token_ends=np.array([1, 1, 4], dtype=np.int64),
            spans={"memory": (0, 2), "call": (2, 3)},
            sampled_text=ODD, response=ODD[:4], memory=ODD, observation=ODD, hit_ids=("a", "b"), history_tokens=3,
            messages=({"role": "user", "content": ODD}, {"role": "assistant", "content": ""}),
        ),
        make_step([5, 6, 7, 100, 101, 102, 8, 2**62], 0, invalid_reason="length", finish_reason="length"),
        make_step([5, 9], 1),
        make_step([], 1),
    ]  # fmt: skip
    return make_trajectory(
        steps, reward=math.nan, em=(), f1=(), reward_parts={"f1": math.nan}, stop_reason=StopReason.FAILED, error="x",
        answer=None, metadata={"engine": ODD}, guided=True, seed=2**63 - 1, seconds=0.1 + 0.2,
    )  # fmt: skip


def test_round_trip_is_exact(tmp_path):
    rows = [hard_trajectory(), make_trajectory([]), make_trajectory([make_step(4, 2)])]
    assert write_trajectories(tmp_path / "a.jsonl", rows) == 3
    back = list(read_trajectories(tmp_path / "a.jsonl"))
    assert all(map(equal, rows, back))
    write_trajectories(tmp_path / "b.jsonl", back)
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_lines_are_strict_json_with_a_version(tmp_path):
    write_trajectories(tmp_path / "a.jsonl", [hard_trajectory()])
    (line,) = (tmp_path / "a.jsonl").read_text("ascii").splitlines()
    record = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert record["schema_version"] == 1
    assert record["reward"] is None
    assert record["steps"][0]["logprobs"][1] is None


def test_a_growing_history_is_written_once():
    def size(steps: int) -> int:
        rows, messages, prompt = [], [], []
        for _ in range(steps):
            messages.append({"role": "user", "content": "m" * 200 + str(len(messages))})
            prompt = [*prompt, *range(50)]
            rows.append(make_step(prompt, 3, messages=tuple(messages)))
            prompt = [*prompt, *rows[-1].response_ids.tolist()]
        return len(json.dumps(to_record(make_trajectory(rows))))

    assert size(40) < 2.3 * size(20)  # quadratic growth would give about 4


def test_corrupt_lines_are_named(tmp_path):
    path = tmp_path / "a.jsonl"
    write_trajectories(path, [make_trajectory([make_step(4, 2)]) for _ in range(3)])
    good = path.read_text().splitlines()
    for bad, message in [
        ("{nonsense", "line 2: expected a trajectory as one JSON object"),
        ("[1, 2]", "line 2: expected a trajectory with a schema_version"),
        (good[1].replace('"schema_version":1', '"schema_version":99'), "line 2: expected schema_version 1, got 99"),
        (good[1].replace('"answer"', '"anser"'), "line 2: not a whole trajectory: the key 'answer' is missing"),
        (good[1].replace('"token_ends":[1,2]', '"token_ends":[1]'), "line 2: .* token_ends has 1 values for 2"),
        (good[1].replace('"shared":0', '"shared":7'), "line 2: .* prompt.shared is 7"),
        (good[1].replace('"stop_reason":"answered"', '"stop_reason":"bored"'), "line 2: .*bored"),
        ("\udcff\udcfe", "line 2: expected a trajectory as one JSON object"),
    ]:
        path.write_bytes("\n".join([good[0], bad, good[2], ""]).encode("utf-8", "surrogateescape"))
        reader = read_trajectories(path)
        next(reader)
        with pytest.raises(DataError, match=message):
            next(reader)
        with pytest.raises(DataError, match="line 2"):
            resume_trajectories(path)


def test_only_resuming_drops_a_torn_last_line(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [make_trajectory([make_step(4, 2)], sample=i) for i in range(3)]
    write_trajectories(path, rows)
    whole = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == 10]
    for cut in [1, ends[0] - 1, ends[0] + 1, ends[1] + 40, len(whole) - 1]:
        path.write_bytes(whole[:cut])
        kept = sum(end <= cut for end in ends)
        if cut + 1 in ends:  # a line that lacks nothing but its end still reads
            assert len(list(read_trajectories(path))) == kept + 1
        else:
            with pytest.raises(DataError, match="a run was killed while writing"):
                list(read_trajectories(path))
        with pytest.raises(DataError, match="torn"):
            TrajectoryWriter(path, append=True)
        assert len(resume_trajectories(path)) == kept
        assert path.read_bytes() == whole[: ends[kept - 1] if kept else 0]
        write_trajectories(path, rows[kept:], append=True)
        assert path.read_bytes() == whole
    assert resume_trajectories(tmp_path / "none.jsonl") == []
    with pytest.raises(DataError, match="found none"):
        list(read_trajectories(tmp_path / "none.jsonl"))


def test_each_line_is_on_disk_before_the_next_is_made(tmp_path):
    path = tmp_path / "a.jsonl"
    with TrajectoryWriter(path) as writer:
        for count in (1, 2):
            writer.write(make_trajectory([make_step(4, 2)]))
            assert len(list(read_trajectories(path))) == count


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("steps", 0, "response_ids"), [1.5, 2.5], "whole numbers"),
        (("steps", 0, "response_ids"), [10**30, 1], "whole numbers"),
        (("steps", 0, "prompt", "ids"), [True, False, True, True], "whole numbers"),
        (("steps", 0, "messages"), [-1], "message -1 is not among"),
        (("head",), [99], "message 99 is not among"),
        (("steps", 0, "spans"), {"memory": [1, 3]}, "outside the 2 response ids"),
        (("steps", 0, "response"), 5, "expected a text, got 5"),
        (("answers",), ["Paris"], "a list of accepted answers, got 'Paris'"),
        (("task_id",), None, "expected a text, got None"),
    ],
)
def test_values_that_would_mean_something_else_are_refused(tmp_path, path, value, message):
    record = to_record(make_trajectory([make_step(4, 2)]))
    target = record
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps(record) + "\n")
    with pytest.raises(DataError, match=f"line 1: not a whole trajectory: .*{message}"):
        list(read_trajectories(file))
