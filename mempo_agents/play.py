"""One episode in the terminal: a person writes the steps, or a policy does and a person reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mempo_agents.engines.base import Request
from mempo_agents.policies import Policy
from mempo_agents.rollout import step_seed
from mempo_env.env import SearchQAEnv
from mempo_env.rendering import render_lines, visible, wants_colour
from mempo_env.types import Task
from mempo_env.vector import SearchQAVectorEnv

HELP = """\
  s WORDS      search for WORDS                     a X; Y; ...   answer all questions, in order
  m TEXT       write the memory of the next step    t TEXT        write the thought of the next step
  c            show all that a policy would see     r TEXT        send TEXT as it is, tags and all
  ?            this help                            q             give up"""


def watch(policy: Policy, *, task: Task, seed: int, env_kwargs: dict[str, Any]) -> None:
    """Let `policy` play `task`, each step printed as it happens.

    `seed` has the meaning it has for `rollout`: the same seed gives the same episode there and here.
    """
    env = SearchQAVectorEnv(
        1,
        autoreset_mode="Disabled",
        protocol=policy.protocol,
        context=policy.context,
        render_mode="human",
        **env_kwargs,
    )
    env.reset(options={"tasks": [task]})
    while not env.episodes[0].done:
        episode = env.episodes[0]
        request = Request(episode.messages, step_seed(seed, task.id, 0, len(episode.turns)), task)
        (generation,) = policy.act([request])
        env.step([generation.text], finish_reasons=[generation.finish_reason])
    env.close()


class Game:
    """A person's turn to play. `read(prompt)` gives a line and raises EOFError at the end; `say(text)` prints."""

    def __init__(self, env: SearchQAEnv, *, read: Callable[[str], str], say: Callable[[str], None]) -> None:
        self.env = env
        self.read = read
        self.say = say
        self.memory = ""
        self.thought = ""
        self.over = False

    def play(self, **reset: Any) -> None:
        """Play one episode to its end, or to the end of the input. `reset` goes to the environment."""
        _, info = self.env.reset(**reset)
        self.say(visible(self.env.episode.messages[-1]["content"]))
        self.say("\n" + HELP)
        self.over = False
        while not self.over:
            done, most = info["step"], self.env.episode.max_steps
            try:
                line = self.read(f"\nstep {done + 1} of at most {most}> ").strip()
            except EOFError:
                self.say("\nThe input ended before the episode did.")
                return
            info = self._obey(line) or info

    def _obey(self, line: str) -> dict[str, Any] | None:
        """Carry one line out. Returns the new `info` when it was a step."""
        letter, _, text = line.partition(" ")
        text = text.strip()
        if letter in ("m", "t"):
            self._note(letter, text)
        elif letter == "c":
            for message in self.env.episode.messages:
                self.say(f"\n[{message['role']}]\n{visible(message['content'])}")
        elif letter == "q":
            self.over = True
            self.say("Given up; the answers were: " + "; ".join(q.answers[0] for q in self.env.episode.task.questions))
        elif letter in ("s", "a", "r") and text:
            return self._step(letter, text)
        elif letter:
            self.say(HELP)
        return None

    def _note(self, letter: str, text: str) -> None:
        if letter == "t":
            self.thought = text
        elif self.env.protocol.has_memory:
            self.memory = text
        else:
            self.say(f"The protocol {self.env.protocol.name} has no memory: the whole history stays in view.")
            return
        self.say("Noted; it goes out with the next search or answer.")

    def _step(self, letter: str, text: str) -> dict[str, Any] | None:
        compose = self.env.protocol.compose
        answers = text.split(";")
        if letter == "a" and len(answers) != self.env.episode.task.objectives:
            self.say(f"Expected {self.env.episode.task.objectives} answers joined by ';', got {len(answers)}.")
            return None
        try:
            if letter == "s":
                action = compose(memory=self.memory, thought=self.thought, query=text)
            elif letter == "a":
                action = compose(memory=self.memory, thought=self.thought, answers=answers)
            else:
                action = text
        except ValueError as error:
            self.say(str(error))
            return None
        self.thought = ""
        _, _, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            self.over = True
            last = len(self.env.episode.turns) - 1
            self.say("\n".join(render_lines(self.env.episode, colour=wants_colour(), from_turn=last)))
        else:
            self.say(visible(info["observation"]))
        return info
