"""The table of stages: name, shape, formula, function, and names in other libraries.

`tap.py` fires stages, `interpret/trace.py` records them, `golden/` compares them with another program's. A stage that
is the output of a group of weights has that group's name; `*` stands for a layer's number.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from npformer.checkpoint.tree import module_path
from npformer.checks import nearest
from npformer.config import Config
from npformer.errors import NpformerError
from npformer.families import family_of


@dataclass(frozen=True)
class Stage:
    """A stage in a trace of one text: T tokens, width D (tables: E), H heads of width K, F hidden units, C outputs."""

    name: str
    shape: str
    formula: str
    function: str  # below npformer: module and name
    hook: str = ""  # TransformerLens's name in a HookedEncoder, if it has one


_BEFORE = (
    Stage("embeddings.token", "(T, E)", "E[ids]", "functions.embedding", "embed.hook_embed"),
    Stage("embeddings.position", "(T, E)", "P[positions]", "functions.embedding", "embed.hook_pos_embed"),
    Stage("embeddings.segment", "(T, E)", "S[segments]", "functions.embedding", "embed.hook_token_type_embed"),
    Stage("embeddings.sum", "(T, E)", "token + position [+ segment]", "embeddings.embeddings"),
    Stage("embeddings.norm", "(T, E)", "X = Normalize(sum)", "functions.layer_norm", "hook_full_embed"),
    Stage("embeddings.project", "(T, D)", "X = Normalize(sum) W + b", "functions.linear"),
)
_SDPA = "attention.scaled_dot_product_attention"
_LAYER = (  # of each layer: names below `layers.*`, hooks below `blocks.*`
    Stage("attention.query", "(T, D)", "Q = X W_Q + b_Q", "functions.linear"),
    Stage("attention.key", "(T, D)", "K = X W_K + b_K", "functions.linear"),
    Stage("attention.value", "(T, D)", "V = X W_V + b_V", "functions.linear"),
    Stage("attention.query_heads", "(H, T, K)", "Q_h, K columns of Q", "attention.split_heads", "attn.hook_q"),
    Stage("attention.key_heads", "(H, T, K)", "K_h, K columns of K", "attention.split_heads", "attn.hook_k"),
    Stage("attention.value_heads", "(H, T, K)", "V_h, K columns of V", "attention.split_heads", "attn.hook_v"),
    Stage("attention.scores", "(H, T, T)", "Q_h K_h^T / sqrt(d_head)", _SDPA, "attn.hook_attn_scores"),
    Stage("attention.weights", "(H, T, T)", "W_h = softmax(scores)", "functions.softmax", "attn.hook_pattern"),
    Stage("attention.context", "(H, T, K)", "W_h V_h", _SDPA, "attn.hook_z"),
    Stage("attention.combined", "(T, D)", "Concat(context)", "attention.combine_heads"),
    Stage("attention.output", "(T, D)", "A = combined W_O + b_O", "functions.linear", "hook_attn_out"),
    Stage("attention_residual", "(T, D)", "X + A", "encoder.add_and_norm", "hook_resid_mid"),
    Stage("attention_norm", "(T, D)", "Y = Normalize(X + A)", "functions.layer_norm", "ln1.hook_normalized"),
    Stage("ffn.hidden", "(T, F)", "Y W_1 + b_1", "functions.linear", "mlp.hook_pre"),
    Stage("ffn.activation", "(T, F)", "act(hidden)", "activations.gelu", "mlp.hook_post"),
    Stage("ffn.output", "(T, D)", "B = activation W_2 + b_2", "functions.linear", "hook_mlp_out"),
    Stage("ffn_residual", "(T, D)", "Y + B", "encoder.add_and_norm", "hook_resid_post"),
    Stage("ffn_norm", "(T, D)", "Z = Normalize(Y + B)", "functions.layer_norm", "hook_normalized_resid_post"),
)
_AFTER = (
    Stage("norm", "(T, D)", "Normalize(Z)", "functions.layer_norm"),
    Stage("pooler", "(D,)", "Z[0] W + b", "functions.linear"),
    Stage("pooled", "(D,)", "act(pooler)", "heads.pool", "pooler.hook_pooler_out"),
    Stage("head.hidden", "(T, E)", "Z W + b", "functions.linear"),
    Stage("head.activation", "(T, E)", "act(hidden)", "activations.gelu"),
    Stage("head.norm", "(T, E)", "Normalize(activation)", "functions.layer_norm", "mlm_head.ln.hook_normalized"),
    Stage("logits", "(C,) or (T, C)", "features W + b", "functions.linear"),
    Stage("start_logits", "(T,)", "Z W + b, column 0", "heads.spans"),
    Stage("end_logits", "(T,)", "Z W + b, column 1", "heads.spans"),
    Stage("probabilities", "(C,) or (T, C)", "softmax(logits)", "functions.softmax"),
    Stage("start_probabilities", "(T,)", "softmax(start_logits)", "functions.softmax"),
    Stage("end_probabilities", "(T,)", "softmax(end_logits)", "functions.softmax"),
)


def _in_layer(stage: Stage) -> Stage:
    return replace(stage, name=f"layers.*.{stage.name}", hook=stage.hook and f"blocks.*.{stage.hook}")


#: Every stage, in firing order.
STAGES = (*_BEFORE, *map(_in_layer, _LAYER), *_AFTER)
_BY_NAME = {stage.name: stage for stage in STAGES}

_NUMBER = re.compile(r"(?<=layers\.)\d+(?=\.)")


def find(name: str) -> Stage | None:
    """Returns the table's row for a stage, with its layer's number filled in; None for an unknown name.

    For an encoder-decoder, `encoder.` and `decoder.` are left out, and cross-attention counts as attention.

    >>> find("layers.3.attention.weights").hook
    'blocks.3.attn.hook_pattern'
    """
    number = _NUMBER.search(name)
    plain = re.sub(r"^(encoder|decoder)\.", "", name).replace(".cross_attention", ".attention")
    stage = _BY_NAME.get(_NUMBER.sub("*", plain))
    if stage is None:
        return None
    hook = stage.hook.replace("*", number[0] if number else "*")
    return replace(stage, name=name, hook=hook if plain == name else "")


def module(config: Config, name: str) -> str:
    """Returns the Hugging Face module whose output a stage is; "" if there is none.

    >>> module(npformer.load("distilbert-sst2").config, "layers.0.attention.query")
    'distilbert.transformer.layer.0.attention.q_lin'
    """
    group = "head.output" if name == "logits" else name
    path = module_path(config, group)
    return path or next((path for path, stage in modules(config).items() if stage == name), "")


@lru_cache(maxsize=4)  # asked once a stage of a model
def modules(config: Config) -> dict[str, str]:
    """Returns the modules of Hugging Face's model -> the stage of their output; {} for nn.Transformer models."""
    family = family_of(config)
    if not family.stages:
        return {}
    found = {}
    for name in names(config):
        group = "head.output" if name == "logits" and config.head != "question-answering" else name
        if (path := module_path(config, group)) is not None:
            found[path] = name
    for pattern, stage_name in family.stages.items():
        for path, name in zip(_numbered(pattern, config), _numbered(stage_name, config), strict=True):
            found[path.removeprefix(family.prefix) if config.head == "base" else path] = name
    return found


