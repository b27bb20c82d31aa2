"""A recorded episode in the terminal. The words and colours are those of `mempo_env.rendering`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from mempo_agents.trajectory import Step, Trajectory
from mempo_env.errors import DataError
from mempo_env.rendering import Painter, answer_line, block, paint_diff, question_lines, visible
from mempo_env.types import ActionKind

_TAGS = re.compile(r"^<[^<>]*>|</[^<>]*>$")


def pick(trajectories: Iterable[Trajectory], task: str | None, trajectory: str | None) -> list[Trajectory]:
    """Those that `task` (a name, or a part of one) and `trajectory` (policy/sample, or a policy) fit; at least one.

    A policy without a sample means its first one. Raises DataError where none fits, naming what there is.
    """
    rows = list(trajectories)
    if not rows:
        raise DataError("Expected trajectories, got an empty file.")
    if task is not None:
        tasks = list(dict.fromkeys(row.task_id for row in rows))
        wanted = [name for name in tasks if name == task] or [name for name in tasks if task in name]
        if not wanted:
            raise DataError(f"No task {task!r}. There are {len(tasks)}, such as {', '.join(tasks[:3])}.")
        rows = [row for row in rows if row.task_id in wanted]
    if trajectory is not None:
        policy, _, sample = trajectory.partition("/")
        fitting = [row for row in rows if row.policy == policy and sample in ("", str(row.sample))]
        if not fitting:
            names = list(dict.fromkeys(f"{row.policy}/{row.sample}" for row in rows))
            raise DataError(f"No trajectory {trajectory!r}. There are {', '.join(names[:8])}.")
        if not sample:
            first = min(row.sample for row in fitting)
            fitting = [row for row in fitting if row.sample == first]
        rows = fitting
    return rows


def list_lines(trajectories: Iterable[Trajectory]) -> Iterator[str]:
    """One line a trajectory: what --task and --trajectory take, and how it went. Tabs between the columns."""
    yield "task\ttrajectory\tsteps\treward\tended"
    for row in trajectories:
        reward = "-" if row.failed else f"{row.reward:g}"
        cells = (row.task_id, f"{row.policy}/{row.sample}", str(len(row.steps)), reward, str(row.stop_reason))
        yield "\t".join(map(visible, cells))


def episode_lines(trajectory: Trajectory, *, colour: bool, step: int | None = None) -> Iterator[str]:
    """The task, the steps (or step `step` alone, from 1), and the outcome. Raises ValueError for no such step."""
    if step is not None and step > len(trajectory.steps):
        raise ValueError(f"--step: expected 1 to {len(trajectory.steps)}, got {step}.")
    paint = Painter(colour)
    yield (
        f"{paint('title', f'Task {trajectory.task_id}')}  "
        + paint("dim", f"{trajectory.policy}/{trajectory.sample}, context {trajectory.context}")
    )
    yield from question_lines(trajectory.questions, paint)
    memory = ""
    for number, one in enumerate(trajectory.steps, start=1):
        if step is None or step == number:
            yield from _step_lines(number, len(trajectory.steps), one, memory, paint)
        memory = one.memory if one.memory is not None else memory
    yield from _outcome_lines(trajectory, paint)


def _step_lines(number: int, steps: int, step: Step, memory: str, paint: Painter) -> Iterator[str]:
    yield ""
    shown = f"{len(step.prompt_ids):,} tokens in the prompt"
    if step.history_tokens:
        shown += f", {step.history_tokens:,} with the whole history"
    yield f"{paint('title', f'Step {number} of {steps}')}  {paint('dim', shown)}"
    if step.memory is not None:
        yield f"  {paint('label', 'Memory')}"
        yield from block(paint_diff(memory, step.memory, paint))
    if thought := _text_of(step, "think"):
        yield f"  {paint('label', 'Thought')}"
        yield from block(paint("dim", thought))
    if step.action == ActionKind.INVALID:
        yield f"  {paint('bad', f'No valid action: {step.invalid_reason}')}"
        yield from block(paint("dim", step.response))
    else:
        yield f"  {paint('label', str(step.action).capitalize())} {paint('query', step.argument)}"
    if step.observation:
        yield f"  {paint('label', 'Reply')}"
        yield from block(paint("dim", step.observation))


def _text_of(step: Step, part: str) -> str:
    """What stands in a part of the response, its tags gone; "" when there is none."""
    start, end = step.spans.get(part, (0, 0))
    if start == end:
        return ""
    first = int(step.token_ends[start - 1]) if start else 0
    return _TAGS.sub("", step.sampled_text[first : int(step.token_ends[end - 1])].strip())


def _outcome_lines(trajectory: Trajectory, paint: Painter) -> Iterator[str]:
    yield ""
    if trajectory.failed:
        yield f"{paint('bad', 'Failed, not scored:')} {visible(trajectory.error or '')}"
        return
    style = "good" if trajectory.reward > 0 else "bad"
    yield paint(style, f"Ended: {trajectory.stop_reason}, reward {trajectory.reward:g}")
    yield f"  {paint('label', 'Answer')} {visible(trajectory.answer) if trajectory.answer is not None else 'none'}"
    scored = zip(trajectory.answers, trajectory.em, trajectory.f1, strict=True)
    for number, (golds, em, f1) in enumerate(scored, start=1):
        yield answer_line(number, em, f1, golds[0], paint)
