"""A model's name that is wrong, or a hub that is silent: said at once, not after a minute of retries."""

from __future__ import annotations

import pytest

pytest.importorskip("huggingface_hub")
pytest.importorskip("transformers")

import huggingface_hub
from huggingface_hub import constants, errors

from mempo_agents.engines import hub
from mempo_agents.engines.hf import HFEngine, embedded_names, load_tokenizer
from mempo_agents.engines.hub import hub_options
from mempo_env.errors import DataError


class Hub:
    """Stands in for the hub: what it answers, how often it was asked, and what its cache holds."""

    def __init__(self, monkeypatch, answer=None, cached=()):
        self.answer, self.asked = answer, 0
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", self._info)
        monkeypatch.setattr(
            huggingface_hub, "try_to_load_from_cache", lambda name, file: "/cache" if (name, file) in cached else None
        )

    def _info(self, name, timeout):
        assert timeout <= 10
        self.asked += 1
        if self.answer is not None:
            raise self.answer


def refused(kind):
    import httpx

    request = httpx.Request("GET", "http://hub")
    return kind("no", response=httpx.Response(404, request=request))


def test_a_folder_is_not_asked_for(monkeypatch, tmp_path):
    asked = Hub(monkeypatch)
    assert hub_options(tmp_path) == {}
    assert asked.asked == 0


def test_a_model_that_the_hub_has(monkeypatch):
    asked = Hub(monkeypatch)
    assert hub_options("owner/name") == {}
    assert asked.asked == 1


def test_a_silent_hub_leaves_the_cache(monkeypatch):
    asked = Hub(monkeypatch, ConnectionError("Name or service not known"), cached={("owner/name", "config.json")})
    assert hub_options("owner/name") == {"local_files_only": True}
    with pytest.raises(DataError, match=r"'owner/other': there is no such folder.*does not answer: Name or service"):
        hub_options("owner/other")
    assert asked.asked == 2, "once each, without retries"


def test_a_hub_that_has_no_such_model(monkeypatch):
    Hub(monkeypatch, refused(errors.RepositoryNotFoundError))
    with pytest.raises(DataError, match=r"the hub has no such model, or not for you .*Did you mean 'nano-mempo'\?"):
        hub_options("nano-memp", embedded_names())


def test_what_else_the_hub_says_is_left_to_loading(monkeypatch):
    Hub(monkeypatch, refused(errors.HfHubHTTPError))
    assert hub_options("owner/gated") == {}


def test_offline_nothing_is_asked(monkeypatch):
    asked = Hub(monkeypatch, cached={("owner/name", "tokenizer.json")})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub_options("owner/name") == {}
    with pytest.raises(DataError, match="HF_HUB_OFFLINE keeps from asking"):
        hub_options("owner/other")
    assert asked.asked == 0


@pytest.mark.parametrize("name", ["./no/model", "/no/model", "a/b/c", "no model", "~/no"])
def test_what_can_be_no_hub_name_is_a_missing_folder(monkeypatch, name):
    asked = Hub(monkeypatch)
    with pytest.raises(DataError, match="there is no such folder, and a hub name is NAME or OWNER/NAME"):
        HFEngine(name)
    assert asked.asked == 0


def test_the_engine_asks_before_it_loads_and_heeds_the_answer(monkeypatch):
    """The error comes from the one question, and "from the cache" reaches transformers."""
    Hub(monkeypatch, ConnectionError("silent"))
    with pytest.raises(DataError, match=r"does not answer: silent\. Did you mean 'nano-react'\?"):
        load_tokenizer("nano-reakt")
    seen = []

    def from_pretrained(where, **options):
        seen.append((where, options))
        raise OSError("enough")

    monkeypatch.setattr(hub, "_FILES", ("config.json",))
    Hub(monkeypatch, ConnectionError("silent"), cached={("owner/name", "config.json")})
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", from_pretrained)
    with pytest.raises(DataError, match="enough"):
        load_tokenizer("owner/name")
    assert seen == [("owner/name", {"local_files_only": True})]


def test_the_embedded_names_are_those_that_load():
    assert {"smollm2", "nano-mempo", "nano-react"} <= set(embedded_names())
