"""The environment on the open web: the tools `search` and `visit`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gymnasium.vector import AutoresetMode

from mempo_env.env import SearchQAEnv
from mempo_env.errors import DataError
from mempo_env.protocols import Protocol, get_protocol
from mempo_env.retrieval.base import Retriever
from mempo_env.retrieval.web import SearchBackend, WebRetriever
from mempo_env.tasks.dataset import Dataset
from mempo_env.vector import SearchQAVectorEnv

WEB_TOOLS = ("search", "visit")


def web_arguments(
    *,
    dataset: str | Path | Dataset | None = None,
    retriever: str | Retriever | SearchBackend = "serper",
    protocol: str | Protocol = "mempo",
    replay: str | Path | None = None,
    max_page_chars: int = 6000,
    **arguments: Any,
) -> dict[str, Any]:
    """The arguments of `SearchQAEnv` (and of `SearchQAVectorEnv`) that make it the web's; see `WebQAEnv`."""
    if dataset is None:
        raise DataError(
            "Searching the web needs questions about the real world: pass dataset=, a file or a hub name, such as "
            "dataset='hotpot_dev.json'. The embedded worlds are made up; the web does not know them."
        )
    if not hasattr(retriever, "visit"):
        retriever = WebRetriever(retriever, replay=replay, max_page_chars=max_page_chars)  # type: ignore[arg-type]
    return {
        "dataset": dataset,
        "retriever": retriever,
        "protocol": get_protocol(protocol, WEB_TOOLS),
        "top_k": 5,
        **arguments,
    }


class WebQAEnv(SearchQAEnv):
    """
    ## Description
    `SearchQAEnv` on the open web, the paper's second setting. Two tools: `search` gives titles, links and snippets,
    `visit` gives the text of one page, cut to a budget. A page that cannot be read is answered by a sentence that says
    why; a search service that fails ends the episode as "failed", unscored.

    ```python
    env = gym.make("MemPO-WebQA-v0", dataset="questions.jsonl", retriever="searxng:http://127.0.0.1:8080")
    ```

    Only http and https addresses of the public internet can be visited, robots.txt is respected, and sizes and times
    are bounded.

    ## Action Space, Observation Space, Starting State, Rewards, Episode End, Information
    As in `SearchQAEnv`. `info["action"]` may also be "visit"; its `hit_ids` hold the page's address.

    ## Arguments
    Those of `SearchQAEnv`, and:
    - `dataset`: questions about the real world; there is no default.
    - `retriever`: "serper" (key in the environment variable SERPER_API_KEY), "serper:URL", "searxng:URL", a
      `SearchBackend` or a `WebRetriever`.
    - `protocol`: its tools become `search` and `visit`. `top_k`: 5.
    - `replay`: a folder that records every answer; later runs take them from there, so that an evaluation can be
      repeated. With `WebRetriever(replay=ReplayCache(folder, "replay"))` nothing goes online at all.
    - `max_page_chars`: how much of a page the policy sees.

    ## Version History
    - v0: first version.
    """

    def __init__(self, objectives: int | tuple[int, int] = 2, **arguments: Any) -> None:
        super().__init__(objectives, **web_arguments(**arguments))


class WebQAVectorEnv(SearchQAVectorEnv):
    """`SearchQAVectorEnv` with the arguments of `WebQAEnv`: the searches of a step go out together, and its visits."""

    def __init__(
        self, num_envs: int = 1, *, autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP, **arguments: Any
    ) -> None:
        super().__init__(num_envs, autoreset_mode=autoreset_mode, **web_arguments(**arguments))
