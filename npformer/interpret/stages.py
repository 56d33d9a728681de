"""Finds stages: the stages of a model, or a stage by name, by pattern, or by another library's name.

The parts of a model declare their stages (`npformer/engine/descriptions/stage.py`), `engine/taps.py` fires them,
`interpret/traces.py` records them, and `golden/` compares them with another program's. The output of a group of weights
is a stage with the group's name; `*` stands for a layer's number.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import lru_cache
from typing import Any

import numpy as np

from npformer.checkpoint.parameters import parameters
from npformer.checkpoint.tree import module_path, unflatten
from npformer.common.checks import nearest
from npformer.common.errors import NpformerError
from npformer.config import Config
from npformer.engine import mechanisms, transformer
from npformer.engine.activations import gelu
from npformer.engine.blocks import Attention, Convolution, FeedForward, Gated, Normed
from npformer.engine.blocks.output_norm import NAME as OUTPUT_NORM
from npformer.engine.descriptions.stage import Stage, within
from npformer.engine.embeddings import Embeddings
from npformer.engine.layers.layer import Layer
from npformer.engine.mechanisms import SoftCap
from npformer.engine.mechanisms.soft_cap import UNCAPPED_SCORES
from npformer.engine.norms.layernorm import LAYER_NORM
from npformer.engine.output_heads import formulas
from npformer.engine.output_heads.capped_logits import UNCAPPED_LOGITS
from npformer.engine.output_heads.output_scale import OutputScale
from npformer.engine.token_projections import project_stage
from npformer.families import encoders, family_of, parts_of
from npformer.families.base import LAYER_OUTPUT
from npformer.families.marian import LAYER as MARIAN_LAYER
from npformer.families.marian import Marian


def layer_with(kinds: Iterable[type[Any]]) -> Layer:
    """Returns a layer that uses all these subclasses of `Mechanism`, to look up stages without a model.

    All its sizes are 2, because names and formulas of stages do not depend on sizes.
    """
    sizes = {kind: [each for each in fields(kind) if each.default is each.default_factory is MISSING] for kind in kinds}
    made = tuple([kind(*[2] * len(of_kind)) for kind, of_kind in sizes.items()])
    return Layer((("attention", Attention(1, made)), ("ffn", Gated(gelu))))


_KINDS = [getattr(mechanisms, name) for name in mechanisms.__all__]
#: Excludes soft caps, because their stage is listed below.
_LAYER = layer_with(kind for kind in _KINDS if kind not in (mechanisms.Mechanism, SoftCap))
_PLAIN = {each.name: each for each in Layer((("attention", Attention(1)), ("ffn", FeedForward(gelu)))).stages}
#: The stages of a layer, with the formulas of a layer without mechanisms and gates.
_OF_LAYER = [each._replace(formula=_PLAIN.get(each.name, each).formula) for each in _LAYER.stages]
_OF_LAYER.insert([each.name for each in _OF_LAYER].index("ffn.gate"), _PLAIN["ffn.hidden"])
_NORMED = Layer(tuple((name, Normed(block, LAYER_NORM)) for name, block in _LAYER.blocks))
_CONVOLUTION = Layer((("convolution", Convolution(gelu)),))
_EMBEDDINGS = [
    each._replace(formula="token [+ position] [+ segment]") if each.name == "embeddings.sum" else each
    for each in Embeddings(n_tokens=1, n_positions=1, n_token_types=1, projected=True).stages
]

#: Every stage, in order of computation; `*` stands for a layer's number.
STAGES = (
    *_EMBEDDINGS,
    *within("layers.*", _OF_LAYER, {}, "blocks.*."),
    *within("layers.*", [each for each in _NORMED.stages if each.name.endswith(OUTPUT_NORM)], {}, "blocks.*."),
    *within("layers.*", [each for each in layer_with([SoftCap]).stages if each.name.endswith(UNCAPPED_SCORES)], {}),
    *_CONVOLUTION.stages,
    LAYER_NORM.stage("norm", "Z", ""),
    project_stage(""),
    *formulas.pool_stages(""),
    *formulas.transform_stages("", gelu, LAYER_NORM),
    *OutputScale(1.0).stages(""),
    formulas.classify_stage("")._replace(name=UNCAPPED_LOGITS, kept=True),
    formulas.classify_stage(""),
    *formulas.spans_stages(""),
    *map(formulas.probabilities_stage, ("", "start_", "end_")),
)
_NO_NUMBERS = np.zeros(0)  # a placeholder for weights, of which only the names matter
_BY_NAME = {stage.name: stage for stage in STAGES}
#: Head -> the answers that are columns of the head's output.
COLUMNS = {"question-answering": ("start_logits", "end_logits"), "replaced-token": ("logits",)}

_NUMBER = re.compile(r"(?<=layers\.)\d+(?=\.)")


def find(name: str) -> Stage | None:
    """Returns a stage's entry in `STAGES`, with the layer's number filled in, or None for an unknown name.

    The prefixes `encoder.` and `decoder.` are ignored, and cross-attention counts as attention.

    >>> find("layers.3.attention.weights").hook
    'blocks.3.attn.hook_pattern'
    """
    number = _NUMBER.search(name)
    plain = re.sub(r"^(encoder|decoder)\.", "", name).replace(".cross_attention", ".attention")
    stage = _BY_NAME.get(_NUMBER.sub("*", plain))
    if stage is None:
        return None
    hook = stage.hook.replace("*", number[0] if number else "*")
    return stage._replace(name=name, hook=hook if plain == name else "")


@lru_cache(maxsize=16)
def of_weights(config: Config, weights: frozenset[str]) -> Mapping[str, Stage]:
    """Returns the stages of a model with these weights, by name, in order of computation."""
    found = transformer.stages(unflatten(dict.fromkeys(weights, _NO_NUMBERS)), parts_of(config))
    if config.head == "question-answering":
        found += map(formulas.probabilities_stage, ("start_", "end_"))
    elif config.head not in ("base", "translation") and config.scoring != "none":
        found.append(formulas.probabilities_stage(function=config.scoring))
    return {stage.name: stage for stage in found}


@lru_cache(maxsize=4)  # cached, because it is called for each stage of a model
def of_model(config: Config) -> Mapping[str, Stage]:
    """Returns the stages of a model, by name, in order of computation.

    >>> of_model(npformer.load("distilbert-sst2").config)["layers.3.ffn.output"].parents
    ('layers.3.ffn.activation',)
    """
    return of_weights(config, frozenset(parameters(config)))


def of(name: str, config: Config | None) -> Stage | None:
    """Returns the stage of this name in the config's model; otherwise, the result of `find`, which may be None.

    >>> of("layers.3.ffn_norm", None).formula
    'Z = Normalize(Y + B)'
    """
    return (of_model(config).get(name) if config else None) or find(name)


def module(config: Config, name: str) -> str:
    """Returns the Hugging Face module that outputs a stage, or "" without such a module.

    >>> module(npformer.load("distilbert-sst2").config, "layers.0.attention.query")
    'distilbert.transformer.layer.0.attention.q_lin'
    """
    path = module_path(config, _group(config, name))
    return path or next((path for path, runs in module_runs(config).items() if name in runs), "")


def _group(config: Config, name: str) -> str:
    """Returns the name of the group of weights that outputs a stage, which is usually the name of the stage."""
    is_output = name == "logits" and config.head not in COLUMNS and "head.output" not in of_model(config)
    return "head.output" if is_output else name


def modules(config: Config) -> dict[str, str]:
    """Maps each Hugging Face module that runs once to the stage that it outputs."""
    return {path: stages[0] for path, stages in module_runs(config).items() if len(stages) == 1}


@lru_cache(maxsize=4)  # cached, because it is called for each stage of a model
def module_runs(config: Config) -> dict[str, list[str]]:
    """Maps each Hugging Face module to the stages that it outputs, or returns {} for torch's own modules.

    A module shared by several layers has several stages, in order of computation.
    """
    family = family_of(config)
    if not (family.stages or isinstance(family, Marian)):
        return {}
    completed = family.completed(config) if isinstance(family, Marian) else ()
    found: dict[str, list[str]] = {}
    of_model, layers = names(config), parts_of(config).stack.layers
    for name in of_model:
        path = module_path(config, _group(config, name))
        if path is not None and not name.endswith(completed):
            found[path] = [*found.get(path, []), name]
    for pattern, stage in family.stages.items():
        for layer in range(config.n_layers) if "*" in stage else [0]:
            path = family.in_layer(pattern, config, layer)
            path = path.removeprefix(family.prefix) if config.head == "base" else path
            of_layer = f"{stage}.{layers[layer].output}" if stage == LAYER_OUTPUT else stage
            if (name := of_layer.replace("*", str(layer))) in of_model:
                found[path] = list(dict.fromkeys([*found.get(path, []), name]))
    return found


def names(config: Config) -> list[str]:
    """Lists a model's stages, in order of computation."""
    return list(of_model(config))


