"""Edits for a text that a program reads in several chunks, with the keys and values of earlier chunks in a cache.

Each edit names a reading: `chunks_of(3)`, or `steps_after(4)` for a prompt of 4 tokens and then one token at a time.
The edit makes the same mistake in every chunk, while the edits of `chunks` change the rows after a single border.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple

from npformer.golden.page_edits.case import Case
from npformer.golden.page_edits.chunks import are_positions, unscaled_rotations
from npformer.golden.page_edits.operators import Edit, expressions

#: Sizes of chunks and prompts that are tried: all small ones, and powers of 2.
SIZES = (*range(1, 10), 16, 32, 64, 128, 256, 512)
#: Numbers of slots in a cache that are tried; 0 for as many as the text has tokens.
SLOTS = (0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
#: More sizes of caches, which are tried if the length of the prompt is known.
MORE_SLOTS = tuple(each for each in range(8, 100, 4) if each not in SLOTS)
#: Formats in which the rows of a chunk share scales, and formats that round each row alone.
OF_CHUNKS = ("int8", "int8_heads", "uint8", "uint8_heads", "int8_columns", "int4_columns")
OF_PROMPTS = tuple(f"with_scale_of_prompt({{x}}, {{reading}}{more})" for more in ("", ", (-2, -1)", ", -2"))
OF_ROWS = (
    "int8_rows({x})", "int8_tokens({x})", "float16({x})", "bfloat16({x})", "float8({x})", "float8_e5m2({x})",
    "q8_0({x}.mT).mT", "q4_0({x}.mT).mT", "int4_rows({x})", "uint4_rows({x})", "uint8_rows({x})",
    "bfloat16({x}, toward_zero=True)",
)  # fmt: skip
#: The mask of a later chunk that is aligned to the top left.
FROM_CORNER = "{mask} & from_corner({scores}, {reading})"
#: Wrong masks of later chunks. In this order they show the whole chunk, hide all keys before it, hide the last key
#: before it, are aligned to the top left, or hide the keys that the chunk overwrote in a cache of the window's size.
MASKS = (
    "{mask} | own_later_chunk({scores}, {reading})", "{mask} & own_chunk({scores}, {reading})",
    "{mask} & ~before_chunk({scores}, {reading})", FROM_CORNER, "{mask} & in_ring({mask}, {reading})",
)  # fmt: skip


class Attention(NamedTuple):
    """The expressions that compute attention in a function; an expression is None if the stage does not need it."""

    scores: ast.BinOp | None  # q @ k.mT
    softmax: ast.Call | None  # masked_softmax(scores, mask)
    context: ast.BinOp | None  # weights @ v

    @property
    def key(self) -> ast.expr | None:
        return self.scores.right.value if self.scores and isinstance(self.scores.right, ast.Attribute) else None

    @property
    def value(self) -> ast.expr | None:
        return self.context.right if self.context else None


def edits(case: Case, function: str, statements: Iterable[ast.stmt]) -> Iterator[list[Edit]]:
    """Yields the edits that make a function's `statements` misread a text in chunks. Each may change several lines."""
    if not case.is_causal or case.right[0].ndim < 2:
        return
    statements = list(statements)
    of = _attention(statements)
    if of.scores or of.softmax or of.context:  # an edit of the scores may need one of the context, too
        of = _attention(case.page.functions[function].body)
    yield from _of_keys_and_values(of, OF_ROWS)
    yield from _of_masks(of, "", [f"with_first_keys({{mask}}, {count})" for count in (1, 2, 4)])
    if case.spares_first_text:
        yield from _of_other_texts(case, of)
    if case.start:  # the other mistakes of a single border are in `chunks`
        yield from _of_masks(of, f"rest_after({case.start})", (FROM_CORNER,))
    others = list(_other_rows(case))
    for reading, border in _readings(max(each.shape[-2] for each in case.right), case.start):
        yield from _of_keys_and_values(of, [f"by_chunk({each}, {{x}}, {reading})" for each in OF_CHUNKS])
        yield from _of_masks(of, reading, ("{mask} | own_chunk({scores}, {reading})",))
        if reading.startswith("steps"):
            yield from _of_keys_and_values(of, [each.replace("{reading}", reading) for each in OF_PROMPTS])
            yield from _of_prompts(case, function, statements, reading)
        if border <= case.start:  # the rows before the first border are correct
            yield from _of_masks(of, reading)
            yield from _from_cache(of, reading, [(each, each) for each in OF_ROWS], "rounded")
            yield from _from_cache(of, reading, others, "in later rows")
            yield from _unwritten(of, reading, SLOTS, case.stage)
            if reading == f"steps_after({case.start})":
                yield from _unwritten(of, reading, MORE_SLOTS, case.stage)
            yield from _written_early(of, reading)
            yield from _of_positions(case, function, statements, reading)


