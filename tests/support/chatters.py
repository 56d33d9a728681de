"""The folder of a chat model: a tiny Llama or Qwen2 with a byte-level tokenizer and ChatML's template."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors

from npformer.text.chat_template import render
from tests.support import byte_level, tiny

END, START, STOP = 256 + 3, 256 + 4, 256 + 5  # ids of `byte_level`
TEMPLATE = """{{- bos_token }}{% for message in messages %}
{%- if loop.first and message.role != 'system' %}<|im_start|>system
You help.<|im_end|>
{% endif %}
{%- if message.role not in ('system', 'user', 'assistant') %}{{ raise_exception('unknown role') }}{% endif %}
{{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
{%- if enable_thinking is defined and not enable_thinking %}{{ 'no thought\\n' }}{% endif %}"""


@contextmanager
def rendering_once() -> Iterator[None]:
    """Caches renderings, because each one starts a process, which takes a fifth of a second."""
    found: dict[str, list[str]] = {}

    def remembered(*given: Any) -> list[str]:
        key = json.dumps(given)
        if key not in found:
            found[key] = render(*given)
        return found[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("npformer.text.chat.render", remembered)
        # the random marks must be the same in every rendering, because they are part of the key in the cache
        patch.setattr("npformer.text.chat.secrets.token_hex", lambda n: "7d1" * n)
        yield


def folder(path: Path, family: str = "qwen2", template: str = TEMPLATE, generation: Any = None, **sizes: Any) -> Path:
    """Writes the folder. generation: the content of generation_config.json. sizes: fields of `Config`."""
    fields = {"vocab_size": byte_level.N_TOKENS, "max_length": 512, "seed": 2, "tied": True}
    made = tiny.folder(path, family, "causal-lm", **{**fields, **sizes})
    tokenizer = byte_level.tokenizer(ends=False)
    begin = [(byte_level.END, END)]  # this token precedes each text, as in Llama's tokenizer
    tokenizer.post_processor = processors.TemplateProcessing(f"{byte_level.END} $A", special_tokens=begin)
    tokenizer.save(str(made / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": byte_level.END,
        "eos_token": byte_level.STOP,
    }
    (made / "tokenizer_config.json").write_text(json.dumps({**described, "chat_template": template}))
    settings = {"eos_token_id": [END, STOP], **(generation or {})}
    (made / "generation_config.json").write_text(json.dumps(settings))
    return made