def _numbered(pattern: str, config: Config) -> list[str]:
    return [pattern.replace("*", str(n)) for n in range(config.n_layers)] if "*" in pattern else [pattern]


def names(config: Config) -> list[str]:
    """Lists the table's stages for a model of this depth, in firing order."""
    before, layer, after = ([stage.name for stage in part] for part in (_BEFORE, map(_in_layer, _LAYER), _AFTER))
    return [*before, *(name.replace("*", str(n)) for n in range(config.n_layers) for name in layer), *after]


def selected(patterns: str | Iterable[str], names: Iterable[str]) -> list[str]:
    """Selects the names that match one of the patterns, in their order; `*` matches anything, also dots."""
    wanted = [patterns] if isinstance(patterns, str) else list(patterns)
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted)]


def matching(patterns: str | Iterable[str], names: Sequence[str]) -> list[str]:
    """Selects as `selected`; raises NpformerError, with the nearest names, for a pattern that matches nothing."""
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if not selected(pattern, names):
            raise NpformerError(unknown(pattern, names))
    return selected(patterns, names)


def unknown(name: str, names: Sequence[str]) -> str:
    """Returns the error message for an unknown stage, with the nearest of `names`."""
    if not names:
        return f"{name!r}: no stage has fired; run a model first"
    near = nearest(name, names, 3)
    if not near:  # perhaps a pattern with a misspelt last part
        lasts = {each.rpartition(".")[2]: each for each in reversed(names)}
        near = [lasts[last] for last in nearest(name.rpartition(".")[2], lasts, 3)]
    near = near or [names[0], names[-1]]
    return f"{name!r}: no such stage; did you mean {' or '.join(near)}?"
