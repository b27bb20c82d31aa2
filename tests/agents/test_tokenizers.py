"""Tokenizers: every character in one token, prompts word for word, whatever the chat template does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo_agents.tokenizers import HFTokenizer, WordTokenizer

MESSAGES = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Who? "},
    {"role": "assistant", "content": "<think>old state</think><search>x</search>"},
    {"role": "user", "content": "<information>\ny\n</information>"},
)


@given(st.text())
def test_words_cover_the_text(text):
    ids, ends = WordTokenizer().encode_with_ends(text)
    assert ids.dtype == ends.dtype == np.int64
    assert len(ids) == len(ends)
    assert (np.diff(np.concatenate([[0], ends])) > 0).all()
    assert (ends[-1] if len(ends) else 0) == len(text)


def test_words_by_hand():
    tokenizer = WordTokenizer()
    _, ends = tokenizer.encode_with_ends("<mem>Ada's  name</mem>\n")
    # < mem > Ada ' s __name < / mem > \n
    assert ends.tolist() == [1, 4, 5, 8, 9, 10, 16, 17, 18, 21, 22, 23]
    a, b = tokenizer.encode("Oslo Oslo"), tokenizer.encode("Oslo")
    assert a[0] == b[0]
    assert a[1] != b[0]
    a[:] = 0
    assert tokenizer.encode("Oslo Oslo")[0] == b[0]  # what was handed out may be changed


def test_a_message_costs_two_marks_and_the_open_turn_one():
    tokenizer = WordTokenizer()
    contents = sum(len(tokenizer.encode(message["content"])) for message in MESSAGES)
    assert len(tokenizer.encode_messages(MESSAGES)) == contents + 2 * 4 + 1
    assert tokenizer.encode_messages(MESSAGES)[:3].tolist() == tokenizer.encode_messages(MESSAGES[:1])[:3].tolist()


def hf(template):
    pytest.importorskip("transformers")
    import copy

    from tiny import tiny_tokenizer

    tokenizer = copy.copy(tiny_tokenizer())
    tokenizer.chat_template = template
    return HFTokenizer(tokenizer, name="tiny")


def test_the_chat_template_is_part_of_the_prompt():
    from tiny import CHAT_TEMPLATE

    codec = hf(CHAT_TEMPLATE)
    ids = codec.encode_messages(MESSAGES)
    text = codec.tokenizer.decode(ids)
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>")
    assert text.endswith("<|im_start|>assistant\n")
    assert (ids == 1).sum() == 5
    assert (ids == 2).sum() == 4


def test_without_a_template_the_prompt_is_the_observation():
    codec = hf(None)
    expected = "\n\n".join(message["content"] for message in MESSAGES) + "\n"
    assert codec.tokenizer.decode(codec.encode_messages(MESSAGES)) == expected


REASONING_STRIPPED = (
    "{% for m in messages %}[{{ m['role'] }}]{% if m['role'] == 'assistant' %}{{ m['content'].split('</think>')[-1] }}"
    "{% else %}{{ m['content'] | trim }}{% endif %}[/]{% endfor %}[assistant]"
)


def test_a_template_that_drops_reasoning_gets_it_back():
    text = hf(REASONING_STRIPPED).render(MESSAGES)
    assert text == (
        "[system]Be brief.[/][user]Who? [/][assistant]<think>old state</think><search>x</search>[/]"
        "[user]<information>\ny\n</information>[/][assistant]"
    )


def test_contents_that_look_like_the_frame_are_not_mixed_up():
    messages = [{"role": "assistant", "content": f"<think>content{i}of2</think>content{1 - i}of2 "} for i in range(2)]
    text = hf(REASONING_STRIPPED).render(messages)
    assert text == "".join(f"[assistant]{m['content']}[/]" for m in messages) + "[assistant]"


def test_a_template_that_loses_messages_is_refused():
    with pytest.raises(ValueError, match="drops or reorders messages"):
        hf("{{ messages[0]['content'] }}").encode_messages(MESSAGES)


def test_ends_refuse_a_tokenizer_that_changes_the_text():
    pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    lower = Tokenizer(models.WordLevel({"a": 0, "[u]": 1}, unk_token="[u]"))
    lower.normalizer, lower.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    codec = HFTokenizer(PreTrainedTokenizerFast(tokenizer_object=lower, unk_token="[u]"), name="lower")
    with pytest.raises(ValueError, match="does not give back"):
        codec.encode_with_ends("A")
