"""Mistakes in ports of decoders, planted in the page of each family as in `planted.py`."""

from __future__ import annotations

from npformer.plain.gpt2 import gpt2_layer
from tests.support.edited_pages import Plant, edited, exported, inputs, layer, resplit, rotated, swapped, taken
from tests.support.planted import GELU_TANH, REACH

FREQUENCIES = "30.0 ** (-np.arange(0, 8, 2) / 8).astype(np.float32)"
ATTENDED, GATED = "linear(combined, **output)", "gated_feed_forward(x, activation, gate, up, output)"
FED = "olmo2_feed_forward(attention_residual, activation, eps, **ffn)"
SUM = "attention_residual + gemma2_feed_forward(normed, activation, eps, **ffn)"
ROOT, HEADS = "(x**2).mean(axis=-1, keepdims=True) + eps", "split_heads(linear(x, **{0}), {1})"
SLOPES = "np.concatenate([geometric(below), geometric(2 * below)[::2][: n_heads - below]])"
DISTANCES, BIASED = "np.arange(length) - np.arange(length)[:, None]", "math.sqrt(query_heads.shape[-1]) + bias"


def no_norm(of: str, *blocks: str) -> Plant:
    """Returns an edit that leaves out the norms that the function `of` computes after blocks."""
    return edited(*((f"{of}({each}, **output_norm, eps=eps)", each) for each in blocks))


def both(old: str, new: str) -> Plant:
    """Returns an edit of the queries together with the same edit of the keys."""
    return edited(*((old.format(*each), new.format(*each)) for each in (("query", "n_heads"), ("key", "n_kv_heads"))))


