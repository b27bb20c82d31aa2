"""Sections 3 to 7: a step taken apart, a group, a memory's grade, credit on the text, the memory's life.

What depends on the chosen episode is drawn in the page by report.js; what is true of all of them stands here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mempo_agents.report.collect import Run
from mempo_agents.report.comparisons import Comparison
from mempo_agents.report.figures import label, layout
from mempo_agents.report.parts import Column, Figure, Section, Table
from mempo_agents.report.text import join_words, plural

Episodes = Sequence[dict[str, Any]]
PARTS = (
    ("memory", "memory", "@2"),
    ("think", "thought", "@4"),
    ("call", "call", "@5"),
    ("answer", "answer", "@1"),
    ("other", "outside the format", "@6"),
    ("result", "result", "@3"),
)


def step_section(compared: Sequence[Comparison], episodes: Episodes) -> Section:
    figures, rows, default = [], [], ""
    for c, comparison in enumerate(compared):
        shares = _share_rows(comparison, episodes)
        rows += [{"comparison": comparison.label, **row} for row in shares]
        for objectives in comparison.objectives:
            choice = f"{comparison.label}: {objectives} objectives"
            figure = _compression_figure(comparison, objectives, choice, f"compression-{c}-{objectives}")
            if figure:
                figures.append(figure)
                default = default or (choice if objectives == comparison.default_objectives() else "")
    columns = [
        Column("comparison", "comparison"),
        Column("policy", "policy"),
        Column("steps", "steps", ",d"),
        *(Column(key, name, ".1f", "tokens a step") for key, name, _ in PARTS),
    ]
    return Section(
        id="step",
        number=3,
        title="One step, taken apart",
        explanation=(
            "A MemPO step is a memory, a thought and a call (or the answer); the environment then adds the result. "
            "At the "
            "next step only the last of these steps is still there: everything older is thrown away, and whatever the "
            "memory did not keep is gone. Compression is the prompt's size divided by the size that it would have had "
            "with the whole history: 1 keeps everything, 0.1 a tenth."
        ),
        figures=figures,
        tables=[Table("parts-table", "Tokens of an average step, by part", columns, rows)] if rows else [],
        missing=[] if rows else ["These runs hold no trajectories, so no step can be taken apart."],
        widget="step" if rows else "",
        default_choice=default,
    )


def _share_rows(comparison: Comparison, episodes: Episodes) -> list[dict[str, Any]]:
    rows = []
    for series in comparison.series:
        members = [episodes[i] for i in series.episodes]
        steps = sum(row["steps"] for row in members)
        if steps:
            means = {key: sum(row["tokens_by_part"][key] for row in members) / steps for key, _, _ in PARTS}
            rows.append({"policy": series.name, "steps": steps, **means})
    return rows


def _compression_figure(comparison: Comparison, objectives: int, choice: str, id: str) -> Figure | None:
    traces, told = [], []
    for series in comparison.series:
        values = (series.by_objectives().get(objectives) or {}).get("compression_by_step") or []
        if not any(value is not None for value in values):
            continue
        key = comparison.colour_key(series)
        traces.append(
            {
                "type": "scatter", "mode": "lines+markers", "name": label(series.name),
                "x": list(range(1, len(values) + 1)), "y": values,
                "line": comparison.palette.line(key), "marker": comparison.palette.marker(key, 6),
                "hovertemplate": f"<b>{label(series.name)}</b>, step %{{x}}<br>"
                f"prompt / whole history = %{{y:.3f}}<extra></extra>",
            }
        )  # fmt: skip
        told.append(
            f"{series.name} ends at {values[-1]:.2f}" if values[-1] is not None else f"{series.name} is unknown"
        )
    if not traces:
        return None
    return Figure(
        id=id,
        title=f"Compression by step, {objectives} objectives (mean over episodes)",
        alt=f"Prompt size divided by the size with the whole history, by step: {join_words(told)}.",
        spec={"data": traces, "layout": layout("step", "prompt / whole history", yaxis={"range": [0, 1.1]})},
        choice=choice,
        height=320,
    )


def group_section(runs: Sequence[Run], first_episode: dict[str, int]) -> Section:
    groups, rows = [], []
    for run in runs:
        places = {(t.task_id, t.policy, t.sample): i for i, t in enumerate(run.slim)}
        for (task, policy), group in run.groups.items():
            numbers = [first_episode[run.name] + places[task, policy, sample] for sample in group["samples"]]
            groups.append({"run": run.name, "task": task, "policy": policy, "episodes": numbers, **group})
            rows.append(
                {
                    "run": run.name,
                    "task": task,
                    "policy": policy,
                    "size": len(numbers),
                    "mean": group["mean"],
                    "deviation": group["deviation"],
                    "episode": numbers[0],
                }
            )
    groups.sort(key=lambda g: (-len(g["episodes"]), not g["deviation"]))
    columns = [
        Column("task", "task"),
        Column("policy", "policy"),
        Column("run", "run"),
        Column("size", "trajectories", "d"),
        Column("mean", "mean reward", ".4f"),
        Column("deviation", "deviation", ".4f"),
    ]
    largest = len(groups[0]["episodes"]) if groups else 0
    missing = []
    if not groups:
        missing.append("These runs hold no trajectories, so there is no group.")
    elif largest == 1:
        missing.append(
            "Every task was played once here, so each group has one member and its advantage A_T is 0. "
            "`mempo eval --samples 16 --temperature 1 ...` plays each task 16 times."
        )
    return Section(
        id="group",
        number=4,
        title="A group: the same task, played several times",
        explanation=(
            "A trajectory is one played episode. Its reward is 1 when every answer is right and every step "
            "well-formed, "
            "else 0 (unless the run says otherwise). Whether that is good depends on the others: the trajectories of "
            "one "
            "task form a group, and A_T = (reward - mean) / (deviation + 0.000001) compares each with its group. It "
            "is the "
            "advantage of GRPO, one value for all tokens of the trajectory. When all rewards are equal, A_T is 0 and "
            "the "
            "outcome teaches nothing. Failed episodes take no part."
        ),
        tables=[Table("group-table", "All groups", columns, rows)] if rows else [],
        missing=missing,
        widget="group" if largest > 1 else "",
        extra={"groups": groups if largest > 1 else []},
    )


def grade_section(runs: Sequence[Run], graded: int) -> Section:
    rows = []
    for run in runs:
        for step in (run.credit or {}).get("figures", {}).get("by_step", ()):
            row: dict[str, Any] = {"run": run.name, "step": step["step"] + 1, "count": step["memory_reward"]["count"]}
            for name in ("p_memory", "p_history", "memory_reward", "memory_advantage"):
                row[name] = step[name]["mean"]
            rows.append(row)
    columns = [
        Column("run", "run"),
        Column("step", "step", "d"),
        Column("count", "graded memories", "d"),
        Column("p_memory", "P(answer | memory)", ".4g"),
        Column("p_history", "P(answer | history)", ".4g"),
        Column("memory_reward", "R_M", "+.4g"),
        Column("memory_advantage", "A_M", "+.4f"),
    ]
    notes = []
    for run in runs:
        if run.credit:
            source = run.credit["source"]
            notes.append(
                f"{run.name}: scored by {source.get('model', 'an engine')} ({run.credit['file']}), "
                f"baseline {run.credit['figures']['baseline']}."
            )
    return Section(
        id="grade",
        number=5,
        title="A memory's grade",
        explanation=(
            "A memory is graded by the right answer: how probable the model finds it when it has only the task and "
            "this "
            "memory, minus how probable it finds it with everything that happened before, R_M = P(answer | memory) - "
            "P(answer | full history). P is the geometric mean of the answer's token probabilities, so it does not "
            "shrink "
            "with length. Near 0: the memory lost nothing that matters. Negative: it dropped something. Positive: it "
            "says "
            "it better than the history. A_M compares R_M with all other memories of the group: A_M = (R_M - mean) / "
            "(deviation + 0.000001). The first step has no grade, since there is no result to remember yet."
        ),
        tables=[Table("grade-table", "Means by step, all graded trajectories", columns, rows)] if rows else [],
        missing=[] if graded else [no_grades(runs)],
        widget="grade" if graded else "",
        notes=notes,
    )


def no_grades(runs: Sequence[Run]) -> str:
    """The sentence that says that memories are not graded, and the command that grades them."""
    run = next((r for r in runs if r.files.trajectories), None)
    if run is None or run.files.trajectories is None:
        return "These runs hold no trajectories, so there is no memory to grade."
    file = run.files.trajectories.name
    return (
        f"No memory rewards are recorded beside these trajectories. In the run's folder, `mempo credit {file} --model "
        "MODEL --json credit.json` records them; then make this page again."
    )


def credit_section(episodes: Episodes, graded: int, runs: Sequence[Run]) -> Section:
    missing = []
    if not episodes:
        missing.append("These runs hold no trajectories, so there is no text to colour.")
    elif not graded:
        missing.append(f"Without memory rewards every token shows A_T alone. {no_grades(runs)}")
    if episodes and not any(row["advantage"] for row in episodes):
        missing.append(
            "All A_T are 0 here, because no group has members with different rewards: without memory rewards, too, no "
            "token is coloured."
            if not graded
            else "All A_T are 0 here, because no group has members with different rewards; the colours are A_M alone."
        )
    return Section(
        id="credit",
        number=6,
        title="Credit on the text",
        explanation=(
            "What training pushes, token by token. Tokens of the memory (tags included) get A_T + A_M, all other "
            "tokens of "
            "the response A_T. Blue with a full underline is pushed up, orange with a dashed one is pushed down, the "
            "stronger the colour the harder. Grey tokens were forced by guided decoding or cut after the action and "
            "get "
            "nothing. The prompt and the results were not written by the policy and stand outside."
        ),
        missing=missing,
        widget="credit" if episodes else "",
    )


def life_section(episodes: Episodes) -> Section:
    rows = [
        {
            "task": row["task"],
            "trajectory": row["trajectory"],
            "run": row["run"],
            "objective": objective + 1,
            "step": step + 1,
            "episode": number,
            "at_step": step,
        }
        for number, row in enumerate(episodes)
        for objective, step in row["lost"]
    ]
    columns = [
        Column("task", "task"),
        Column("trajectory", "trajectory"),
        Column("run", "run"),
        Column("objective", "objective", "d"),
        Column("step", "gone at step", "d"),
    ]
    concerned = len({row["episode"] for row in rows})
    note = (
        f"In {plural(concerned, 'episode')} of {len(episodes):,} a right answer that stood in the prompt of one step "
        "was no "
        f"longer in that of the next ({plural(len(rows), 'time')} in all)."
        if rows
        else "In no episode did a right answer that once stood in a prompt leave it."
    )
    return Section(
        id="life",
        number=7,
        title="The memory's life",
        explanation=(
            "What the policy changed in its memory from step to step, and where the right answers are at each step: "
            "in the "
            "memory, in the result that came back, in both or in neither. An answer is lost when it stood in the "
            "prompt of "
            "one step and no longer stands in the prompt of the next: the memory in between left it out. Answers are "
            "found "
            "by their words, so a short one can match by chance; yes and no are not traced."
        ),
        tables=[Table("lost-table", "Answers that were lost", columns, rows)] if rows else [],
        missing=[] if episodes else ["These runs hold no trajectories, so there is no memory to follow."],
        notes=[note] if episodes else [],
        widget="life" if episodes else "",
    )
