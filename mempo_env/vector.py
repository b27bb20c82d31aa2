"""N episodes side by side, with ONE batched search per step for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from mempo_env.checks import whole_number
from mempo_env.env import SearchQAEnv
from mempo_env.episode import Episode
from mempo_env.errors import EpisodeOverError
from mempo_env.library import read_options

Observations = tuple[str, ...]
#: Observations, rewards [N], terminations [N], truncations [N], infos.
VectorStep = tuple[Observations, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


class SearchQAVectorEnv(VectorEnv[Observations, Sequence[str | None], np.ndarray]):
    """What `SyncVectorEnv` over `SearchQAEnv`s would return, faster: the searches of a step go out as one batch.

    `gym.make_vec("MemPO-WikiQA-v0", num_envs=8, ...)` makes one. Row i is an environment of its own, with its own
    generator; what one row does never changes another.

    - Autoreset is Gymnasium's: NEXT_STEP (the step after an end resets, its action is ignored, its reward is 0),
      SAME_STEP (the end resets at once; the last values are in `infos["final_obs"]` and `infos["final_info"]`),
      DISABLED (the caller resets with `options={"reset_mask": ...}`).
    - In DISABLED mode a row that has ended may stay so: its action must then be None. It keeps its last observation,
      gives reward 0, stays terminated or truncated, and has no entry in `infos`.
    - A search that breaks down fails the rows that searched; rows that answered are scored as ever.

    Args:
        num_envs: Rows (N), at least 1.
        autoreset_mode: An `AutoresetMode` or its value.
        **kwargs: Arguments of `SearchQAEnv`, the same for all rows.

    `episodes` gives the rows' `Episode`s, in order.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        **kwargs: Any,
    ) -> None:
        num_envs = whole_number("num_envs", num_envs)
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        first = SearchQAEnv(**kwargs)
        self.envs = [first, *(first.sibling() for _ in range(num_envs - 1))]
        self.num_envs = num_envs
        self.metadata = {**first.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = first.render_mode
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        self.observation_space = batch_space(first.observation_space, num_envs)
        self.action_space = batch_space(first.action_space, num_envs)
        self._terminations = np.zeros(num_envs, dtype=np.bool_)
        self._truncations = np.zeros(num_envs, dtype=np.bool_)

    @property
    def episodes(self) -> tuple[Episode, ...]:
        """The rows' episodes: in progress, or ended."""
        return tuple(env.episode for env in self.envs)

    def reset(  # type: ignore[override]
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        """Begin an episode in every row, or in those of `options["reset_mask"]`.

        Args:
            seed: An integer seeds row i with seed + i; a sequence of N seeds each row, None leaving it as it is.
            options: "split", for all rows; "indices" or "tasks", N entries each, where None leaves the row's task to
                its generator; "reset_mask", bool [N].

        Returns:
            All rows' observations, and the infos of the rows that were reset.
        """
        options = read_options(options)
        mask = self._reset_mask(options.pop("reset_mask", None))
        rows = np.flatnonzero(mask).tolist()
        seeds = self._seeds(seed)
        choices = self._choices(options)
        # Every choice is checked before any row begins anew, so that an error leaves all episodes as they were.
        for row in rows:
            self.envs[row].library.choose(choices[row])
        infos: list[dict[str, Any] | None] = [None] * self.num_envs
        for row in rows:
            _, infos[row] = self.envs[row].reset(seed=seeds[row], options=choices[row])
        self._terminations[mask] = False
        self._truncations[mask] = False
        return self._observations(), stack_infos(infos)

    def step(  # type: ignore[override]
        self, actions: Sequence[str | None], *, finish_reasons: Sequence[str | None] | None = None
    ) -> VectorStep:
        """One step of every row.

        Args:
            actions: N texts. None is allowed only for a row that does not act (see the class).
            finish_reasons: How the sampler stopped, per row; "length" marks a text that was cut off.

        Raises:
            TypeError, ValueError, EpisodeOverError: An action is not acceptable. No row has been stepped then.
        """
        ended = self._terminations | self._truncations
        acting = self._acting(actions, ended)
        reasons = [None] * self.num_envs if finish_reasons is None else list(finish_reasons)
        self._check_length("finish_reasons", reasons)
        for row in acting:
            self.envs[row].episode.act(actions[row], reasons[row])  # type: ignore[arg-type]
        library = self.envs[0].library
        library.serve([self.envs[row].episode for row in acting])

        rewards = np.zeros(self.num_envs, dtype=np.float64)
        infos: list[dict[str, Any] | None] = [None] * self.num_envs
        for row in acting:
            env = self.envs[row]
            env.show()
            observation, reward, terminated, truncated, info = env.outcome()
            rewards[row], self._terminations[row], self._truncations[row] = reward, terminated, truncated
            if self.autoreset_mode is AutoresetMode.SAME_STEP and (terminated or truncated):
                _, begun = env.reset()
                info = {"final_obs": observation, "final_info": info, **begun}
            infos[row] = info
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            for row in np.flatnonzero(ended).tolist():
                _, infos[row] = self.envs[row].reset()
            self._terminations[ended] = False
            self._truncations[ended] = False
        observations = self._observations()
        terminations, truncations = self._terminations.copy(), self._truncations.copy()
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            self._terminations[:] = False
            self._truncations[:] = False
        return observations, rewards, terminations, truncations, stack_infos(infos)

    def truncate(self, row: int) -> None:
        """End a row's episode before its next step: the policy's own window cannot hold what it would see.

        Raises:
            EpisodeOverError: The row has ended, or was never reset.
            ValueError: The autoreset mode is SAME_STEP, in which an end belongs to a step.
        """
        self._refuse_same_step("truncate")
        self.envs[row].episode.truncate()
        self._truncations[row] = True

    def fail(self, row: int, error: str) -> None:
        """End a row's episode as failed before its next step: its policy could not be asked. It is never scored.

        Raises:
            EpisodeOverError: The row has ended, or was never reset.
            ValueError: The autoreset mode is SAME_STEP, in which an end belongs to a step.
        """
        self._refuse_same_step("fail")
        self.envs[row].episode.fail(error)
        self._truncations[row] = True

    def render(self) -> tuple[str | None, ...]:  # type: ignore[override]
        """What each row renders."""
        return tuple(env.render() for env in self.envs)

    def _refuse_same_step(self, what: str) -> None:
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            raise ValueError(f"{what} needs autoreset mode NEXT_STEP or DISABLED: SAME_STEP resets within the step.")

    def _observations(self) -> Observations:
        return tuple(env.episode.observation for env in self.envs)

    def _acting(self, actions: Sequence[str | None], ended: np.ndarray) -> list[int]:
        """The rows whose actions count, after checking them all."""
        self._check_length("actions", actions)
        self.episodes  # noqa: B018  raises before any row is stepped when one was never reset
        acting: list[int] = []
        for row, action in enumerate(actions):
            if ended[row] and self.autoreset_mode is AutoresetMode.NEXT_STEP:
                continue
            if ended[row] and action is None:
                continue
            if ended[row]:
                raise EpisodeOverError(
                    f"Row {row} has ended ({self.envs[row].episode.stop_reason}) and autoreset is disabled. Reset it "
                    'with options={"reset_mask": mask}, or pass None as its action to leave it as it is.'
                )
            if not isinstance(action, str):
                raise TypeError(f"Expected the action of row {row} to be a str, got {type(action).__name__}.")
            acting.append(row)
        return acting

    def _check_length(self, name: str, values: Any) -> None:
        if isinstance(values, str) or not (hasattr(values, "__len__") and hasattr(values, "__getitem__")):
            raise TypeError(f"Expected {self.num_envs} {name}, one per row, in a sequence, got {values!r}.")
        if len(values) != self.num_envs:
            raise ValueError(f"Expected {self.num_envs} {name}, one per row, got {len(values)}.")

    def _reset_mask(self, mask: Any) -> np.ndarray:
        if mask is None:
            return np.ones(self.num_envs, dtype=np.bool_)
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            got = f"{mask.dtype} {mask.shape}" if isinstance(mask, np.ndarray) else type(mask).__name__
            raise TypeError(
                f"Expected options['reset_mask'] to be a bool array of shape ({self.num_envs},), got {got}."
            )
        if not mask.any():
            raise ValueError("Expected options['reset_mask'] to name at least one row, got none.")
        return mask

    def _seeds(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, (int, np.integer)):
            first = whole_number("the seed", seed, least=0)
            return [first + row for row in range(self.num_envs)]
        self._check_length("seeds", seed)
        return [None if value is None else whole_number("a seed", value, least=0) for value in seed]

    def _choices(self, options: dict[str, Any]) -> list[dict[str, Any]]:
        """The single environment's options, row by row."""
        choices: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for plural, name in (("indices", "index"), ("tasks", "task")):
            values = options.pop(plural, None)
            if values is None:
                continue
            self._check_length(f"options[{plural!r}]", values)
            for choice, value in zip(choices, values, strict=True):
                choice[name] = value
        return [{**options, **choice} for choice in choices]


def stack_infos(infos: Iterable[Mapping[str, Any] | None]) -> dict[str, Any]:
    """Per-row infos as Gymnasium's vector form: each key an array [N] beside its mask `_key`, bool [N].

    Numbers and booleans give typed arrays (0 or False where absent), dictionaries are stacked in turn, all else gives
    object arrays (None where absent): exactly what `VectorEnv._add_info` builds row by row, in one pass per key.
    """
    rows = list(infos)
    columns: dict[str, None] = {}
    for info in rows:
        if info is not None:
            columns.update(dict.fromkeys(info))
    stacked: dict[str, Any] = {}
    for key in columns:
        present = [info is not None and key in info for info in rows]
        values = [info[key] if there and info is not None else None for info, there in zip(rows, present, strict=True)]
        stacked[key] = _stack(key, values, present)
        stacked[f"_{key}"] = np.array(present, dtype=np.bool_)
    return stacked


def _stack(key: str, values: list[Any], present: list[bool]) -> Any:
    sample = next(value for value, there in zip(values, present, strict=True) if there)
    if isinstance(sample, dict):
        return stack_infos(values)
    if type(sample) in (int, float, bool) and key != "final_obs":
        return np.array([value if there else 0 for value, there in zip(values, present, strict=True)], type(sample))
    column = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        column[row] = value
    return column