UNROTATED = edited(("tion(query_rotated,", "tion(query_heads,"), ("[past[0], key_rotated]", "[past[0], key_heads]"))
NORMED_FIRST = edited(("    query_normed", "    x = rms_norm(x, **output_norm, eps=eps); query_normed"))
BEFORE_ATTENTION = no_norm("rms_norm", ATTENDED) & NORMED_FIRST
#: A port that does not rotate in layer 0 exports no rotated queries and keys.
NOT_ROTATED = exported(lambda stages: dict.fromkeys(f"layers.0.attention.{name}_rotated" for name in ("query", "key")))
LEFT_OUT, BEFORE, WINDOW = "missing norm after a block", "norm before a block, not after it", "wrong local window"
COLUMNS, SCALED = "rotation of the wrong columns", "rotation scaled differently"
#: (families, name of a planted mistake, its name in the diagnosis, the `Plant`).
ROWS: tuple[tuple[str, str, str, Plant], ...] = (
    ("gpt_neox bloom", "split in thirds", "query, key and value split in thirds", resplit(3, -1, 8)),
    ("gpt_neox", "one after another", "blocks one after another", edited(("layer_norm(x, **ffn_norm", "layer_norm(x + attended, **ffn_norm"))),
    ("gpt_neox", "attention's norm for both", "one norm for both blocks", taken((".ffn_norm.", ".attention_norm."))),
    ("gpt_neox", "norms exchanged", "one norm for both blocks", swapped("attention_norm", "ffn_norm")),
    ("gpt_neox phi3", "whole heads", COLUMNS, inputs(frequencies=FREQUENCIES)),
    ("gpt_neox", "last columns", COLUMNS, edited(
        ("[rotate(x[..., :n_rotated], cos, sin), x[..., n_rotated:]]", "[x[..., :-n_rotated], rotate(x[..., -n_rotated:], cos, sin)]"))),
    ("gpt_neox", "d_head in frequencies", COLUMNS, inputs(frequencies=f"({FREQUENCIES})[:2]")),
    ("gpt_neox", "neighbours", "rotation of pairs instead of halves", edited(("np.split(x, 2, axis=-1)", "x[..., ::2], x[..., 1::2]"),
        ("np.concatenate([first", "np.stack([first"), ("first * sin], axis=-1)", "first * sin], axis=-1).reshape(x.shape)"))),
    ("phi3", "up and gate", "gate and up swapped", edited(("(linear(x, **gate))", "(linear(x, **up))"), ("* linear(x, **up)\n", "* linear(x, **gate)\n"))),
    # for texts longer than in training: cosines and sines not scaled; factors 1 and 1.5 instead of 3 and 12.5
    ("phi3", "no attention factor", SCALED, edited(("magnitude * np.cos(angles), magnitude * np.sin(angles)", "np.cos(angles), np.sin(angles)"))),
    ("phi3", "short factors", SCALED, edited(("frequencies.astype(", "(frequencies * [3, 12.5 / 1.5] if len(positions) > 7 else frequencies).astype("))),
    ("smollm3", "rotation in all layers", "rotation in the wrong layers", rotated((0, 0, 0))),
    ("smollm3", "1 without rotation", "rotation in the wrong layers", rotated((1, 0, 1)) & NOT_ROTATED),
    ("smollm3", "one layer more without", "rotation left out or wrong", rotated((1, 1, 2)) & NOT_ROTATED),
    ("smollm3", "rotation by 0", "rotation left out or wrong", rotated((1, 1, 2))),
    ("olmo2", "norms before blocks", BEFORE, BEFORE_ATTENTION & edited(
        (f"rms_norm({GATED}, **output_norm, eps=eps)", GATED.replace("(x,", "(rms_norm(x, **output_norm, eps=eps),")))),
    ("olmo2", "norm before attention", BEFORE, BEFORE_ATTENTION),
    ("olmo2", "norm before the FFN, as in Llama", BEFORE, no_norm("rms_norm", ATTENDED) & edited(
        (FED, FED.replace("attention_residual", 'rms_norm(attention_residual, **attention["output_norm"], eps=eps)')))),
    ("olmo2", "norms of the sums", "norm of the sum, not of a block's output", no_norm("rms_norm", ATTENDED, GATED) & edited(
        ("= x + attended", '= rms_norm(x + attended, **attention["output_norm"], eps=eps)'),
        (f"attention_residual + {FED}", f'rms_norm(attention_residual + {FED}, **ffn["output_norm"], eps=eps)'))),
    ("olmo2", "no norm after attention", LEFT_OUT, no_norm("rms_norm", ATTENDED)),
    ("olmo2", "no norms after blocks", LEFT_OUT, no_norm("rms_norm", ATTENDED, GATED)),
    ("olmo2", "norms after blocks exchanged", "norms exchanged", swapped("attention.output_norm", "ffn.output_norm")),
    ("olmo2", "norms of heads", "norms of heads instead of norms of rows", both("rms_norm(linear(x, **{0})", "by_heads(linear(x, **{0})") & edited(
        added="def by_heads(x, weight, eps):\n    return rms_norm(x.reshape(len(x), -1, 8), 1.0, eps).reshape(x.shape) * weight")),
    ("olmo2", "no norms of queries and keys", "norms of queries and keys left out", both("rms_norm(linear(x, **{0}), **{0}_norm, eps=eps)", "linear(x, **{0})")),
    ("olmo2", "rotated first", "norms of queries and keys after the rotation", UNROTATED
        & both("{0}_normed = rms_norm(linear(x, **{0}),", f"{{0}}_rotated = rotate({HEADS}, *angles); {{0}}_normed = rms_norm(combine_heads({{0}}_rotated),")
        & both("{0}_rotated = rotate(split_heads({0}_normed, {1}), *angles)", "{0}_heads = split_heads({0}_normed, {1})")),
    ("olmo2", "norms of queries and keys exchanged", "norms of queries and keys exchanged", swapped("query_norm", "key_norm")),
    ("olmo2", "eps of 1e-6", "wrong RMSNorm eps", edited((ROOT, ROOT.replace("eps", "1e-6")))),
    ("olmo2", "mean subtracted from queries and keys", "mean subtracted in RMSNorm", both(
        "rms_norm(linear(x, **{0})", "rms_norm((y := linear(x, **{0})) - y.mean(axis=-1, keepdims=True)")),
    ("olmo2", "no last norm", "RMSNorm left out", edited(("return rms_norm(x, **norm, eps=eps), past", "return x, past"))),
    ("olmo2", "the FFN reads the layer's input", "the FFN reads the wrong stage", edited((FED, FED.replace("attention_residual", "x")))),
    ("olmo2", "the FFN first", "FFN before attention", edited(
        ("    attended, past =", f"    ffn_residual = x = x + {FED.replace('attention_residual', 'x')}\n    attended, past ="),
        (f"    ffn_residual = attention_residual + {FED}", ""), ("return ffn_residual, past", "return attention_residual, past"))),
    ("bloom", "slopes of 2^(-8 h / H)", "ALiBi with wrong slopes", edited((SLOPES, "geometric(n_heads)"))),
    ("bloom", "slopes of the first heads", "ALiBi with wrong slopes", edited((SLOPES, "geometric(2 * below)[:n_heads]"))),
    ("bloom", "wrong sign", "ALiBi with the wrong sign", edited((DISTANCES, f"-({DISTANCES})"))),
    ("bloom", "absolute distances", "ALiBi with the wrong sign", edited((DISTANCES, f"abs({DISTANCES})"))),
    ("bloom", "no ALiBi", "ALiBi left out", edited((BIASED, BIASED.removesuffix(" + bias")))),
    ("bloom", "scaled", "ALiBi scaled", edited((BIASED, f"{BIASED} / math.sqrt(query_heads.shape[-1])"))),
    ("opt", "no offset", "positions off by one", inputs(positions="positions - 2")),
    ("opt", "no project_in", "missing projection of the token rows", edited(
        ("total = linear(embedding(ids, **token), **project)", "project = np.pad(embedding(ids, **token), ((0, 0), (0, 16))); total = project"))),
    ("opt", "no project_out", "missing projection of the last layer's rows", edited(
        ("return last_projection(last_norm(x, **norm, eps=eps), **project)", "project = x[:, :16]; return project"))),
    ("opt", "norms before", "pre-norm instead of post-norm", layer("opt_layer", gpt2_layer)),
    ("gemma2", "w for 1 + w", "1 + weight of RMSNorm misused", edited(("rms_norm(x, 1 + weight, eps)", "rms_norm(x, weight, eps)"))),
    ("gemma2", "no norm after attention", LEFT_OUT, no_norm("gemma_norm", ATTENDED)),
    ("gemma2", "no norm after the FFN", LEFT_OUT, no_norm("gemma_norm", GATED)),
    ("gemma2", "Llama's places", "norms in the wrong places", swapped("attention.output_norm", "ffn_norm")),
    ("gemma2", "norm of the sum", "norm of the sum, not of a block's output", no_norm("gemma_norm", ATTENDED, GATED) & edited(
        ("= x + attended", '= gemma_norm(x + attended, **attention["output_norm"], eps=eps)'), (SUM, f'gemma_norm({SUM}, **ffn["output_norm"], eps=eps)'))),
    ("gemma2", "no cap of scores", "soft cap of scores left out", edited(("soft_cap(uncapped_scores, score_cap)", "uncapped_scores"))),
    ("gemma2", "no cap of logits", "soft cap of logits left out", edited(('soft_cap(linear(x, **head["output"]), logit_cap)', 'linear(x, **head["output"])'))),
    ("gemma2", "1 / sqrt(d_head)", "scores divided by sqrt(d_head)", edited(("q @ k.mT * score_scale", "q @ k.mT * q.shape[-1] ** -0.5"))),
    ("gemma2", "no window", WINDOW, edited((REACH, "key_positions) <= 99"))),
    ("gemma2", "exclusive window", WINDOW, edited((REACH, "key_positions) <= reach - 1"))),
    ("gemma2", "unscaled embeddings", "embeddings scaled differently", edited(("tokens = scale *", "tokens ="))),
    ("gemma2", "silu", "wrong activation", edited((GELU_TANH, "x / (1 + np.exp(-x))"))),
    ("gemma3_text", "window everywhere", WINDOW, edited((REACH, "key_positions) <= 2"))),
    ("gemma3_text", "heads not normalized", "norms of queries and keys left out", both(f"gemma_norm({HEADS}, **{{0}}_norm, eps=eps)", HEADS)),
    ("gemma3_text", "rotated first", "norms of queries and keys after the rotation", UNROTATED
        & both(f"{{0}}_normed = gemma_norm({HEADS},", f"{{0}}_rotated = rotate({HEADS}, *angles); {{0}}_heads = {{0}}_normed = gemma_norm({{0}}_rotated,")
        & edited(("query_rotated, key_rotated = rotate(query_normed, *angles), rotate(key_normed, *angles)\n", "\n"))),
    ("gemma3_text", "w for 1 + w in heads", "1 + weight of RMSNorm misused", both(f"gemma_norm({HEADS}", f"rms_norm({HEADS}")),
    ("gemma3_text", "thetas exchanged", "rotation with the wrong base", rotated((1, 0))),
)  # fmt: skip
#: Family -> name of a planted mistake -> its name in the diagnosis, and the `Plant`.
FAMILIES = dict.fromkeys(family for families, *_ in ROWS for family in families.split())
PLANTED = {family: {key: (name, plant) for of, key, name, plant in ROWS if family in of.split()} for family in FAMILIES}
