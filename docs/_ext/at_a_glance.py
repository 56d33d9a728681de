"""The properties of a family of the field guide, from the config of a published checkpoint and from its parts."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from config_fields import published
from family_tree import members, title
from markdown import code
from page_differences import functions, purpose
from tables import literal

from npformer.checkpoint.tied import drawn
from npformer.config import Config
from npformer.families import FAMILIES, EncoderTable, parts_of
from npformer.golden.suite import cases, encoder_config
from npformer.plain import page

#: Heads in order of preference. A page of the guide describes a model with the first head that the family has.
HEADS = ("translation", "masked-lm", "causal-lm", "sequence-classification")
TABLES = {
    "learned": "a learned table, added to the embeddings",
    "sinusoidal": "a table of sines and cosines, added to the embeddings",
    "sinusoidal-halves": "a table of sines, then cosines, added to the embeddings",
    "none": "no table",
}
#: Mechanism that depends on positions -> its description.
POSITIONAL = {
    "Rotary": "queries and keys are rotated by their positions",
    "PartialRotary": "the first columns of queries and keys are rotated by their positions",
    "Alibi": "a score falls with the distance of its tokens, by a fixed slope for each head",
    "RelativeBias": "a learned bias for each distance and head is added to the scores",
    "Disentangled": "products with learned rows for relative positions are added to the scores",
}


@cache
def tiny(name: str) -> Config:
    """Returns a config of the conformance suite's size for the first family of a page."""
    model_type = members(name)[0]
    family, known = FAMILIES[model_type], {(each.config.model_type, each.config.head): each.config for each in cases()}
    if isinstance(family, EncoderTable):
        return encoder_config(family, next(head for head in HEADS if head in family.architectures.values()))
    return next(known[model_type, head] for head in HEADS if (model_type, head) in known)


@cache
def example(name: str) -> tuple[str, Config]:
    """Returns the name and the config of the page's published checkpoint, or of a tiny model without a checkpoint."""
    found = [(each["name"], config) for member in members(name) for each, config in published(member)]
    return found[0] if found else ("", tiny(name))


def properties(name: str, config: Config) -> Iterator[tuple[str, str]]:
    """Yields the parts of a model and what they are."""
    kinds = layer_kinds(config)
    yield "positions", "; ".join([f"{TABLES[config.positions.table]}{_first_row(config)}", *positions(config)])
    yield "a token sees", "; ".join(sight(config))
    if others := {each for _, of in kinds for each in of if type(each).__name__ not in (*POSITIONAL, "Window")}:
        yield "attention", "; ".join(sorted(f"{mechanism(each)}: {formula(type(each))}" for each in others))
    shared = "" if config.kv_heads == config.n_heads else f", which share {config.kv_heads} of keys and values"
    factor = parts_of(config).stack.attentions[0].scale
    scale = f"; scores are q k^T times {factor:.6g}, not 1 / sqrt({config.d_head})" if factor else ""
    yield "heads", f"{config.n_heads} of width {config.d_head}{shared}{scale}"
    yield "norm", norms(config)
    yield from ((code(each.__name__), formula(each)) for each in functions(page(name)) if "layer" in purpose(each))
    gate = "gated, act(gate) * up" if config.gated else "act(hidden)"
    width = f"{config.d_model} -> {config.d_ffn} -> {config.d_model}"
    yield "feed-forward", f"{width}, {gate}, with {code(config.activation)}"
    if example(name)[0]:
        yield "weights", sizes(config)
    for parameter, choices in getattr(page(name), "CHOICES", {}).items():
        options = [f"{key}: {code(function.__name__)}" for key, function in choices.items()]
        yield f"{code(parameter)}, by checkpoint", "; ".join(options)
    yield "tasks", ", ".join(f"{head} ({code(each.__name__)})" for head, each in page(name).HEADS.items())


def layer_kinds(config: Config) -> list[tuple[str, tuple[Any, ...]]]:
    """Returns the mechanisms of a model's layers: ("", mechanisms), or a pair for local and other layers."""
    local = config.local.layers if config.local else ()
    if not config.local or not local:
        return [("", config.mechanisms)]
    others = [i for i in range(config.n_layers) if i not in local]
    kinds = [(local, config.local.mechanisms), (others, config.mechanisms)]
    return [(f" in layers {numbers(layers)}", of) for layers, of in kinds if layers]


def positions(config: Config) -> Iterator[str]:
    """Yields how attention depends on positions, and in which layers."""
    kinds = layer_kinds(config)
    found = [[each for each in of if type(each).__name__ in POSITIONAL] for _, of in kinds]
    if len(kinds) == 2 and found[0] == found[1]:
        kinds, found = [("", ())], found[:1]
    for (where, _), of in zip(kinds, found, strict=True):
        said = [f"{mechanism(each)}: {POSITIONAL[type(each).__name__]}" for each in of]
        if said or where:
            yield f"{', '.join(said) or 'nothing'}{',' if said and where else ''}{where}"


