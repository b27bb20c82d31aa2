"""The model: a standard Llama of about a million parameters, in ordinary transformers format."""

from __future__ import annotations

from typing import Any

WIDTH, LAYERS, HEAD = 128, 4, 64
WINDOW_TOKENS = 4096


def nano_model(
    tokenizer: Any, *, width: int = WIDTH, layers: int = LAYERS, seed: int = 0, dtype: str = "bfloat16"
) -> Any:
    """A random `LlamaForCausalLM` for `tokenizer`, in `dtype`. The same at every call with the same arguments."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // HEAD,
        num_key_value_heads=width // HEAD,
        max_position_embeddings=WINDOW_TOKENS,
        tie_word_embeddings=True,
        rope_theta=10_000.0,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return model.to(getattr(torch, dtype))
