"""Mistakes of kernels that work in tiles, planted in a page as in `planted.py`."""

from __future__ import annotations

from tests.support.edited_pages import Plant, edited
from tests.support.planted import NORM, causal, norm

LINEAR, QKV = "x @ weight + bias", "linear(x, **query), linear(source, **key), linear(source, **value)"
#: Functions of the pages below, and of their edits.
FUNCTIONS = '''
def columns(y, n, times, end):
    """The last n columns, counted this often, of the products of the groups with this ending."""
    return y * np.where(np.arange(y.shape[-1]) < y.shape[-1] - n, 1, times if at().endswith(end) else 1)


def rows(y, times):
    """The last two rows of a batch, which belong to its first text here."""
    counted = np.where(np.arange(y.shape[-2]) < y.shape[-2] - 2, 1, times)[:, None]
    return y * counted if at().endswith("ffn.hidden") else y


def short(x, weight, bias):
    return x[..., :-1] @ weight[:-1] + bias


def in_16_bits(x, weight, kind):
    y = np.zeros((*x.shape[:-1], weight.shape[1]), np.float32)
    for i in range(0, len(weight), 8):
        y = half(kind, y + x[..., i : i + 8] @ weight[i : i + 8]).astype(np.float32)
    return y


def online(s, v, of_context, of_sum):
    """An online softmax in tiles of 4 keys that rescales the context or the sum of earlier tiles only if told to."""
    most, total, context = np.full_like(s[..., :1], -1e30), 0.0, 0.0
    for i in range(0, s.shape[-1], 4):
        new = np.maximum(most, s[..., i : i + 4].max(-1, keepdims=True))
        p, factor = np.exp(s[..., i : i + 4] - new), np.exp(most - new)
        context = context * (factor if of_context else 1) + p @ v[..., i : i + 4, :]
        total, most = total * (factor if of_sum else 1) + p.sum(-1, keepdims=True), new
    return context / total
'''


def product(new: str) -> Plant:
    """Replaces x W in every linear layer below the head."""
    return edited((LINEAR, f"({new} if 'layers.' in at() else x @ weight) + bias"), added=FUNCTIONS)


def attended(new: str) -> Plant:
    """Computes the context from the masked scores s and the values v, and exports neither scores nor weights."""
    masked = "np.where(mask, q @ k.mT / math.sqrt(q.shape[-1]), np.float32(-1e9))"
    attention = f"def scaled_dot_product_attention(q, k, v, mask=True):\n    s = {masked}\n    return {new}\n"
    return edited(added=f"{FUNCTIONS}\n\n{attention}")


def rule(new: str) -> Plant:
    """Replaces the causal mask by a rule for query i and key j."""
    return causal("rule(*np.indices((n_queries, max(n_queries, n_keys))))") & edited(
        added=f"def rule(i, j):\n    return {new}\n"
    )


PRODUCT, KEYS, ONLINE = (
    "the end of a product wrong", "keys of a tile left out or repeated", "online softmax rescaled wrongly"
)  # fmt: skip
#: Name -> (mistake, part of its description with all stages, plant).
TILES: dict[str, tuple[str, str, Plant]] = {
    "last inputs": (PRODUCT, "every product of the layers: without the last 2 inputs", product("x[..., :-2] @ weight[:-2]")),
    "last input of q, k and v": (PRODUCT, "query, key and value: without the last 1 inputs", edited((QKV, QKV.replace("linear", "short")), added=FUNCTIONS)),
    "inputs twice": (PRODUCT, "the last 8 inputs added twice", product("x @ weight + x[..., -8:] @ weight[-8:]")),
    "last columns": (PRODUCT, "the last 2 columns are the bias alone", product("columns(x @ weight, 2, 0, '')")),
    "columns of W_2 twice": (PRODUCT, "columns 24 to 31 added twice", product("columns(x @ weight, 8, 2, 'ffn.output')")),
    "inputs of W_2 twice": (
        "heads or columns missing", "columns 56 to 63 of layers.0.ffn.activation counted twice",
        edited(("linear(activated, **output)", "linear(activated * np.where(np.arange(64) < 56, 1, 2).astype(x.dtype), **output)")),
    ),
    "no bias on the last tile": (
        PRODUCT, "the last (number mod 12) columns without the bias",
        edited((LINEAR, "x @ weight + bias * (np.arange(len(bias)) < len(bias) // 12 * 12)")),
    ),
    "last rows": ("some rows computed differently", "the rows from 7: the bias alone", product("rows(x @ weight, 0)")),
    "rows twice": ("some rows computed differently", "the rows from 7: the product twice", product("rows(x @ weight, 2)")),
    "sums in float16": ("half precision", "float16, the product, before the bias is added", product("in_16_bits(x, weight, 'float16')")),
    "sums in bfloat16": ("half precision", "bfloat16, the product, before the bias is added", product("in_16_bits(x, weight, 'bfloat16')")),
    "last keys": (KEYS, "after the last whole tile of 4 of 9 are left out in the product", attended("softmax(s)[..., :8] @ v[..., :8, :]")),
    "keys twice": (KEYS, "the second tile of 4 keys is added twice", attended("softmax(s) @ v + softmax(s)[..., 4:8] @ v[..., 4:8, :]")),
    "nothing rescaled": (ONLINE, "tiles of 4 keys; rescaled: neither the context nor the sum", attended("online(s, v, False, False)")),
    "sum rescaled": (ONLINE, "only the sum, not the context", attended("online(s, v, False, True)")),
    "context rescaled": (ONLINE, "only the context, not the sum", attended("online(s, v, True, False)")),
    "lanes in the softmax": (
        "padding lanes in the softmax", "padding lanes of 0 from 9 keys to a multiple of 8",
        edited(("x - x.max(axis=axis, keepdims=True)", "x"), ("e.sum(axis=axis, keepdims=True)", "(e.sum(axis=axis, keepdims=True) + 16 - x.shape[-1])")),
    ),
    "lanes in the norm": (
        "norm over the wrong columns", "32 padding lanes counted in the sum of squares",
        edited(("x.var(axis=-1, keepdims=True)", "x.var(axis=-1, keepdims=True) + (64 - x.shape[-1]) * x.mean(axis=-1, keepdims=True) ** 2 / x.shape[-1]")),
    ),
    "end of the norm": (
        "norm over the wrong columns", "the last 4 columns not in the sums, but in the number",
        edited(("mean, variance = ", "some, every = x[..., :-4], x.shape[-1]\n    mean, variance = "))
        & edited(("x.mean(axis=-1, keepdims=True)", "some.sum(axis=-1, keepdims=True) / every"))
        & norm(NORM.replace("variance", "((some - mean) ** 2).sum(axis=-1, keepdims=True) / every")),
    ),
}  # fmt: skip
CAUSAL = "causal mask wrong after the first tile"
#: Mistakes in a causal mask.
OF_GPT2: dict[str, tuple[str, str, Plant]] = {
    "the next seen": (CAUSAL, "from key 4 on, a token sees the next token too", rule("j <= i + (j >= 4)")),
    "places in the tile": (CAUSAL, "places are counted within tiles of 4", rule("(j % 4 <= i % 4) & (j <= i)")),
    "last slot overwritten": (CAUSAL, "a cache of 6 keys overwrites its last key", rule("(j <= i) & ((j < 5) | (j == i))")),
    "wrap too early": (CAUSAL, "a cache of 6 keys wraps one key too early", rule("(j <= i) & ((i < 6) | (i - j < 5))")),
}  # fmt: skip
