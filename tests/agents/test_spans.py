"""Spans: which tokens a tag's text is made of, for any tokenizer, from the sampled ids themselves."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from mempo_agents import spans
from mempo_agents.spans import decode_text, decode_with_ends, token_ends, token_spans

CORPUS = [
    "<mem>The memory of the search so far: Ana Belén was born in Crème, 1914–1918.</mem>",
    "<think>What is still missing? The second question, 東京.</think>",
    '<tool_call>{"name":"search","arguments":{"query":"capital of Peru"}}</tool_call>',
    "</mem>\n<think></think><answer>Lima; Quito</answer> don't .",
] * 5


def _train(tokenizer: Tokenizer, trainer) -> Tokenizer:
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_level() -> Tokenizer:
    """GPT-2's family. No split at punctuation, so that merges cross the edges of tags."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\s?\S+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return _train(
        tok, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, special_tokens=["<|im_end|>", "<a b>"])
    )


def sentencepiece() -> Tokenizer:
    """Llama 2's family: a blank is part of the word, unknown characters fall back to bytes."""
    tok = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tok.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>"] + [f"<0x{b:02X}>" for b in range(256)]
    return _train(tok, trainers.BpeTrainer(vocab_size=520, special_tokens=special))


def metaspace() -> Tokenizer:
    """T5's family."""
    tok = Tokenizer(models.Unigram())
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    tok.decoder = decoders.Metaspace()
    return _train(tok, trainers.UnigramTrainer(vocab_size=150, unk_token="<unk>", special_tokens=["<unk>"]))


def wordpiece() -> Tokenizer:
    """BERT's family: decoding is not the inverse of encoding."""
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.decoder = decoders.WordPiece(cleanup=True)
    return _train(tok, trainers.WordPieceTrainer(vocab_size=260, special_tokens=["[UNK]"]))


def word_level() -> Tokenizer:
    tok = Tokenizer(models.WordLevel(unk_token="?"))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    return _train(tok, trainers.WordLevelTrainer(vocab_size=60, special_tokens=["?"]))


class Characters:
    """A tokenizer of our own, known only by `decode`."""

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


FAMILIES = {f.__name__: f() for f in (byte_level, sentencepiece, metaspace, wordpiece, word_level)}


