"""The table of stages: name, shape, formula, function, and names in other libraries.

`taps.py` fires stages, `interpret/traces.py` records them, `golden/` compares them with another program's. A stage that
is the output of a group of weights has that group's name; `*` stands for a layer's number.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from npformer.checkpoint.tree import module_path
from npformer.common.checks import nearest
from npformer.common.errors import NpformerError
from npformer.config import Config
from npformer.families import encoders, family_of
from npformer.families.marian import LAYER as MARIAN_LAYER


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
    Stage("embeddings.segment", "(T, E)", "S[token_type_ids]", "functions.embedding", "embed.hook_token_type_embed"),
    Stage("embeddings.sum", "(T, E)", "token + position [+ segment]", "embeddings.embeddings"),
    Stage("embeddings.norm", "(T, E)", "X = Normalize(sum)", "functions.layer_norm", "hook_full_embed"),
    Stage("embeddings.project", "(T, D)", "X = Normalize(sum) W + b", "functions.linear"),
)
_OF_DISTANCES = {"key": "Q_h K_r^T", "query": "Q_r K_h^T"}
_SDPA = "attention.scaled_dot_product_attention"
_LAYER = (  # of each layer: names below `layers.*`, hooks below `blocks.*`
    Stage("attention.query", "(T, D)", "Q = X W_Q + b_Q", "functions.linear"),
    Stage("attention.key", "(T, D)", "K = X W_K + b_K", "functions.linear"),
    Stage("attention.value", "(T, D)", "V = X W_V + b_V", "functions.linear"),
    Stage("attention.query_rotated", "(T, D)", "Q, each head rotated by its position", "mechanisms.rotary.rotate"),
    Stage("attention.key_rotated", "(T, D)", "K, each head rotated by its position", "mechanisms.rotary.rotate"),
    Stage("attention.query_heads", "(H, T, K)", "Q_h, K columns of Q", "attention.split_heads", "attn.hook_q"),
    Stage("attention.key_heads", "(H, T, K)", "K_h, K columns of K", "attention.split_heads", "attn.hook_k"),
    Stage("attention.value_heads", "(H, T, K)", "V_h, K columns of V", "attention.split_heads", "attn.hook_v"),
    Stage(
        "attention.distance_scores",
        "(H, T, T)",
        "(Q_h K_r^T + Q_r K_h^T) / sqrt(3 K), r: distances",
        "mechanisms.disentangled.distance_scores",
    ),
    Stage("attention.scores", "(H, T, T)", "Q_h K_h^T / sqrt(K) [+ bias]", _SDPA, "attn.hook_attn_scores"),
    Stage("attention.weights", "(H, T, T)", "W_h = softmax(scores)", "functions.softmax", "attn.hook_pattern"),
    Stage("attention.context", "(H, T, K)", "W_h V_h", _SDPA, "attn.hook_z"),
    Stage("attention.combined", "(T, D)", "Concat(context)", "attention.combine_heads"),
    Stage("attention.output", "(T, D)", "A = combined W_O + b_O", "functions.linear", "hook_attn_out"),
    Stage("attention_residual", "(T, D)", "X + A", "layers.Layer", "hook_resid_mid"),
    Stage("attention_norm", "(T, D)", "Y = Normalize(X + A)", "functions.layer_norm", "ln1.hook_normalized"),
    Stage("ffn.hidden", "(T, F)", "Y W_1 + b_1", "functions.linear", "mlp.hook_pre"),
    Stage("ffn.gate", "(T, F)", "Y V + c", "functions.linear", "mlp.hook_pre_linear"),
    Stage("ffn.activation", "(T, F)", "act(hidden)", "activations.gelu", "mlp.hook_post"),
    Stage("ffn.gated", "(T, F)", "activation * gate", "blocks.gated.gated_feed_forward"),
    Stage("ffn.output", "(T, D)", "B = activation W_2 + b_2", "functions.linear", "hook_mlp_out"),
    Stage("ffn_residual", "(T, D)", "Y + B", "layers.Layer", "hook_resid_post"),
    Stage("ffn_norm", "(T, D)", "Z = Normalize(Y + B)", "functions.layer_norm", "hook_normalized_resid_post"),
)
_AFTER = (
    Stage("convolution.hidden", "(T, D)", "the rows around each row of X, W + b", "blocks.convolution.convolve"),
    Stage("convolution.activation", "(T, D)", "act(hidden)", "activations.gelu"),
    Stage("convolution_residual", "(T, D)", "Z of layer 0 + activation", "layers.Layer"),
    Stage("convolution_norm", "(T, D)", "Normalize(Z + activation)", "functions.layer_norm"),
    Stage("norm", "(T, D)", "Normalize(Z)", "functions.layer_norm"),
    Stage("pooler", "(D,)", "Z[0] W + b", "functions.linear"),
    Stage("pooled", "(D,)", "act(pooler); Z[0] or the mean of Z without one", "heads.pool", "pooler.hook_pooler_out"),
    Stage("head.hidden", "(T, E)", "Z W + b", "functions.linear"),
    Stage("head.activation", "(T, E)", "act(hidden)", "activations.gelu"),
    Stage("head.norm", "(T, E)", "Normalize(activation)", "functions.layer_norm", "mlm_head.ln.hook_normalized"),
    Stage("logits", "(C,) or (T,) or (T, C)", "features W + b", "functions.linear"),
    Stage("start_logits", "(T,)", "Z W + b, column 0", "heads.spans"),
    Stage("end_logits", "(T,)", "Z W + b, column 1", "heads.spans"),
    Stage("probabilities", "(C,) or (T,) or (T, C)", "softmax(logits)", "functions.softmax"),
    Stage("start_probabilities", "(T,)", "softmax(start_logits)", "functions.softmax"),
    Stage("end_probabilities", "(T,)", "softmax(end_logits)", "functions.softmax"),
)


def _in_layer(stage: Stage) -> Stage:
    return replace(stage, name=f"layers.*.{stage.name}", hook=stage.hook and f"blocks.*.{stage.hook}")


#: Every stage, in firing order.
STAGES = (*_BEFORE, *map(_in_layer, _LAYER), *_AFTER)
_BY_NAME = {stage.name: stage for stage in STAGES}
#: Heads whose answers are columns of the output of their last layer.
COLUMNS = {"question-answering": ("start_logits", "end_logits"), "replaced-token": ("logits",)}

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


#: The formulas of a layer whose norms stand before its blocks, where they differ: N and M are its normalised rows.
_NORM_FIRST = {
    "attention_norm": "N = Normalize(X)",
    "attention.query": "Q = N W_Q + b_Q",
    "attention.key": "K = N W_K + b_K",
    "attention.value": "V = N W_V + b_V",
    "attention_residual": "Y = X + A",
    "ffn_norm": "M = Normalize(Y)",
    "ffn.hidden": "M W_1 + b_1",
    "ffn.gate": "M V + c",
    "ffn_residual": "Z = Y + B",
}


def formula(name: str, config: Config | None) -> str:
    """Returns the formula of a stage in this model; "" for an unknown name.

    >>> formula("layers.3.ffn_norm", None)
    'Z = Normalize(Y + B)'
    """
    stage = find(name)
    if name == "probabilities" and config and config.scoring == "sigmoid":
        return "sigmoid(logits)"
    if name.endswith(".distance_scores") and config and len(config.distance_forms) == 1:
        return f"{_OF_DISTANCES[config.distance_forms[0]]} / sqrt(2 K), r: distances"
    own = _NORM_FIRST.get(_NUMBER.split(name)[-1].removeprefix(".")) if config and config.norm_first else None
    return own or (stage.formula if stage else "")


def module(config: Config, name: str) -> str:
    """Returns the Hugging Face module whose output a stage is; "" if there is none.

    >>> module(npformer.load("distilbert-sst2").config, "layers.0.attention.query")
    'distilbert.transformer.layer.0.attention.q_lin'
    """
    path = module_path(config, _group(config, name))
    return path or next((path for path, runs in module_runs(config).items() if name in runs), "")


def _group(config: Config, name: str) -> str:
    """Returns the group of weights whose output a stage is, if there is one of this name."""
    return "head.output" if name == "logits" and config.head not in COLUMNS else name


def modules(config: Config) -> dict[str, str]:
    """Returns the modules of Hugging Face's model that run once -> the stage of their output."""
    return {path: stages[0] for path, stages in module_runs(config).items() if len(stages) == 1}