def _attention(statements: Iterable[ast.stmt]) -> Attention:
    scores = softmax = context = None
    for node in expressions(statements):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            if isinstance(node.right, ast.Attribute) and isinstance(node.left, ast.Name) and node.right.attr == "mT":
                scores = scores or node
            elif ast.unparse(node.left) == "weights":
                context = node
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "masked_softmax":
            softmax = node
    return Attention(scores, softmax, context)


def _readings(length: int, start: int) -> Iterator[tuple[str, int]]:
    """Yields the readings to try, each with the first row of its second chunk. start: the first wrong row, or 0."""
    sizes = [each for each in SIZES if each < length]
    yield from ((f"steps_after({size})", size) for size in dict.fromkeys([*([start] if start else []), *sizes]))
    yield from ((f"chunks_of({size})", size) for size in sizes if size > 1)


def _of_keys_and_values(of: Attention, texts: Iterable[str]) -> Iterator[list[Edit]]:
    """Yields edits that store keys, values or both in a format. texts: calls that round the array {x}."""
    for text in texts:
        pairs = [(each, text.format(x=ast.unparse(each))) for each in (of.key, of.value) if each is not None]
        yield from _each_and_both([Edit(*pair, "rounded") for pair in pairs])


def _of_other_texts(case: Case, of: Attention) -> Iterator[list[Edit]]:
    """Yields edits that take the keys or values of the first tokens from an earlier text, as from a stale cache."""
    for name in case.cached[0]:
        group, _, last = name.rpartition(".")
        if last not in ("key", "key_rotated") or f"{group}.value" not in case.cached[0]:
            continue
        for text, size in product(("first_text", "earlier"), SIZES):
            some = []
            for node, read in ((of.key, name), (of.value, f"{group}.value")):
                if node is not None:
                    own = ast.unparse(node)
                    some.append(Edit(node, f"after_prefix({text}[{read!r}], {own}, {size})", "from elsewhere"))
            yield from _each_and_both(some)


def _each_and_both(some: list[Edit]) -> Iterator[list[Edit]]:
    yield from ([each] for each in some)
    if len(some) > 1:
        yield some


def _from_cache(of: Attention, reading: str, texts: Iterable[tuple[str, str]], kind: str) -> Iterator[list[Edit]]:
    """Yields edits in which queries read wrong keys, values or both of earlier chunks, the pairs in `texts`."""
    for pair in texts:
        key, value = (each.replace("READING", reading) for each in pair)
        some = []
        if of.scores is not None and of.key is not None:
            own, other = ast.unparse(of.scores), key.format(x=ast.unparse(of.key))
            read = f"from_cache({own}, {ast.unparse(of.scores.left)} @ ({other}).mT, {reading})"
            some.append(Edit(of.scores, read, kind))
        if of.context is not None and of.value is not None and value != "{x}":
            weights, own = ast.unparse(of.context.left), ast.unparse(of.value)
            mixed = f"mixed_from_cache({weights}, {own}, {value.format(x=own)}, {reading})"
            some.append(Edit(of.context, mixed, kind))
        yield from _each_and_both(some)