def definition(tokenizer, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Slow and plain. The text that the first k tokens surely give, and the most they can be said to give."""
    text = decode_text(tokenizer, ids)
    agree = []
    for k in range(len(ids)):
        prefix = decode_text(tokenizer, ids[: k + 1])
        n = 0
        while n < min(len(prefix), len(text)) and prefix[n] == text[n]:
            n += 1
        agree.append(n)
    agree = np.maximum.accumulate(np.array([*agree[:-1], len(text)] if agree else [], dtype=np.int64))
    return agree, np.array(agree)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_ends_equal_the_plain_definition(family, data):
    tokenizer = FAMILIES[family]
    pieces = st.sampled_from(
        ["<mem>", "</mem>", "<think>", "東京", " é", "🧠", "a b", ".", "\n", "  ", "Lima;", "don't", "<|im_end|>"]
    )
    text = "".join(data.draw(st.lists(pieces | st.text(max_size=4), max_size=30)))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    want, _ = definition(tokenizer, ids)
    np.testing.assert_array_equal(token_ends(tokenizer, ids), want)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), length=st.integers(0, 60))
def test_any_ids_at_all(family, seed, length):
    """Sampled ids need not be what encoding gives: half characters, special tokens, bytes that are no text."""
    tokenizer = FAMILIES[family]
    ids = [random.Random(f"{seed}/{i}").randrange(tokenizer.get_vocab_size()) for i in range(length)]
    text, ends = decode_with_ends(tokenizer, ids)
    assert text == decode_text(tokenizer, ids)
    assert ends.shape == (length,)
    assert np.all(np.diff(ends, prepend=0) >= 0)
    assert length == 0 or ends[-1] == len(text)
    if "�" not in text and family in ("metaspace", "wordpiece", "word_level"):
        np.testing.assert_array_equal(ends, definition(tokenizer, ids)[0])


def test_a_split_character_belongs_to_the_token_that_completes_it():
    tokenizer = FAMILIES["byte_level"]
    ids = tokenizer.encode("a🧠b", add_special_tokens=False).ids
    # a | F0 | 9F | A7 | A0 | b, four bytes of one character: nothing, nothing, nothing, then all of it
    assert len(ids) == 6
    assert token_ends(tokenizer, ids).tolist() == [1, 1, 1, 1, 2, 3]


def test_the_ids_decide_not_another_encoding():
    """Ids he|llo and hello have the same text; encoding it again would give one token and lose the boundary."""
    tok = Tokenizer(
        models.BPE(vocab={"h": 0, "e": 1, "l": 2, "o": 3, "he": 4, "ll": 5, "llo": 6, "hello": 7}, merges=[])
    )
    tok.decoder = decoders.Fuse()
    assert token_ends(tok, [4, 6]).tolist() == [2, 5]
    assert token_ends(tok, [7]).tolist() == [5]
    assert token_ends(tok, [0, 1, 2, 2, 3]).tolist() == [1, 2, 3, 4, 5]


def test_a_transformers_tokenizer():
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=FAMILIES["byte_level"], eos_token="<|im_end|>")
    ids = tokenizer("<mem>don't .</mem>", add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
    text, ends = decode_with_ends(tokenizer, ids)
    assert text == "<mem>don't .</mem><|im_end|>"
    assert ends[-2] == len("<mem>don't .</mem>")


def test_characters():
    assert token_ends(Characters(), [ord(c) for c in "<mem>"]).tolist() == [1, 2, 3, 4, 5]
    assert token_ends(Characters(), []).tolist() == []


def test_a_token_over_two_tags_belongs_to_the_earlier():
    #  tokens: "<mem>" "x" "</mem" "><" "think>" "y" "</think>"     ends of the text below
    pieces = ["<mem>", "x", "</mem", "><", "think>", "y", "</think>"]
    ends = np.cumsum([len(p) for p in pieces])
    text = "".join(pieces)
    cut = text.index("<think>")
    assert token_spans(ends, {"memory": (0, cut), "think": (cut, len(text))}) == {"memory": (0, 4), "think": (4, 7)}


def test_a_token_that_enters_a_span_from_outside_belongs_to_it():
    pieces = ["Well", ".<", "mem", ">", "x", "</mem", ">\n", "Bye"]
    ends = np.cumsum([len(p) for p in pieces])
    text = "".join(pieces)
    span = (text.index("<mem>"), text.index("</mem>") + 6)
    assert token_spans(ends, {"memory": span}) == {"memory": (1, 7)}


def test_empty_tokens_go_with_the_character_that_follows():
    # "a" | half | half | "東" | nothing | "b"
    ends = np.array([1, 1, 1, 2, 2, 3])
    assert token_spans(ends, {"memory": (1, 2)}) == {"memory": (1, 4)}
    assert token_spans(ends, {"memory": (0, 1), "think": (2, 3)}) == {"memory": (0, 1), "think": (4, 6)}


def test_a_span_inside_anothers_token_is_empty():
    ends = np.array([20])
    assert token_spans(ends, {"think": (10, 20), "memory": (0, 10)}) == {"think": (1, 1), "memory": (0, 1)}


def test_bad_spans_are_refused():
    with pytest.raises(ValueError, match="inside another span"):
        token_spans(np.array([5, 9]), {"memory": (0, 5), "think": (4, 9)})
    with pytest.raises(ValueError, match="start <= end"):
        token_spans(np.array([5, 9]), {"memory": (5, 2)})
    with pytest.raises(ValueError, match="non-decreasing"):
        token_spans(np.array([5, 3]), {})


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_every_token_that_touches_a_span_is_in_exactly_one(data):
    """The rule, checked one token at a time."""
    widths = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=25))
    ends = np.cumsum(widths)
    starts = ends - widths
    cuts = sorted(data.draw(st.sets(st.integers(0, int(ends[-1])), min_size=2, max_size=6)) if ends[-1] > 4 else [0])
    char_spans = {f"s{i}": (a, b) for i, (a, b) in enumerate(zip(cuts[::2], cuts[1::2], strict=False))}
    got = token_spans(ends, char_spans)
    for t in range(len(widths)):
        if widths[t]:
            touched = [n for n, (a, b) in char_spans.items() if starts[t] < b and ends[t] > a]
        else:
            touched = [n for n, (a, b) in char_spans.items() if a <= starts[t] < b]
        owners = [n for n, (a, b) in got.items() if a <= t < b]
        if widths[t]:
            assert owners == touched[:1]
        else:
            assert len(owners) <= 1
            following = next((u for u in range(t, len(widths)) if widths[u]), None)
            if touched and following is not None and not owners:
                pytest.fail(f"empty token {t} lost")


@pytest.mark.parametrize("family", FAMILIES)
def test_cost_is_linear(family, monkeypatch):
    """Tokens decoded, not seconds: at most a small multiple of the length, also where nothing is text."""
    tokenizer = FAMILIES[family]
    rng = random.Random(1)
    for ids in (
        tokenizer.encode(" ".join(CORPUS) * 5, add_special_tokens=False).ids,
        [rng.randrange(tokenizer.get_vocab_size()) for _ in range(3000)],
    ):
        decoded = 0
        plain = spans._decoder(tokenizer)

        def counting(part, plain=plain):
            nonlocal decoded
            decoded += len(part)
            return plain(part)

        monkeypatch.setattr(spans, "_decoder", lambda _, f=counting: f)
        token_ends(tokenizer, ids)
        monkeypatch.undo()
        assert decoded < 20 * len(ids)