@lru_cache(maxsize=4)  # asked once a stage of a model
def module_runs(config: Config) -> dict[str, list[str]]:
    """Returns the modules of Hugging Face's model -> the stages of their outputs; {} for models of 2017 that translate.

    A module of layers that share their weights has several, in the order in which it runs.
    """
    family = family_of(config)
    if not family.stages or config.head == "translation":
        return {}
    found: dict[str, list[str]] = {}
    of_model = names(config)
    for name in of_model:
        if (path := module_path(config, _group(config, name))) is not None:
            found[path] = [*found.get(path, []), name]
    for pattern, stage in family.stages.items():
        for layer in range(config.n_layers) if "*" in stage else [0]:
            path = family.in_layer(pattern, config, layer)
            path = path.removeprefix(family.prefix) if config.head == "base" else path
            if (name := stage.replace("*", str(layer))) in of_model:
                found[path] = list(dict.fromkeys([*found.get(path, []), name]))
    return found


def names(config: Config) -> list[str]:
    """Lists the table's stages for a model of this depth, in firing order."""
    before, layer, after = ([stage.name for stage in part] for part in (_BEFORE, map(_in_layer, _LAYER), _AFTER))

    def stack(n_layers: int, layer: list[str]) -> list[str]:
        return [*before, *(name.replace("*", str(n)) for n in range(n_layers) for name in layer)]

    if not (config.decoder and config.n_layers):
        return [*stack(config.n_layers, layer), *after]
    crossed = [name.replace(".attention", ".cross_attention") for name in layer if ".attention" in name]
    middle = next(i for i, name in enumerate(layer) if ".ffn." in name)
    both = [*layer[:middle], *crossed, *layer[middle:]]
    encoder, decoder = stack(config.n_layers, layer), stack(config.decoder.n_layers, both)
    return [*(f"encoder.{name}" for name in encoder), *(f"decoder.{name}" for name in decoder), *after]