def selected(patterns: str | Iterable[str], names: Sequence[str], fired: Sequence[str] | None = None) -> list[str]:
    """Selects the names that match one of the patterns, in the order of `names`.

    `*` matches any characters, including dots. A pattern uses npformer's names, or is a name or pattern of another
    library that `resolve` knows. `fired` are the stages that have fired so far, by default `names`.
    """
    given = [patterns] if isinstance(patterns, str) else list(patterns)
    if "*" in given:
        return list(names)  # does not look up other libraries' names, which would import all families
    wanted = [each for pattern in given for each in (pattern, *known_as(pattern, fired or names))]
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted)]


def matching(patterns: str | Iterable[str], names: Sequence[str], fired: Sequence[str] | None = None) -> list[str]:
    """Selects like `selected`, but raises NpformerError, with the nearest names, for a pattern that matches nothing."""
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if not selected(pattern, names, fired):
            raise NpformerError(unknown(pattern, names))
    return selected(patterns, names, fired)


def unknown(name: str, names: Sequence[str]) -> str:
    """Returns the error message for an unknown stage, with the nearest of `names`, in the naming style of `name`."""
    if not names:
        return f"{name!r}: no stage has fired; run a model first"
    for end, hint in HINTS.items():
        if name.endswith(end):
            return f"{name!r}: no such stage; {hint}"
    here = set(names)
    ours = ours_in(names, name) if known_as(name, names) else ""
    if ours in here:
        return f"{name!r}: its stage is known only after it has fired; until then, use npformer's name, {ours}"
    theirs = [] if ours else [each for each in _with_layer(name) if set(resolve(each)) & here]
    closest = [each for each in nearest(name, [*names, *theirs], 3) if each not in names]
    if closest and not ours and nearest(name, [*names, *theirs])[0] in closest:
        shown = " or ".join(f"{each} ({ours_in(names, each)})" for each in closest)
        return f"{name!r}: no such stage; did you mean {shown}?"
    name_of_ours = ours or name
    near = nearest(name_of_ours, names, 3)
    if not near:  # the name may be a pattern with a misspelt last part
        lasts = {each.rpartition(".")[2]: each for each in reversed(names)}
        near = [lasts[last] for last in nearest(name_of_ours.rpartition(".")[2], lasts, 3)]
    near = near or [names[0], names[-1]]
    meant = f", which is {name_of_ours} here" if ours else ""
    return f"{name!r}{meant}: no such stage; did you mean {' or '.join(near)}?"


