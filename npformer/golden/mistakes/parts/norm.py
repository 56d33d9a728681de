"""Rules for mistakes that ports make in norms of any kind: wrong formulas, in all norms or in norms of one kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from npformer.golden.mistake import Rule, Rules, Ways

EPS = (1e-5, 1e-6, 1e-12, 1e-3, 1e-7, 1e-8, 1e-10, 1e-4, 0.0)
IN_GROUPS = "a row is normalized over all its columns at once"


def centred(x: np.ndarray) -> np.ndarray:
    return x - x.mean(-1, keepdims=True)


def variance(x: np.ndarray) -> np.ndarray:
    return np.square(centred(x)).mean(-1, keepdims=True)


def standard(x: np.ndarray, eps: float) -> np.ndarray:
    """(x - E[x]) / sqrt(Var[x] + eps)."""
    return centred(x) / np.sqrt(variance(x) + eps)


def of_norms(rule: Rule) -> Rules:
    """Rules for every norm. Norms of queries and keys with a weight (K,) read rows (T, H K) as (T, H, K)."""
    return {"*norm": rule, "*_normed": lambda y, at: np.reshape(rule(at.grouped.split(y), at.grouped), y.shape)}


def everywhere(changes: Mapping[str, Rules] | Callable[[Any], Ways]) -> Callable[[Any], Ways]:
    """Ways to make a mistake in all norms and, in a model with norms of queries and keys, in norms of one kind only."""

    def ways(port: Any) -> Ways:
        has_both = any(name.endswith("_normed") for name in port.span) and any(
            name.endswith("norm") for name in port.span
        )
        for way, rules in changes.items() if isinstance(changes, Mapping) else changes(port):
            yield way, rules
            if has_both and len(rules) > 1:
                for said, pattern in (("in norms of queries and keys", "*_normed"), ("in norms of rows", "*norm")):
                    yield f"{way}, only {said}".removeprefix(", "), {pattern: rules[pattern]}

    return ways


def normed(formula: Callable[[np.ndarray, float], np.ndarray], eps: float | None = None) -> Rules:
    """Rules that replace the formula of every norm with a function of x and eps, before weight and bias are applied."""
    return of_norms(lambda y, at: at.affine(formula(at.source, at.config.eps if eps is None else eps)))


def in_groups(formula: Callable[[np.ndarray, float], np.ndarray]) -> Callable[[Any], Ways]:
    """Ways to normalize groups of a row's columns, such as each head's columns, with a formula of x and eps."""

    def ways(port: Any) -> Ways:
        for count in dict.fromkeys((port.n_heads, 2, 4, 8, 16)):

            def rule(y: np.ndarray, at: Any, count: int = count) -> Any:
                groups = at.source.reshape(*at.source.shape[:-1], count, -1)
                return at.affine(formula(groups, at.config.eps).reshape(y.shape))

            if count > 1 and port.config.d_model % count == 0:
                yield f"{count} groups{', one per head' if count == port.n_heads else ''}", {"*norm": rule}

    return ways
