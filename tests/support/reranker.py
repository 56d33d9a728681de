"""The folder of a reranker that is a causal language model, like Qwen3-Reranker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support import byte_level, tiny
from tests.support.sentence_folders import write_modules

YES, NO = 257, 258  # ids of "yes" and "no" in the tokenizer of `byte_level`
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
TEMPLATE = """<|im_start|>system
Judge. Answer "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {{ messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("Find it") }}
<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}<|im_end|>
{%- if add_generation_prompt %}
<|im_start|>assistant
{{ "<think>\\n\\n</think>\\n\\n" }}
{%- endif %}"""
MESSAGES = {
    "transformer_task": "text-generation",
    "modality_config": {
        "text": {"method": "forward", "method_output_name": "logits"},
        "message": {"method": "forward", "method_output_name": "logits", "format": "flat"},
    },
    "module_output_name": "causal_logits",
    "processing_kwargs": {"chat_template": {"add_generation_prompt": True}},
}


def write(path: Path, false_id: int | None = NO, template: str = TEMPLATE, **more: Any) -> Path:
    """Writes a tiny Qwen3 with a LogitScore module. more: fields of config_sentence_transformers.json."""
    folder = tiny.folder(path, "qwen3", "causal-lm", vocab_size=byte_level.N_TOKENS, max_length=512, tied=True, seed=2)
    byte_level.tokenizer(ends=False).save(str(folder / "tokenizer.json"))
    described = {"eos_token": byte_level.STOP, "pad_token": byte_level.END, "model_max_length": 400}
    kind = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"
    modules = [(kind, {"true_token_id": YES, "false_token_id": false_id}, {})]
    encoder = "sentence_transformers.base.modules.transformer.Transformer"
    fields = {"model_type": "CrossEncoder", "prompts": {"query": INSTRUCTION}, **more}
    write_modules(folder, modules, encoder, MESSAGES, **fields)
    described |= {"tokenizer_class": "PreTrainedTokenizerFast", "padding_side": "left"}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    (folder / "chat_template.jinja").write_text(template)
    return folder