# --- names of other libraries ----------------------------------------------------------------------------------------

#: Last part of a TransformerLens hook without a stage here -> where to look.
HINTS = {
    "hook_result": "for each head's output use npformer.interpret.direct_attribution.head_results(model, trace)",
    "hook_scale": "compute a norm's deviation from the stage before it: trace['layers.0.attention_residual'].std(-1)",
    **dict.fromkeys(
        ("hook_q_input", "hook_k_input", "hook_v_input", "hook_attn_in", "hook_mlp_in"),
        "a block reads the stage before it: blocks.*.hook_resid_pre or blocks.*.hook_resid_mid, or their norm",
    ),
}
#: More TransformerLens hooks: HookedTransformer's own hooks, and hooks that are a second name of an array.
_HOOKS = {
    "hook_embed": "embeddings.token",
    "hook_pos_embed": "embeddings.position",
    "hook_token_type_embed": "embeddings.segment",
    "embed.ln.hook_normalized": "embeddings.norm",
    "blocks.*.ln2.hook_normalized": "layers.*.ffn_norm",
    "ln_final.hook_normalized": "norm",
}
#: A stage -> the stage that has the same hook in a gated feed-forward network.
_IN_GATED = {"layers.*.ffn.hidden": "layers.*.ffn.gate"}
_BEFORE_A_LAYER = re.compile(r"blocks\.(\d+)\.hook_resid_pre")


@lru_cache(maxsize=1024)  # cached, because it is called for each stage of a trace
def resolve(name: str) -> tuple[str, ...]:
    """Returns the stages (or patterns) for a TransformerLens hook or a Hugging Face path, or () for other names.

    A layer's number may be a pattern. A path may omit the encoder's prefix, as in a base model. A path in BART's
    decoder has two stages: decoder.layers... and, if the decoder is the whole model, layers... The path of OPT's layers
    has two stages too: the last norm and the last sum.

    >>> resolve("blocks.3.attn.hook_pattern"), resolve("distilbert.transformer.layer.*.attention.q_lin")
    (('layers.3.attention.weights',), ('layers.*.attention.query',))
    >>> resolve("layers.3.attention.weights")
    ()
    """
    if find(name) is not None:
        return ()
    known, (template, number), is_hook = _elsewhere(), _template(name), "hook_" in name
    if template in known:
        ours = known[template]
        alone = ours.removeprefix("decoder.")
        both = (ours, alone) if alone in _BY_NAME else (ours,)
        found = list(_ends_of_layer("*") if ours == LAYER_OUTPUT else both)
    else:
        found = [ours for theirs, ours in known.items() if is_hook and fnmatch.fnmatchcase(theirs, template)]
    if is_hook:
        found += [_IN_GATED[each] for each in found if each in _IN_GATED]
    return tuple(dict.fromkeys(each.replace("*", number) for each in found))


