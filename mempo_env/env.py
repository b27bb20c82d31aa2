"""The environment: k questions, a search engine, and a policy that sees only what the context rule lets it see."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym

from mempo_env.checks import limit, whole_number
from mempo_env.context import ContextRule, get_context
from mempo_env.episode import Episode
from mempo_env.errors import EpisodeOverError, UnknownNameError
from mempo_env.library import Library
from mempo_env.protocols import Budget, Protocol, get_protocol
from mempo_env.rendering import render_episode, render_lines, show_lines, wants_colour
from mempo_env.retrieval.base import Retriever
from mempo_env.rewards import Reward, get_reward
from mempo_env.scoring import get_normaliser
from mempo_env.spaces import Unicode
from mempo_env.tasks.dataset import Dataset


class SearchQAEnv(gym.Env[str, str]):
    """
    ## Description
    The policy must answer several questions in one episode. Each step it writes a text: its memory or thoughts, then
    one search or the final answer. The environment reads that text, runs the search, and shows the policy its next
    context. *How much of the past that context holds is a rule of the environment*: the whole history (ReAct,
    Search-R1), or only the last step, so that what is not in the policy's own memory is gone (MEM1, MemPO).

    ```python
    import gymnasium as gym, mempo_env
    env = gym.make("MemPO-WikiQA-v0", objectives=4)
    observation, info = env.reset(seed=0)
    text = '<mem>Nothing known yet.</mem><think>Start with question 1.</think>'
    text += '<tool_call>{"name": "search", "arguments": {"query": "Oslo"}}</tool_call>'
    observation, reward, terminated, truncated, info = env.step(text)
    ```

    ## Action Space
    `Unicode`: any text. The protocol reads one action in it; what follows the first complete action is cut.

    | protocol | a step | default context |
    |----------|--------|-----------------|
    | `mempo` | `<mem>..</mem><think>..</think>`, then `<tool_call>{json}</tool_call>` or `<answer>` | `last_step` |
    | `mem1` | `<think>..</think>`, which is the memory, then `<search>..</search>` or `<answer>` | `last_step` |
    | `react` | `<think>..</think>`, then `<tool_call>{json}</tool_call>` or `<answer>` | `full` |
    | `search_r1` | `<think>..</think>`, then `<search>..</search>` or `<answer>` | `full` |

    Answers to the questions stand in order, joined by `"; "`. A text without a readable action is answered by a
    message that says what was wrong; it costs a step and never raises.

    ## Observation Space
    `Unicode`: what the policy sees next, as plain text. `info["messages"]` is the same as chat messages; the
    observation is their contents joined by a blank line. Search results come in `<information>..</information>`;
    nothing in a passage or a question can open or close a tag of the protocol.

    ## Starting State
    The instructions and the numbered questions. The task is drawn from the split by the environment's own generator, so
    `reset(seed=3)` and the resets after it always give the same tasks. `options` choose instead:

    | option  | meaning                                                                         |
    |---------|---------------------------------------------------------------------------------|
    | `split` | another split of the data set, for this episode                                 |
    | `index` | the task's index, 0 to number of tasks - 1                                      |
    | `task`  | a `Task`, the id of a task (`info["task_id"]`), or a tuple of question ids      |

    ## Rewards
    0 until the episode ends, then by the `reward` argument: `paper` (1 if every answer is right and every step
    well-formed, else 0), `em` (mean exact match), `f1` (mean F1), `sum_em` (number of right answers). All of them are
    reported in `info["reward_parts"]`. A failed episode has reward NaN: unknown is not zero.

    ## Episode End
    - Terminated: the policy answered, be it on the last step allowed (then it is not truncated as well).
    - Truncated: `max_steps` steps are done (`stop_reason` "max_steps"; the last step's search is not run, as nobody
      would read it), or the next context would exceed `max_context_tokens` ("context_length"; the reply is dropped).
    - Truncated as "failed": the search broke down. The reason is in `info["error"]`, the policy is told nothing.

    A `TimeLimit` wrapper also holds: the smaller limit wins. A step after the end raises `EpisodeOverError`.

    ## Information
    | key | value |
    |-----|-------|
    | `task_id`, `task`, `objectives`, `split` | what is being asked |
    | `step` | steps done |
    | `messages` | the observation as chat messages (`role`, `content`) |
    | `protocol`, `context` | the names of the rules in force |
    | `action`, `argument` | the last action ("search", "answer", "invalid") and its query or answer; None at reset |
    | `invalid_reason` | why there was no action, else None |
    | `format_valid` | whether every step so far obeyed the protocol |
    | `memory` | the memory written in the last step, None if none was |
    | `observation`, `hit_ids` | the last reply as rendered, and the ids of the passages found |
    | `context_chars`, `context_tokens` | size of the observation; tokens are None without `count_tokens` |
    | `stop_reason` | None while running, else "answered", "max_steps", "context_length" or "failed" |
    | `answer`, `em`, `f1` | the answer's text, scores per question; None until the end |
    | `answer_note` | why the answers are not one per question, "" when they are; None until the end |
    | `numeric_conflict` | per question, whether "squad" calls it right only because it drops a sign or a point |
    | `reward_parts` | every reward by name; the key is absent until the episode is scored |
    | `error` | why the episode failed, else None |

    ## Arguments
    - `objectives`: questions per task, 1 or more, or a range `(low, high)`, both ends included.
    - `dataset`: "world", "world-compact", a path, a hub name, or a `Dataset`. `split`: None is its first split.
    - `composition`, `task_seed`: how questions become tasks ("sample" without replacement, or "blocks" of neighbours).
    - `retriever`: "bm25", a search server's address, or a `Retriever`. `corpus`: passages to search instead of the data
      set's own. `top_k`: most hits per search.
    - `protocol`, `context`, `reward`: a name or an object. `context` None is the protocol's default; also "last_k:K"
      and "memory_only". `tools`: what the protocol offers, None for its own choice ("search").
    - `normaliser`: how answers are compared, "squad" (as published) or "careful" (keeps signs and decimal points).
    - `max_steps`: None is 4 * questions + 4. `instructions`: the system message; None is the protocol's, "" is none.
    - `max_passage_chars`, `max_observation_chars`, and the same in `_tokens`: budgets of a passage and of a reply;
      passages are cut between words or left out, tags stay whole. `max_context_tokens`: most tokens of an observation.
      Those in tokens need `count_tokens`, a function from a text to its number of tokens.
    - `render_mode`: "ansi" (`render` returns the episode as coloured text) or "human" (printed as it happens).

    ## References
    MemPO: a memory written by the policy, with credit of its own. MEM1 (Zhou et al., 2025): constant context,
    multi-objective tasks. ReAct (Yao et al., 2023). Search-R1 (Jin et al., 2025).

    ## Version History
    - v0: first version.
    """

    metadata: dict[str, Any] = {"render_modes": ["human", "ansi"], "render_fps": 4}  # noqa: RUF012  as Gymnasium has it

    def __init__(
        self,
        objectives: int | tuple[int, int] = 2,
        *,
        dataset: str | Path | Dataset = "world",
        split: str | None = None,
        composition: str = "sample",
        task_seed: int = 0,
        retriever: str | Retriever = "bm25",
        corpus: str | Path | None = None,
        top_k: int = 3,
        protocol: str | Protocol = "mempo",
        context: str | ContextRule | None = None,
        tools: Sequence[str] | None = None,
        reward: str | Reward = "paper",
        normaliser: str = "squad",
        max_steps: int | None = None,
        instructions: str | None = None,
        max_passage_chars: int | None = None,
        max_observation_chars: int | None = None,
        max_passage_tokens: int | None = None,
        max_observation_tokens: int | None = None,
        max_context_tokens: int | None = None,
        count_tokens: Callable[[str], int] | None = None,
        render_mode: str | None = None,
    ) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise UnknownNameError("render mode", render_mode, self.metadata["render_modes"])
        self.render_mode = render_mode
        self.max_steps = limit("max_steps", max_steps)
        if instructions is not None and not isinstance(instructions, str):
            raise TypeError(f"Expected instructions to be a str or None, got {type(instructions).__name__}.")
        self.instructions = instructions
        self.protocol = get_protocol(protocol, tools)
        self.context = get_context(self.protocol.default_context if context is None else context)
        self.reward = get_reward(reward)
        get_normaliser(normaliser)
        self.normaliser = normaliser
        if count_tokens is None:
            _refuse_token_limits(
                max_passage_tokens=max_passage_tokens,
                max_observation_tokens=max_observation_tokens,
                max_context_tokens=max_context_tokens,
            )
        else:
            _check_counter(count_tokens)
        self.budgets = (
            Budget(max_passage_chars, max_observation_chars),
            Budget(max_passage_tokens, max_observation_tokens, count_tokens or len),
        )
        self.max_context_tokens = limit("max_context_tokens", max_context_tokens)
        self.count_tokens = count_tokens
        self.library = Library(
            dataset=dataset,
            split=split,
            objectives=objectives,
            composition=composition,
            task_seed=task_seed,
            retriever=retriever,
            corpus=corpus,
            top_k=top_k,
            tools=self.protocol.tools,
        )
        self._clear()

    def _clear(self) -> None:
        self.observation_space = Unicode()
        self.action_space = Unicode()
        self._episode: Episode | None = None
        self._shown: int | None = None

    @property
    def episode(self) -> Episode:
        """The episode in progress, or the one that has just ended."""
        if self._episode is None:
            raise EpisodeOverError("No episode has begun. Call reset() first.")
        return self._episode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        task, split = self.library.choose(options)  # before the seed: a refused reset changes nothing
        super().reset(seed=seed)
        if task is None:
            tasks = self.library.tasks(split)
            task = tasks[int(self.np_random.integers(len(tasks)))]
        self._episode = Episode(
            task,
            protocol=self.protocol,
            context=self.context,
            reward=self.reward,
            normaliser=self.normaliser,
            max_steps=4 * task.objectives + 4 if self.max_steps is None else self.max_steps,
            instructions=self.instructions,
            budgets=self.budgets,
            count_tokens=self.count_tokens,
            max_context_tokens=self.max_context_tokens,
            split=split,
        )
        self._shown = None
        self.show()
        return self._episode.observation, self._episode.info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        episode = self.episode
        episode.act(action)
        self.library.serve([episode])
        self.show()
        return self.outcome()

    def outcome(self) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """The five values of the last step."""
        episode = self.episode
        return episode.observation, episode.reward, episode.terminated, episode.truncated, episode.info()

    def render(self) -> str | None:  # type: ignore[override]
        """The whole episode as text for "ansi". "human" prints what was not printed yet and returns None."""
        if self.render_mode == "ansi":
            return render_episode(self.episode)
        if self.render_mode is None:
            gym.logger.warn(
                "render() does nothing without a render mode. Pass one when the environment is made, for example "
                'gym.make("MemPO-WikiQA-v0", render_mode="ansi").'
            )
        self.show()
        return None

    def sibling(self) -> SearchQAEnv:
        """An environment with the same arguments and its own episode and generator, sharing what was loaded."""
        twin = copy.copy(self)
        twin._np_random = twin._np_random_seed = None
        twin._clear()
        return twin

    def show(self) -> None:
        """In human mode, print the steps not printed yet."""
        if self.render_mode != "human" or self._shown == len(self.episode.turns):
            return
        lines = render_lines(self.episode, colour=wants_colour(), from_turn=self._shown)
        show_lines(lines)
        self._shown = len(self.episode.turns)


def _check_counter(count_tokens: Any) -> None:
    if not callable(count_tokens):
        raise TypeError(f"Expected count_tokens to be a function from a text to an integer, got {count_tokens!r}.")
    # A tokenizer's `encode` is easily passed by mistake: it gives the tokens, not their number.
    whole_number("count_tokens(text)", count_tokens("How many tokens?"), least=0)


def _refuse_token_limits(**limits: int | None) -> None:
    for name, value in limits.items():
        if value is not None:
            raise ValueError(
                f"{name}={value} counts tokens, so count_tokens is needed: a function from a text to its number of "
                "tokens, such as lambda text: len(tokenizer.encode(text)). Or use a limit in characters."
            )