def selected(patterns: str | Iterable[str], names: Iterable[str]) -> list[str]:
    """Selects the names that match one of the patterns, in their order; `*` matches anything, also dots.

    A pattern is of our names, or a name or pattern of another library's that `resolve` knows.
    """
    given = [patterns] if isinstance(patterns, str) else list(patterns)
    wanted = [each for pattern in given for each in (pattern, *resolve(pattern))]
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted)]


def matching(patterns: str | Iterable[str], names: Sequence[str]) -> list[str]:
    """Selects as `selected`; raises NpformerError, with the nearest names, for a pattern that matches nothing."""
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if not selected(pattern, names):
            raise NpformerError(unknown(pattern, names))
    return selected(patterns, names)


def unknown(name: str, names: Sequence[str]) -> str:
    """Returns the error message for an unknown stage, with the nearest of `names`, in that library's terms."""
    if not names:
        return f"{name!r}: no stage has fired; run a model first"
    for end, hint in HINTS.items():
        if name.endswith(end):
            return f"{name!r}: no such stage; {hint}"
    here = set(names)
    ours = ours_in(here, name) if resolve(name) else ""
    theirs = [] if ours else [each for each in _with_layer(name) if set(resolve(each)) & here]
    closest = [each for each in nearest(name, [*names, *theirs], 3) if each not in names]
    if closest and not ours and nearest(name, [*names, *theirs])[0] in closest:
        shown = " or ".join(f"{each} ({ours_in(here, each)})" for each in closest)
        return f"{name!r}: no such stage; did you mean {shown}?"
    name_of_ours = ours or name
    near = nearest(name_of_ours, names, 3)
    if not near:  # perhaps a pattern with a misspelt last part
        lasts = {each.rpartition(".")[2]: each for each in reversed(names)}
        near = [lasts[last] for last in nearest(name_of_ours.rpartition(".")[2], lasts, 3)]
    near = near or [names[0], names[-1]]
    meant = f", which is {name_of_ours} here" if ours else ""
    return f"{name!r}{meant}: no such stage; did you mean {' or '.join(near)}?"


# --- names of other libraries ----------------------------------------------------------------------------------------