def known_as(name: str, fired: Sequence[str]) -> tuple[str, ...]:
    """Like `resolve`, but returns a single stage for the hook of a layer's input and for OPT's module of a layer.

    `fired` are the stages that have fired so far, in order. The last stage of a layer is the residual sum or the norm
    of its FFN, whichever fires later, so it is known when both have fired. The last stage of the embeddings is known
    when the first layer has begun, and is assumed to be their norm until then.

    >>> known_as("blocks.1.hook_resid_pre", ["layers.0.ffn_norm", "layers.0.ffn.output", "layers.0.ffn_residual"])
    ('layers.0.ffn_residual',)
    """
    before = _BEFORE_A_LAYER.fullmatch(name)
    if before is None:
        found = resolve(name)
        return _last_of(found, fired) if found == _ends_of_layer(_template(name)[1]) else found
    if layer := int(before[1]):
        return _last_of(_ends_of_layer(str(layer - 1)), fired)
    embedded = [each for each in fired if each.startswith("embeddings.")]
    return (embedded[-1],) if embedded and embedded[-1] != fired[-1] else ("embeddings.norm",)


def _ends_of_layer(number: str) -> tuple[str, ...]:
    """Returns the two stages that can be the last stage of a layer. The number of the layer may be a pattern."""
    return f"layers.{number}.ffn_norm", f"layers.{number}.ffn_residual"


def _last_of(ends: tuple[str, ...], fired: Sequence[str]) -> tuple[str, ...]:
    """Returns the later of the two `ends` of a layer, or () until both have fired."""
    return tuple([end for each in fired for end in ends if fnmatch.fnmatchcase(each, end)][1:2])


def ours_in(known: Sequence[str], name: str) -> str:
    """Translates a name in another library to a stage, preferably one in `known`. Returns other names unchanged."""
    found = known_as(name, known)
    return next((each for each in found if each in known), next(iter(found), name))


def _template(name: str) -> tuple[str, str]:
    """Returns a name with `*` for the number of its layer, and that number, which may be a pattern."""
    parts = name.split(".")
    for i, part in enumerate(parts):
        if part.isdigit() or set(part) & set("*?["):
            return ".".join([*parts[:i], "*", *parts[i + 1 :]]), part
    return name, "*"


def _with_layer(name: str) -> list[str]:
    """Returns the names of all stages in other libraries, with the layer's number from `name`."""
    return [each.replace("*", _template(name)[1]) for each in _elsewhere()]


@lru_cache(maxsize=1)
def _elsewhere() -> dict[str, str]:
    """Maps names of stages in TransformerLens and Hugging Face's models to npformer's names, with `*` for the layer.

    A path that means different stages in two families is omitted.
    """
    # Reversed, so that a hook shared by a block's output and its norm means the output.
    known = {stage.hook: stage.name for stage in reversed(STAGES) if stage.hook} | _HOOKS
    paths: dict[str, set[str]] = {}
    for family in encoders().values():
        found = dict(family.stages)
        for head, groups in family.heads.items():
            for group, path in {**family.encoder, **groups}.items():
                if (group, head) != ("head.output", "question-answering"):  # start and end have the same path
                    found[path] = "logits" if group == "head.output" else group
            fused = [path for path, count in Counter(family.encoder.values()).items() if count > 1]
            found = {path: stage for path, stage in found.items() if path not in fused}
        for path, stage in found.items():
            paths.setdefault(path, set()).add(stage)
            paths.setdefault(path.removeprefix(family.prefix), set()).add(stage)
    for side in ("encoder", "decoder"):
        for group, path in MARIAN_LAYER.items():
            paths.setdefault(f"model.{side}.layers.*.{path}", set()).add(f"{side}.layers.*.{group}")
    # OPT's decoder is its only stack, but has the paths of a decoder in an encoder-decoder. `resolve` returns both
    # meanings.
    alike = {path: {each.removeprefix("decoder.") for each in stages} for path, stages in paths.items()}
    return known | {path: max(stages, key=len) for path, stages in paths.items() if len(alike[path]) == 1}
