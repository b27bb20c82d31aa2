"""Composition: which questions make which task, what repeats, and what is refused."""

import os
import pickle
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest

from mempo_env.errors import DataError, UnknownNameError
from mempo_env.tasks import compose, mix
from mempo_env.types import Question, Task


def questions(n: int, name: str = "q") -> list[Question]:
    return [Question(f"{name}:{i}", f"What is {i}?", (str(i),), dataset=name) for i in range(n)]


def numbers(task: Task) -> list[int]:
    return [int(q.id.split(":")[1]) for q in task.questions]


def test_blocks_are_consecutive_and_the_remainder_is_counted():
    tasks = compose(questions(11), 3, method="blocks", split="dev", name="toy")
    assert [numbers(t) for t in tasks] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert tasks.dropped == 2
    assert [t.id for t in tasks] == [f"toy/dev/k3-blocks/{i:06d}" for i in range(3)]
    assert tasks[1].split == "dev"


def test_blocks_of_a_range_go_through_the_sizes_in_turn():
    # 2 + 3 + 4 = 9 questions a round; 15 questions: one round, then 2 and 3, and one question is left.
    tasks = compose(questions(15), (2, 4), method="blocks")
    assert [numbers(t) for t in tasks] == [[0, 1], [2, 3, 4], [5, 6, 7, 8], [9, 10], [11, 12, 13]]
    assert tasks.dropped == 1


@pytest.mark.parametrize("objectives", [1, 2, 3, 10, (2, 5)])
def test_sampling_repeats_no_question_in_a_task_nor_in_an_epoch(objectives):
    tasks = compose(questions(40), objectives, seed=3)
    high = objectives[1] if isinstance(objectives, tuple) else objectives
    per_epoch = 40 // high
    for start in range(0, 40 - per_epoch, per_epoch):
        used = [n for t in tasks[start : start + per_epoch] for n in numbers(t)]
        assert len(used) == len(set(used))


def test_sampling_uses_questions_evenly():
    tasks = compose(questions(60), 6, length=600)  # 60 epochs of 10 tasks
    uses = Counter(n for t in tasks for n in numbers(t))
    assert set(uses.values()) == {60}
    # Each epoch has its own order, and neighbours in the file do not stay neighbours.
    assert numbers(tasks[0]) != numbers(tasks[10])
    together = sum(abs(a - b) == 1 for t in tasks for a, b in zip(numbers(t), numbers(t)[1:], strict=False))
    assert together / 3000 < 0.06  # 59 * 2 / (60 * 59) = 1 / 30 of the pairs by chance


def test_every_order_is_about_as_frequent():
    # 24 orders of 4 questions over 4,800 epochs: 200 each, standard deviation 13.8.
    tasks = compose(questions(4), 4, length=4800)
    orders = Counter(tuple(numbers(t)) for t in tasks)
    assert len(orders) == 24
    assert max(abs(count - 200) for count in orders.values()) < 60


def test_sizes_of_a_range_are_all_used():
    tasks = compose(questions(50), (2, 5), length=400)
    sizes = Counter(t.objectives for t in tasks)
    assert sorted(sizes) == [2, 3, 4, 5]
    assert min(sizes.values()) > 70


def test_a_task_depends_on_seed_and_index_only():
    tasks = compose(questions(30), 4, seed=5)
    forward = [tasks[i] for i in range(30)]
    backward = [compose(questions(30), 4, seed=5)[i] for i in reversed(range(30))][::-1]
    assert forward == backward == list(pickle.loads(pickle.dumps(tasks)))
    assert forward != list(compose(questions(30), 4, seed=6))
    # More tasks do not change those there are.
    assert list(compose(questions(30), 4, seed=5, length=90))[:30] == forward


def test_the_caller_s_random_state_is_neither_used_nor_touched():
    np.random.seed(0)
    before = np.random.get_state()[1].tolist()
    first = list(compose(questions(20), 3))
    np.random.seed(1)
    assert list(compose(questions(20), 3)) == first
    np.random.seed(0)
    list(compose(questions(20), 3))
    assert np.random.get_state()[1].tolist() == before


def test_known_tasks_stay_the_same_for_good():
    # A change here breaks every seed that anyone wrote down.
    assert [numbers(t) for t in compose(questions(10), 3, seed=7)[:3]] == GOLDEN_SAMPLE
    tasks = mix([questions(5, "a"), questions(9, "b")], (2, 4), seed=7)
    assert [[q.id for q in t.questions] for t in tasks[:3]] == GOLDEN_MIX


GOLDEN_SAMPLE = [[1, 3, 0], [5, 6, 9], [8, 2, 4]]
GOLDEN_MIX = [["b:7", "a:1", "a:3"], ["b:0", "a:0"], ["a:3", "b:3", "b:8"]]