#: Hooks of TransformerLens that are no stage of ours, by their last part -> where to look.
HINTS = {
    "hook_result": "what each head writes is npformer.interpret.direct_attribution.head_results(model, trace)",
    "hook_scale": "a norm's deviation is that of the stage before it: trace['layers.0.attention_residual'].std(-1)",
    **dict.fromkeys(
        ("hook_q_input", "hook_k_input", "hook_v_input", "hook_attn_in", "hook_mlp_in"),
        "a block reads the stage before it, layers.*.ffn_norm of the layer before or layers.*.attention_norm",
    ),
}
#: More hooks of TransformerLens: those of a HookedTransformer, and second names of one array.
_HOOKS = {
    "hook_embed": "embeddings.token",
    "hook_pos_embed": "embeddings.position",
    "hook_token_type_embed": "embeddings.segment",
    "embed.ln.hook_normalized": "embeddings.norm",
    "blocks.*.ln2.hook_normalized": "layers.*.ffn_norm",
    "ln_final.hook_normalized": "norm",
}
_BEFORE_A_LAYER = re.compile(r"blocks\.(\d+)\.hook_resid_pre")


@lru_cache(maxsize=1024)  # a trace of a model asks for each of its stages
def resolve(name: str) -> tuple[str, ...]:
    """Returns our stages (or patterns) for a TransformerLens hook or a Hugging Face module's path; () if it is neither.

    A layer's number may be a pattern too. A path may lack the encoder's prefix, as in a base model. A path in BART's
    decoder stands for two stages: decoder.layers..., and layers... where the decoder is the whole model.

    >>> resolve("blocks.3.attn.hook_pattern"), resolve("distilbert.transformer.layer.*.attention.q_lin")
    (('layers.3.attention.weights',), ('layers.*.attention.query',))
    >>> resolve("layers.3.attention.weights")
    ()
    """
    if find(name) is not None:
        return ()
    if before := _BEFORE_A_LAYER.fullmatch(name):
        layer = int(before[1])
        return (f"layers.{layer - 1}.ffn_norm" if layer else "embeddings.norm",)
    known, (template, number) = _elsewhere(), _template(name)
    if template in known:
        ours = known[template]
        alone = ours.removeprefix("decoder.")
        both = (ours, alone) if alone != ours and alone in _BY_NAME else (ours,)
        return tuple(each.replace("*", number) for each in both)
    if "hook_" not in name:
        return ()
    hooks = (ours.replace("*", number) for theirs, ours in known.items() if fnmatch.fnmatchcase(theirs, template))
    return tuple(dict.fromkeys(hooks))


def ours_in(known: Container[str], name: str) -> str:
    """Returns the stage that another library's name means among those known; the name itself if it means none."""
    meant = resolve(name)
    return next((each for each in meant if each in known), next(iter(meant), name))


def _template(name: str) -> tuple[str, str]:
    """Returns a name with `*` for the layer's number, and the number, which may be a pattern."""
    parts = name.split(".")
    for i, part in enumerate(parts):
        if part.isdigit() or set(part) & set("*?["):
            return ".".join([*parts[:i], "*", *parts[i + 1 :]]), part
    return name, "*"


def _with_layer(name: str) -> list[str]:
    """Lists all names of other libraries, with the layer's number that `name` has."""
    return [each.replace("*", _template(name)[1]) for each in _elsewhere()]


@lru_cache(maxsize=1)
def _elsewhere() -> dict[str, str]:
    """Returns the names of stages in TransformerLens and in Hugging Face's models -> ours, with `*` for the layer.

    A path that means different stages in two families is left out.
    """
    known = {stage.hook: stage.name for stage in STAGES if stage.hook} | _HOOKS
    paths: dict[str, set[str]] = {}
    for family in encoders().values():
        found = dict(family.stages)
        for head, groups in family.heads.items():
            for group, path in {**family.encoder, **groups}.items():
                if (group, head) != ("head.output", "question-answering"):  # two stages: start and end
                    found[path] = "logits" if group == "head.output" else group
            fused = [path for path, count in Counter(family.encoder.values()).items() if count > 1]
            found = {path: stage for path, stage in found.items() if path not in fused}
        for path, stage in found.items():
            paths.setdefault(path, set()).add(stage)
            paths.setdefault(path.removeprefix(family.prefix), set()).add(stage)
    for side in ("encoder", "decoder"):
        for group, path in MARIAN_LAYER.items():
            paths.setdefault(f"model.{side}.layers.*.{path}", set()).add(f"{side}.layers.*.{group}")
    return known | {path: stage for path, (stage, *others) in paths.items() if not others}
