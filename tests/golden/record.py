"""Records every stage of a torch model as it runs, under npformer's names.

The numbers are transformers' own: forward hooks read them from its modules, and a wrapper around its eager attention
reads the stages between modules. Only `make.py` uses this; it needs torch and transformers.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers.activations import ACT2FN
from transformers.models.bloom import modeling_bloom
from transformers.models.deberta_v2 import modeling_deberta_v2
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.mpnet import modeling_mpnet
from transformers.models.opt import modeling_opt

from tests.golden import modules
from tests.support.in_double import in_double, root

TABLES = {
    "distilbert": modules.DISTILBERT,
    "bert": modules.BERT,
    "electra": modules.ELECTRA,
    "roberta": modules.ROBERTA,
    "albert": modules.ALBERT,
    "mpnet": modules.MPNET,
    "modernbert": modules.MODERNBERT,
    "deberta-v2": modules.DEBERTA,
    "nomic_bert": modules.NOMIC_BERT,
    "gpt2": modules.GPT2,
    "bart": modules.BART,
    "t5": modules.T5,
    "llama": modules.LLAMA,
    "mistral": modules.LLAMA,
    "qwen2": modules.LLAMA,
    "qwen3": modules.LLAMA,
    "gemma2": modules.GEMMA,
    "gemma3_text": modules.GEMMA,
    "gpt_neox": modules.GPT_NEOX,
    "opt": modules.OPT,
    "bloom": modules.BLOOM,
    "phi3": modules.PHI3,
    "smollm3": modules.LLAMA,
    "olmo2": modules.OLMO2,
}


modeling_deberta_v2.scaled_size_sqrt = root  # replaced for float32, too, so that the root is rounded only once
# Attention without `eager_attention_forward`: module -> the class, and the names of its projections.
OWN_ATTENTION = {
    modeling_mpnet: (modeling_mpnet.MPNetSelfAttention, ("q", "k", "v")),
    modeling_deberta_v2: (
        modeling_deberta_v2.DisentangledSelfAttention, ("query_proj", "key_proj", "value_proj")
    ),
    modeling_bloom: (modeling_bloom.BloomAttention, ()),
}  # fmt: skip
PER_TEXT = ("pooler", "pooled")  # stages (B, D); the logits of a head for whole texts also have one row per text


def stages(
    model: Any, input_ids: np.ndarray, attention_mask: np.ndarray, **inputs: np.ndarray
) -> dict[str, list[np.ndarray]]:
    """Returns every stage of one run, as one flat array per text.

    Padding is removed: arrays (B, L, ...) keep the rows of tokens, and arrays (B, H, L, L) their rows and columns.
    """
    heard: dict[str, list[np.ndarray]] = {}
    admitted = [np.flatnonzero(row) for row in attention_mask.reshape(-1, attention_mask.shape[-1])]

    def hear(name: str, array: np.ndarray) -> None:
        if name.startswith("by_head "):  # columns of head 0's query, key and value, then head 1's, ...
            parts = np.split(array.reshape(*array.shape[:2], model.config.num_attention_heads, -1), 3, axis=-1)
            for each, part in zip(("query", "key", "value"), parts, strict=True):
                hear(f"{name.removeprefix('by_head ')}.{each}", part.reshape(*part.shape[:2], -1))
        elif name.startswith("by_width "):  # columns of all queries, then keys, then values; there are fewer key heads
            c = model.config
            ends = np.cumsum([c.num_attention_heads, c.num_key_value_heads]) * c.head_dim
            for each, part in zip(("query", "key", "value"), np.split(array, ends, axis=-1), strict=True):
                hear(f"{name.removeprefix('by_width ')}.{each}", part)
        elif " " in name:  # the parts of one module's output
            names = name.split()
            for each, part in zip(names, np.split(array, len(names), axis=-1), strict=True):
                hear(each, part)
        elif name == "spans":
            hear("start_logits", array[..., 0])
            hear("end_logits", array[..., 1])
        elif name not in heard:  # DeBERTa later projects its distance table with the same weights
            heard[name] = _by_text(name, array, admitted)

    given = {"input_ids": input_ids, "attention_mask": attention_mask, **inputs}
    with torch.no_grad(), in_double() if model.dtype == torch.float64 else nullcontext(), recording(model, hear):
        model(**{name: torch.from_numpy(array) for name, array in given.items()})
    return heard


@contextmanager
def recording(model: Any, hear: Callable[[str, np.ndarray], None]) -> Iterator[None]:
    """Calls hear(stage, array) for each stage of the runs inside the block."""
    table, module_of_family = TABLES[model.config.model_type], sys.modules[type(model).__module__]
    handles, scope_of = [], {}
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.Identity):  # stands for a norm that the layer does not have
            continue
        path = path.removeprefix(model.base_model_prefix + ".")
        if model.config.model_type == "opt":
            path = path.removeprefix("decoder.")
        path = re.sub(r"\bblock\.(\d+)(?:\.layer\.(\d+))?", _of_block, path)  # of T5
        number = re.search(r"\b(?:layers?|h)\.(\d+)\.", path + ".")  # not ALBERT's albert_layers
        before, after = table.get(re.sub(r"\b(layers?|h)\.\d+", r"\1.*", path), ("", ""))
        if number:
            before, after = (name.replace("*", number[1]) for name in (before, after))
            scope_of[module] = _scope(path, number[1])
        if before == "pooled" and not (hasattr(model, "pre_classifier") or _pools(model)):
            before = ""  # a token classifier reads the last layer's output, which that layer records
        if after == "logits" and type(model).__name__ == "ModernBertForQuestionAnswering":
            after = "spans"
        if path == "encoder.conv.dropout":
            activated = partial(_activated, hear, ACT2FN[model.config.conv_act])
            handles.append(module.register_forward_hook(activated))
        if path == "score" or after == "head.output":  # this output has a row per token, and is not capped yet
            handles.append(model.register_forward_hook(lambda _, args, out: hear("logits", out.logits.numpy())))
        if before:
            run = _in_turn(before)
            handles.append(module.register_forward_pre_hook(lambda _, args, run=run: hear(next(run), args[0].numpy())))
        if after:
            run = _in_turn(after)
            heads_first = module_of_family is modeling_gemma3 and after.endswith("_normed")
            turned = partial(torch.transpose, dim0=1, dim1=2) if heads_first else torch.nn.Identity()
            handles.append(
                module.register_forward_hook(
                    lambda _, args, out, run=run, turned=turned: hear(next(run), turned(_first(out)).numpy())
                )
            )

    if module_of_family in OWN_ATTENTION:
        attention, projections = OWN_ATTENTION[module_of_family]
        forward = attention.forward
        own = _with_alibi if module_of_family is modeling_bloom else partial(_own_attention, projections=projections)
        attention.forward = own(forward, scope_of=scope_of, hear=hear)
        try:
            yield
        finally:
            attention.forward = forward
            for handle in handles:
                handle.remove()
        return

    eager, layers = module_of_family.eager_attention_forward, itertools.count()

    def attention(module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **kwargs: Any) -> Any:
        context, weights = eager(module, query, key, value, mask, scaling=scaling, **kwargs)
        keys = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        scores = torch.matmul(query, keys.transpose(2, 3)) * scaling  # as in eager_attention_forward's first line
        if kwargs.get("position_bias") is not None:  # of T5
            scores = scores + kwargs["position_bias"]
        own = query / module.scaling if module_of_family is modeling_opt else query  # OPT has already scaled queries
        arrays = {"query_heads": own, "key_heads": key, "value_heads": value}
        if hasattr(module_of_family, "apply_rotary_pos_emb") and getattr(module, "use_rope", True):
            rows = {
                f"{name}_rotated": each.transpose(1, 2).flatten(2) for name, each in (("query", query), ("key", key))
            }
            arrays |= rows
        if (cap := kwargs.get("softcap")) is not None:
            arrays["uncapped_scores"] = scores
            scores = torch.tanh(scores / cap) * cap
        arrays |= {"scores": scores, "weights": weights, "context": context.transpose(1, 2)}
        scope = scope_of.get(module) or f"layers.{next(layers)}.attention"
        for name, array in arrays.items():
            hear(f"{scope}.{name}", array.numpy())
        return context, weights

    module_of_family.eager_attention_forward = attention
    try:
        yield
    finally:
        module_of_family.eager_attention_forward = eager
        for handle in handles:
            handle.remove()


def _first(out: Any) -> Any:
    """The first output of a module, which may return several."""
    return out[0] if isinstance(out, tuple) else out


def _of_block(found: re.Match[str]) -> str:
    """layers.N, or layers.N.partM for a part of a T5 block."""
    return f"layers.{found[1]}" + (f".part{found[2]}" if found[2] else "")


def _scope(path: str, layer: str) -> str:
    """The full name of the attention block that contains a module: `layers.0.attention`, `decoder.layers.0.attention`."""
    stack = re.match(r"(encoder\.|decoder\.)layers\.", path)
    name = "cross_attention" if path.endswith((".encoder_attn", ".EncDecAttention")) else "attention"
    return f"{stack[1] if stack else ''}layers.{layer}.{name}"


def _activated(hear: Callable[[str, np.ndarray], None], activation: Any, module: Any, args: Any, out: Any) -> None:
    """A forward hook: records the activation of a convolution's output, which Transformers computes in no module."""
    hear("convolution.activation", activation(out).numpy())


