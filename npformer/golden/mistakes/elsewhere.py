"""Known mistakes made in unusual places: in only one of several stages, or between exporting a stage and reading it.

A rule for "*norm" changes every norm on the way to a stage, but a port may have the mistake in only one of them. A port
may also export a stage before it makes the mistake.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from npformer.common.errors import NpformerError
from npformer.golden.graph import matches
from npformer.golden.mistake import Mistake, Ways
from npformer.golden.mistakes.kinds import in_all_layers, is_single, parents_of
from npformer.golden.port import Port


def elsewhere(mistakes: Iterable[Mistake]) -> tuple[Mistake, ...]:
    """Returns the same mistakes, made in unusual places: in one kind of stage only, or where a stage is read."""
    return tuple(each._replace(changes=lambda port, each=each: _ways(each, port)) for each in mistakes)


def narrower(mistake: Mistake, way: str, before: Port, wrong: Port) -> Mistake:
    """Narrows a mistake found at an earlier stage to a single place on the way to a later stage.

    For example, a rule for "*.attention_norm" also changes the norm of attention to the source, where the port may be
    right. before, wrong: the port without and with the mistake.
    """
    begin, end = len(before.rules), len(wrong.rules)

    def ways(port: Port) -> Ways:
        kinds = dict.fromkeys(map(in_all_layers, port.known))
        here = {in_all_layers(name) for name in port.span}
        for place in here:
            rules = [
                (kind, rule)
                for pattern, rule in wrong.rules[begin:end]
                for kind in kinds
                if matches(kind.replace("*", "0"), pattern) and (kind == place or kind not in here)
            ]
            if any(kind == place for kind, _ in rules):
                changed = (*port.rules[:begin], *rules, *port.rules[end:])
                yield _said(way, f"only in {place.removeprefix('layers.*.')}"), replace(port, rules=changed)

    return mistake._replace(changes=ways)


def _ways(mistake: Mistake, port: Port) -> Ways:
    yield from _in_one_place(mistake, port)
    if is_single(port):
        yield from _where_read(mistake, port)


def _said(way: str, place: str) -> str:
    return f"{way}, {place}".removeprefix(", ")


def _in_one_place(mistake: Mistake, port: Port) -> Ways:
    """Yields each rule of the mistake, restricted to one kind of stage."""
    everywhere = dict.fromkeys(map(in_all_layers, port.known))
    kinds = dict.fromkeys(map(in_all_layers, (name for name in port.known if name in port.span)))
    for way, changed in mistake.ways(port):
        added = changed.rules[len(port.rules) :]
        if not added or changed.weights is not port.weights or changed.config is not port.config:
            continue
        places = [(kind, rule) for pattern, rule in added for kind in kinds if matches(kind.replace("*", "0"), pattern)]
        count = sum(matches(kind.replace("*", "0"), pattern) for pattern, _ in added for kind in everywhere)
        for kind, rule in places if count > 1 else ():
            yield _said(way, f"only in {kind.removeprefix('layers.*.')}"), port.ruling({kind: rule})


def _where_read(mistake: Mistake, port: Port) -> Ways:
    """Makes the mistake in a stage that the port's stage reads, as if the port had exported it before the mistake."""
    for name in parents_of(port):
        if name not in port.given:
            continue
        theirs = port.given[name]  # taken as correct, because the mistake comes after it
        there = replace(port, stage=name, theirs=theirs, rightly=theirs, span=frozenset({name}))
        try:
            ways = list(mistake.ways(there))
        except NpformerError:
            continue
        for way, changed in ways:
            rules = dict(changed.rules[len(port.rules) :])
            if rules and changed.weights is port.weights and any(matches(name, pattern) for pattern in rules):
                yield _said(way, f"where {name} is read"), port.rereading(rules, port.stage)