def test_the_same_tasks_under_every_hash_seed():
    code = (
        "from mempo_env.tasks import compose, mix; from mempo_env.types import Question\n"
        "q = lambda n, s: [Question(f'{s}:{i}', 't', ('a',)) for i in range(n)]\n"
        "print([[x.id for x in t.questions] for t in [*compose(q(20, 'q'), (2, 4)), *mix([q(9, 'a'), q(7, 'b')], 3)]])"
    )
    outputs = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        outputs.add(done.stdout)
    assert len(outputs) == 1


def test_mix_takes_equal_shares_of_every_set():
    sources = [questions(10, "a"), questions(25, "b"), questions(40, "c")]
    tasks = mix(sources, 6)
    assert len(tasks) == 75
    for task in tasks:
        assert Counter(q.dataset for q in task.questions) == {"a": 2, "b": 2, "c": 2}
        assert len({q.id for q in task.questions}) == 6
    assert tasks[0].id == "mix/k6-mix0/000000"


def test_mix_with_an_uneven_share_rotates_it():
    sources = [questions(12, "a"), questions(12, "b"), questions(12, "c")]
    tasks = mix(sources, 4, length=300)
    doubled = Counter(Counter(q.dataset for q in t.questions).most_common(1)[0][0] for t in tasks)
    assert all(set(Counter(q.dataset for q in t.questions).values()) == {1, 2} for t in tasks)
    assert min(doubled.values()) > 70
    first = Counter(t.questions[0].dataset for t in tasks)
    assert min(first.values()) > 70, "no set always comes first"


def test_mix_refuses_ids_that_repeat_over_sets():
    tasks = mix([questions(2, "a"), questions(2, "a")], 4)
    with pytest.raises(DataError, match=r"unique over all sets.*a:0"):
        tasks[0]


def test_index_errors_say_the_range():
    tasks = compose(questions(12), 3, name="toy", split="dev")
    for index in (12, -13):
        with pytest.raises(IndexError, match=rf"{index} is out of range: toy/dev/k3-s0 has 12 tasks, 0 to 11"):
            tasks[index]
    assert tasks[-1] == tasks[11] == tasks[np.int64(11)]
    assert tasks[10:] == [tasks[10], tasks[11]]
    assert len(list(tasks)) == 12


def test_find_and_from_questions():
    tasks = compose(questions(12), 3, name="toy", split="dev")
    assert tasks.find(tasks[7].id) == tasks[7]
    for bad in ("toy/dev/k3-s0/000012", "toy/dev/k3-s1/000001", "7", ""):
        with pytest.raises(DataError, match="Expected toy/dev/k3-s0/000000 to toy/dev/k3-s0/000011"):
            tasks.find(bad)
    task = tasks.from_questions(("q:3", "q:1"))
    assert numbers(task) == [3, 1]
    assert task.id == "q:3+q:1"
    with pytest.raises(DataError, match=r"Unknown question id 'q:99'.*like 'q:0'"):
        tasks.from_questions(["q:1", "q:99"])
    with pytest.raises(DataError, match="each only once"):
        tasks.from_questions(["q:1", "q:1"])


def test_ids_differ_between_methods_seeds_and_sizes():
    q = questions(12)
    sets = [compose(q, 3), compose(q, 2), compose(q, (2, 3)), compose(q, 3, seed=1), compose(q, 3, method="blocks")]
    everything = [t.id for tasks in [*sets, mix([q], 3)] for t in tasks]
    assert len(everything) == len(set(everything))


@pytest.mark.parametrize("objectives", [0, -1, (3, 2), (0, 2), 1.5, "2", (1, 2, 3), None, True])
def test_impossible_objectives_are_refused(objectives):
    with pytest.raises(DataError, match="objectives: expected a whole number"):
        compose(questions(5), objectives)


def test_too_many_objectives_and_other_mistakes_are_refused():
    with pytest.raises(DataError, match=r"6 objectives needs 6 questions, but toy/dev has 5"):
        compose(questions(5), 6, name="toy", split="dev")
    with pytest.raises(DataError, match="from each of 2 sets"):
        mix([questions(50), questions(1, "b")], 4)
    with pytest.raises(DataError, match="has 0"):
        compose([], 1)
    with pytest.raises(DataError, match="at least one set"):
        mix([], 1)
    with pytest.raises(UnknownNameError, match="Did you mean 'blocks'"):
        compose(questions(5), 2, method="block")
    with pytest.raises(DataError, match="at most 2"):
        compose(questions(5), 2, method="blocks", length=3)
    with pytest.raises(DataError, match="length"):
        compose(questions(5), 2, length=0)


def test_a_hundred_thousand_questions_are_no_burden():
    many = questions(100_000)
    started = time.perf_counter()
    tasks = compose(many, 10)
    last = tasks[99_999]
    assert time.perf_counter() - started < 0.5
    assert last.objectives == 10
    # A task costs some tenths of a millisecond; shuffling anew for each would take seconds here.
    assert len(tasks[:400]) == 400
    assert time.perf_counter() - started < 2