def _pools(model: Any) -> bool:
    """Whether the head of ModernBERT or BART reads one row per text."""
    names = ("ModernBertForSequenceClassification", "ModernBertForMultipleChoice", "BartForSequenceClassification")
    return type(model).__name__ in names


def _own_attention(
    forward: Any, projections: tuple[str, ...], scope_of: dict[Any, str], hear: Callable[[str, np.ndarray], None]
) -> Any:
    """Wraps attention that does not call `eager_attention_forward`: reads stages between modules from torch calls."""

    def attention(module: Any, hidden: Any, *args: Any, **kwargs: Any) -> Any:
        softmax, here = torch.nn.functional.softmax, scope_of[module]
        heads = module.num_attention_heads

        def softmax_heard(scores: Any, dim: int) -> Any:
            weights = softmax(scores, dim=dim)
            hear(f"{here}.scores", scores.numpy())
            hear(f"{here}.weights", weights.numpy())
            return weights

        def heads_of(name: str, rows: Any) -> None:
            hear(f"{here}.{name}", rows.view(*rows.shape[:2], heads, -1).transpose(1, 2).numpy())

        def distances_heard(query: Any, *args: Any) -> Any:
            scores = distance_scores(query, *args)
            hear(f"{here}.distance_scores", scores.view(-1, heads, *scores.shape[-2:]).numpy())
            return scores

        handles = [
            getattr(module, layer).register_forward_hook(lambda _, args, out, name=name: heads_of(name, out))
            for name, layer in zip(("query_heads", "key_heads", "value_heads"), projections, strict=True)
        ]
        if hasattr(module, "o"):
            handles.append(module.o.register_forward_pre_hook(lambda _, args: heads_of("context", args[0])))
        if distance_scores := getattr(module, "disentangled_attention_bias", None):
            module.disentangled_attention_bias = distances_heard
        torch.nn.functional.softmax = softmax_heard
        try:
            result = forward(module, hidden, *args, **kwargs)
        finally:
            torch.nn.functional.softmax = softmax
            for handle in handles:
                handle.remove()
            if distance_scores:
                del module.disentangled_attention_bias  # restores the class's method
        if not hasattr(module, "o"):
            heads_of("context", result[0])
        return result

    return attention