def sight(config: Config) -> list[str]:
    """Returns what a token sees, and in which layers."""
    kinds = layer_kinds(config)
    if len({seen(config, of) for _, of in kinds}) == 1:
        kinds = [("", kinds[0][1])]
    target = ["in the decoder, itself and all earlier tokens, and the source"] if config.decoder else []
    return [f"{seen(config, of)}{where}" for where, of in kinds] + target


def seen(config: Config, kinds: Iterable[Any]) -> str:
    reach = next((each.reach for each in kinds if hasattr(each, "reach")), None)
    if config.causal:
        return "itself and all earlier tokens" if reach is None else f"itself and the {reach:,} tokens before it"
    return "all tokens" if reach is None else f"itself and {reach:,} tokens before and after it"


def norms(config: Config) -> str:
    """Returns the norm and its place: "RMSNorm before each block and after the last layer, eps 1e-06"."""
    before = "before" if config.norm_first else "after"
    if any(group.endswith("output_norm") for group in parts_of(config).groups(config.d_model)):
        before = "before and after" if "layers.0.attention_norm" in parts_of(config).groups(config.d_model) else "after"
    kind = type(parts_of(config).stack.layers[0].norm).__name__
    return f"{kind} {before} each block{' and after the last layer' if config.final_norm else ''}, eps {config.eps:g}"


def sizes(config: Config) -> str:
    """Returns the number of weights in a model, in its tables and in its layers."""
    count = {name: math.prod(each.shape) for name, each in drawn(config).items()}
    layers = {name: each for name, each in count.items() if "layers." in name}
    tables = sum(each for name, each in count.items() if re.search(r"embeddings\.(?!norm)\w+\.weight", name))
    total, tables, inside = (f"{each / 1e6:,.1f}" for each in (sum(count.values()), tables, sum(layers.values())))
    said = f"{total} million: {tables} in tables, {inside} in layers"
    if config.sharing:
        own = config.sharing.groups * config.sharing.layers
        saved = sum(layers.values()) * (config.n_layers / own - 1) / 1e6
        said += f"; {config.n_layers} layers have the weights of {own}, which saves {saved:,.1f} million"
    return said + (f"; tables have {config.d_embedding} columns, not {config.d_model}" if config.d_embedding else "")


def _first_row(config: Config) -> str:
    first = config.positions.first
    return f", which begins at row {first}" if first and config.positions.table != "none" else ""


def formula(of: Any) -> str:
    """Returns the first sentence of a docstring, which has the formula, without shapes and sources."""
    line = (inspect.getdoc(of) or "").split("\n\n")[0].replace("\n", " ")
    return literal(re.split(r"\. (?:Returns|Section|\(|[A-Z]\w+ Team|[A-Z]\w+ et al)", line)[0].rstrip("."))


def mechanism(each: Any) -> str:
    """Returns a mechanism with its numbers, linked to the reference."""
    given = {field.name: getattr(each, field.name) for field in fields(each) if field.compare and field.name != "eps"}
    shown = {key: f"{value:,.10g}" for key, value in given.items() if type(value) in (int, float) and value}
    shown |= {key: type(value).__name__ for key, value in given.items() if is_dataclass(value)}
    numbers = ", ".join(f"{key} = {value}" for key, value in shown.items())
    return f"{{py:class}}`~npformer.engine.mechanisms.{type(each).__name__}`{f' with {numbers}' if numbers else ''}"


def numbers(layers: Iterable[int]) -> str:
    """Returns numbers with their runs joined: "0 to 4, 6 to 10 and 12"."""
    runs: list[list[int]] = []
    for each in layers:
        runs[-1].append(each) if runs and runs[-1][-1] == each - 1 else runs.append([each])
    said = [", ".join(map(str, run)) if len(run) < 3 else f"{run[0]} to {run[-1]}" for run in runs]
    return ", ".join(said[:3]) + (f", ... ({sum(map(len, runs))} in all)" if len(said) > 3 else "")


def side(name: str, config: Config) -> tuple[str, ...]:
    kinds = [each for _, of in layer_kinds(config) for each in of]
    ways = [f"{config.positions.table} table"] if config.positions.table != "none" else []
    ways += dict.fromkeys(type(each).__name__ for each in kinds if type(each).__name__ in POSITIONAL)
    shared = f", {config.kv_heads}&nbsp;kv" if config.kv_heads != config.n_heads else ""
    return (
        f"[{title(name)}]({name}.md)",
        ", ".join(ways),
        norms(config).partition(" each block")[0],
        f"{'gated, ' if config.gated else ''}{config.activation}",
        f"{config.n_heads}&nbsp;of&nbsp;{config.d_head}{shared}",
        sight(config)[0],
    )
