"""A random language model of two layers and its tokenizer, made in memory: for every test that needs real tokens."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

CORPUS = [
    "<mem>Question 1 fact: Ada Berg was born in Oslo.</mem><think>What is missing? The second question.</think>",
    '<tool_call>{"name": "search", "arguments": {"query": "capital of Norway"}}</tool_call>',
    "<information>\nDoc 1(Title: Oslo) Oslo is the capital of Norway.\n</information>",
    "<search>river through Rome</search> <answer>Oslo; 405 km; unknown</answer>",
    "You answer numbered questions with the help of a search engine. You work in steps.",
] * 4
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@lru_cache
def tiny_tokenizer(*, chat: bool = True) -> Any:
    """Byte-level BPE of about 500 ids, with ChatML marks as special tokens; every text survives a round trip."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",  # as in SmolLM2: a mask must never be made from the pad id
        bos_token="<|im_start|>",
        unk_token="<|endoftext|>",
    )
    wrapped.chat_template = CHAT_TEMPLATE if chat else None
    return wrapped


def tiny_model(kind: str = "llama", *, seed: int = 0, positions: int = 4096) -> Any:
    """A random "llama" (rotary positions) or "gpt2" (learned positions), float32, hidden size 64.

    The weights are large enough that the next token depends on what was read.
    """
    import torch
    from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

    size = len(tiny_tokenizer())
    config: Any
    if kind == "llama":
        config = LlamaConfig(
            vocab_size=size,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=positions,
            initializer_range=0.2,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=2,
        )
    else:
        config = GPT2Config(
            vocab_size=size,
            n_embd=64,
            n_layer=2,
            n_head=4,
            n_positions=positions,
            initializer_range=0.2,
            bos_token_id=1,
            eos_token_id=2,
        )
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    torch.set_rng_state(state)
    return model


def make_tiny_engine(kind: str = "llama", *, seed: int = 0, chat: bool = True, **kwargs: Any) -> Any:
    """A fresh `HFEngine` around them: its weights may be changed freely."""
    from mempo_agents.engines.hf import HFEngine

    return HFEngine(tiny_model(kind, seed=seed), tiny_tokenizer(chat=chat), **kwargs)
