"""Whether a hub name can be had, asked once: left to itself, the hub library tries an unreachable hub for a minute."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mempo_env.errors import DataError

# Whichever of these a stored model or tokenizer has.
_FILES = ("config.json", "adapter_config.json", "tokenizer_config.json", "tokenizer.json")
_TIMEOUT_SECONDS = 10.0


def hub_options(name: str | Path, embedded: Iterable[str] = ()) -> dict[str, Any]:
    """Arguments of `from_pretrained` for a folder or a hub name: none, or "from the cache" where the hub is silent.

    Raises DataError at once for a name that is no folder, not in the cache and not on a hub within reach
    (HF_HUB_OFFLINE is no reach). embedded: names that come with packages, for the hint.
    """
    name = str(name)
    if Path(name).expanduser().is_dir():
        return {}
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        raise DataError(
            _text(name, "there is no such folder, and a hub name is NAME or OWNER/NAME.", embedded)
        ) from None
    cached = any(isinstance(try_to_load_from_cache(name, file), str) for file in _FILES)
    if constants.HF_HUB_OFFLINE:
        if cached:
            return {}
        reason = "there is no such folder, the hub's cache has no such model, and HF_HUB_OFFLINE keeps from asking."
        raise DataError(_text(name, reason, embedded))
    try:
        HfApi().model_info(name, timeout=_TIMEOUT_SECONDS)
    except RepositoryNotFoundError:
        reason = "there is no such folder, and the hub has no such model, or not for you (`hf auth login`)."
        raise DataError(_text(name, reason, embedded)) from None
    except HfHubHTTPError:
        return {}  # it answered; what it has against this name, loading will say
    except Exception as error:  # of the HTTP library, whichever it is: no answer
        if cached:
            return {"local_files_only": True}
        reason = f"there is no such folder, the hub's cache has no such model, and the hub does not answer: {error}."
        raise DataError(_text(name, reason, embedded)) from None
    return {}


def _text(name: str, reason: str, embedded: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, embedded := list(embedded), n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"Could not load the language model {name!r}: {reason}{hint} Embedded: {', '.join(embedded)}."
