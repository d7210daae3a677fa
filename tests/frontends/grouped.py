"""A model of transformers whose gradients tell which kernels ran: it has fewer heads of keys than of queries."""

import pytest
from torch import nn

WORDS = 100


def grouped() -> nn.Module:
    """A language model of `WORDS` words and one layer; the test is skipped where transformers is not there."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config)