def _other_rows(case: Case) -> Iterator[tuple[str, str]]:
    """Yields pairs of keys and values that a program may have cached wrongly, such as those of another layer."""
    for name in case.cached[0]:
        group, _, last = name.rpartition(".")
        key, values = f"heads_like(caches[{name!r}], {{x}})", f"{group}.value"
        if last in ("key", "key_normed", "key_rotated") and values in case.cached[0]:
            yield key, f"heads_like(caches[{values!r}], {{x}})"
            yield key, "{x}"
            if "angles" in case.page.module.__dict__ and last != "key_rotated":
                yield f"rotate({key}, *angles)", "{x}"
    if "angles" in case.page.module.__dict__:
        yield "rotate({x}, *angles)", "{x}"
    for text in ("0 * {x}", "overwritten({x}, READING)", "np.roll({x}, 1, axis=-2)", "np.roll({x}, -1, axis=-2)"):
        yield text, text


def _of_masks(of: Attention, reading: str, texts: Iterable[str] = MASKS) -> Iterator[list[Edit]]:
    if of.softmax is not None and len(of.softmax.args) == 2:
        scores, mask = map(ast.unparse, of.softmax.args)
        for text in texts:
            yield [Edit(of.softmax.args[1], text.format(mask=mask, scores=scores, reading=reading), "in later rows")]


def _unwritten(of: Attention, reading: str, all_slots: Iterable[int], stage: str) -> Iterator[list[Edit]]:
    """Yields edits in which later chunks attend to unwritten slots of a cache, with keys and values of 0."""
    if of.softmax is None or len(of.softmax.args) != 2:
        return
    scores, mask = map(ast.unparse, of.softmax.args)
    for slots in all_slots:
        text = f"with_unwritten_keys({scores}, {mask}, {reading}{f', slots={slots}' if slots else ''})"
        some = [Edit(of.softmax, text, "in later rows")]
        if of.context is not None:
            weights, value = ast.unparse(of.context.left), ast.unparse(of.context.right)
            some.append(Edit(of.context, f"({weights} * {mask}) @ {value}", "in later rows"))
        yield some
        if stage.endswith("weights"):  # the port exports no weights of unwritten keys
            yield [Edit(of.softmax, f"{text} * {mask}", "in later rows")]


def _written_early(of: Attention, reading: str) -> Iterator[list[Edit]]:
    """Yields edits that write keys, values or both into the cache one row too early."""
    some = []
    if of.scores is not None and of.key is not None:
        text = f"written_early({ast.unparse(of.scores.left)}, {ast.unparse(of.key)}, {reading}, product=True)"
        some.append(Edit(of.scores, text, "in later rows"))
    if of.context is not None:
        weights, value = ast.unparse(of.context.left), ast.unparse(of.context.right)
        some.append(Edit(of.context, f"written_early({weights}, {value}, {reading})", "in later rows"))
    yield from _each_and_both(some)


def _of_positions(case: Case, function: str, statements: Iterable[ast.stmt], reading: str) -> Iterator[list[Edit]]:
    """Yields edits in which positions restart in each chunk, or all tokens of a chunk have the first one's position."""
    for node in _positions(case, function, statements):
        for how in ("restarted", "of_first"):
            yield [Edit(node, f"{how}({ast.unparse(node)}, {reading})", "in later rows")]


def _of_prompts(case: Case, function: str, statements: Iterable[ast.stmt], reading: str) -> Iterator[list[Edit]]:
    """Yields edits of the prompt: its positions begin elsewhere, or it is rotated without scaling or not at all."""
    nodes: list[tuple[ast.expr, str]] = list(unscaled_rotations(statements))
    for node in _positions(case, function, statements):
        nodes += [(node, f"{ast.unparse(node)} + 1"), (node, f"0 * {ast.unparse(node)}")]
    for node in expressions(statements):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("rotate"):
            nodes.append((node, ast.unparse(node.args[0])))
    for node, text in nodes:
        yield [Edit(node, f"in_prompt({text}, {ast.unparse(node)}, {reading})", "in later rows")]


def _positions(case: Case, function: str, statements: Iterable[ast.stmt]) -> Iterator[ast.expr]:
    """The expressions of statements that compute the positions of a text's tokens."""
    frame = case.call_of(function)
    arguments = frame.arguments if frame else {}
    return (node for node in expressions(statements) if are_positions(node, arguments))