def _with_alibi(forward: Any, scope_of: dict[Any, str], hear: Callable[[str, np.ndarray], None]) -> Any:
    """Wraps BLOOM's attention. Its biases are slope * key position; npformer subtracts a constant for each query."""

    def attention(module: Any, hidden: Any, *args: Any, alibi: Any, **kwargs: Any) -> Any:
        result = forward(module, hidden, *args, alibi=alibi, **kwargs)
        q, k, v = module._reshape(module.query_key_value(hidden))
        places, weights = alibi.view(*q.shape[:2], 1, -1), result[1]
        scores = q @ k.mT * module.inv_norm_factor + places - places.mT
        heads = {"query_heads": q, "key_heads": k, "value_heads": v}
        for name, array in {**heads, "scores": scores, "weights": weights, "context": weights @ v}.items():
            hear(f"{scope_of[module]}.{name}", array.numpy())
        return result

    return attention


def _in_turn(name: str) -> Iterator[str]:
    """Yields the stage for each run of a module, with `*` replaced by 0, 1, ... if the module runs once per layer."""
    for layer in itertools.count():
        yield name.replace("*", str(layer))


def _by_text(name: str, array: np.ndarray, admitted: list[np.ndarray]) -> list[np.ndarray]:
    if ".ffn" in name and array.ndim == 2:  # OPT's FFN reads the rows of all texts as one array
        array = array.reshape(len(admitted), -1, array.shape[-1])
    array = np.broadcast_to(array, (len(admitted), *array.shape[1:]))  # position stages have one array for all texts
    if name in PER_TEXT or (name.startswith(("logits", "head.")) and array.ndim == 2):
        texts = list(array)
    elif name.endswith(("scores", ".weights")):
        texts = [each[:, rows][:, :, rows] for each, rows in zip(array, admitted, strict=True)]
    elif name.endswith("_normed"):  # (B, L, H, K)
        texts = [each[rows] for each, rows in zip(array, admitted, strict=True)]
    elif array.ndim == 4:  # heads
        texts = [each[:, rows] for each, rows in zip(array, admitted, strict=True)]
    else:
        texts = [each[rows] for each, rows in zip(array, admitted, strict=True)]
    return [text.flatten() for text in texts]  # a copy, so that the batch's array can be freed
