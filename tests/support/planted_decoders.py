"""Mistakes in ports of decoders, planted in the page of each family and diagnosed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npformer import golden
from npformer.engine.runtime.packing import Text
from npformer.model import Model
from npformer.plain.gpt2 import gpt2_layer
from npformer.plain.rotary import rotary_frequencies
from tests.support.edited_pages import Arrays, Plant, edited, exported, inputs, run, weights
from tests.support.planted import GELU_TANH, layer, swapped

TEXTS = (np.arange(5, 14), np.arange(20, 26))
#: Stages that a port exports, besides its layers' outputs, if it exports only hidden states and answers.
ANSWERS = ("embeddings.sum", "embeddings.norm", "norm", "logits", "project")
BASE, WIDTH = 30.0, 8  # of the rotations of GPT-NeoX and Phi-3


def split_in_thirds(flat: Arrays) -> Arrays:
    """Splits projections interleaved by head as if they held all queries, then all keys, then all values."""
    found = {}
    for name in [each for each in flat if ".attention.query." in each]:
        names = [name.replace("query", each) for each in ("query", "key", "value")]
        heads = [np.split(flat[each], flat[each].shape[-1] // WIDTH, axis=-1) for each in names]
        fused = np.concatenate([part for head in zip(*heads, strict=True) for part in head], axis=-1)
        found |= dict(zip(names, np.split(fused, 3, axis=-1), strict=True))
    return found


def attention_norms(flat: Arrays) -> Arrays:
    return {name: flat[name.replace("ffn", "attention")] for name in flat if ".ffn_norm." in name}


def frequencies(of: np.ndarray) -> Plant:
    return inputs(lambda given: {"frequencies": of})


def both(old: str, new: str) -> Plant:
    """An edit of queries, and the same of keys."""
    names = (("query", "n_heads"), ("key", "n_kv_heads"))
    return edited(*((old.format(*each), new.format(*each)) for each in names))


def rotated_in(layers: str) -> Plant:
    """Rotates with the angles of these layers, in the order of the page's layers."""
    return edited(("zip(layers, rotations,", f"zip(layers, [rotations[i] for i in {layers}],"))


def window(reach: str) -> Plant:
    return edited(
        (
            "np.abs(positions[:, None] - key_positions) <= reach",
            f"np.abs(positions[:, None] - key_positions) <= {reach}",
        )
    )


GATED = "gated_feed_forward(x, activation, gate, up, output)"
WHOLE_HEADS = ("rotation of the wrong columns", frequencies(rotary_frequencies(WIDTH, BASE)))
THIRDS = ("query, key and value split in thirds", weights(split_in_thirds))


def no_norm(of: str, *blocks: str) -> Plant:
    """Leaves out the norms after blocks, which the function `of` computes."""
    outputs = {"attention": "linear(combined, **output)", "ffn": GATED}
    return edited(*((f"{of}({outputs[each]}, **output_norm, eps=eps)", outputs[each]) for each in blocks))


GPT_NEOX: dict[str, tuple[str, Plant]] = {
    "split in thirds": THIRDS,
    "one after another": (
        "blocks one after another", edited(("layer_norm(x, **ffn_norm", "layer_norm(x + attended, **ffn_norm"))
    ),
    "attention's norm for both": ("one norm for both blocks", weights(attention_norms)),
    "norms exchanged": ("one norm for both blocks", swapped("attention_norm", "ffn_norm")),
    "whole heads": WHOLE_HEADS,
    "last columns": (
        "rotation of the wrong columns",
        edited((
            "[rotate(x[..., :n_rotated], cos, sin), x[..., n_rotated:]]",
            "[x[..., :-n_rotated], rotate(x[..., -n_rotated:], cos, sin)]",
        )),
    ),
    "d_head in frequencies": (
        "rotation of the wrong columns", frequencies(BASE ** (-np.arange(0, 4, 2) / WIDTH).astype(np.float32))
    ),
    "neighbours": (
        "rotation of pairs instead of halves",
        edited(
            ("np.split(x, 2, axis=-1)", "x[..., ::2], x[..., 1::2]"),
            ("np.concatenate([first", "np.stack([first"),
            ("first * sin], axis=-1)", "first * sin], axis=-1).reshape(x.shape)"),
        ),
    ),
}  # fmt: skip
PHI3: dict[str, tuple[str, Plant]] = {
    "up and gate": (
        "gate and up swapped",
        edited(
            ("activation(linear(x, **gate))", "activation(linear(x, **up))"),
            ("activated * linear(x, **up)", "activated * linear(x, **gate)"),
        ),
    ),
    "whole heads": WHOLE_HEADS,
}
#: Of texts longer than those in training, whose rotation is scaled.
LONG_PHI3: dict[str, tuple[str, Plant]] = {
    "no attention factor": (
        "rotation scaled differently",
        edited(("magnitude * np.cos(angles), magnitude * np.sin(angles)", "np.cos(angles), np.sin(angles)")),
    ),
    "short factors": (  # 1 and 1.5 for 3 and 12.5 in texts of more than 7 tokens
        "rotation scaled differently",
        edited(
            (
                "frequencies.astype(np.float64)",
                "(frequencies * [3, 12.5 / 1.5] if len(positions) > 7 else frequencies).astype(np.float64)",
            )
        ),
    ),
}
#: A port that does not rotate in layer 0 exports no rotated queries and keys.
NOT_ROTATED = exported(lambda stages: dict.fromkeys(f"layers.0.attention.{name}_rotated" for name in ("query", "key")))
SMOLLM3: dict[str, tuple[str, Plant]] = {
    "rotation in all layers": ("rotation in the wrong layers", rotated_in("(0, 0, 0)")),
    "1 without rotation": ("rotation in the wrong layers", rotated_in("(1, 0, 1)") & NOT_ROTATED),
    "one layer more without": ("rotation left out or wrong", rotated_in("(1, 1, 2)") & NOT_ROTATED),
    "rotation by 0": ("rotation left out or wrong", rotated_in("(1, 1, 2)")),
}
BEFORE_ATTENTION = no_norm("rms_norm", "attention") & edited(
    ("    query_normed =", "    x = rms_norm(x, **output_norm, eps=eps)\n    query_normed =")
)
BEFORE_FFN = no_norm("rms_norm", "ffn") & edited(
    (f"return {GATED}", f"return {GATED}".replace("(x,", "(rms_norm(x, **output_norm, eps=eps),"))
)
FFN = "olmo2_feed_forward(attention_residual, activation, eps, **ffn)"
FFN_FIRST = """
def olmo2_layer(x, past, mask, heads, angles, activation, eps, attention, ffn):
    ffn_residual = x + olmo2_feed_forward(x, activation, eps, **ffn)
    attended, past = olmo2_attention(ffn_residual, past, mask, heads, angles, eps, **attention)
    attention_residual = ffn_residual + attended
    return attention_residual, past
"""
BY_HEADS = f"""
def by_heads(x, weight, eps):
    heads = x.reshape(len(x), -1, {WIDTH})
    return rms_norm(heads, 1.0, eps).reshape(x.shape) * weight


def centred(x):
    return x - x.mean(axis=-1, keepdims=True)
"""
ROOT_MEAN_SQUARE = "(x**2).mean(axis=-1, keepdims=True) + eps"
OLMO2: dict[str, tuple[str, Plant]] = {
    "norms before blocks": ("norm before a block, not after it", BEFORE_ATTENTION & BEFORE_FFN),
    "norm before attention": ("norm before a block, not after it", BEFORE_ATTENTION),
    "norm before the FFN, as in Llama": (
        "norm before a block, not after it",
        no_norm("rms_norm", "attention")
        & edited((FFN, FFN.replace("attention_residual", 'rms_norm(attention_residual, **attention["output_norm"], eps=eps)'))),
    ),
    "norms of the sums": (
        "norm of the sum, not of a block's output",
        no_norm("rms_norm", "attention", "ffn")
        & edited(
            ("= x + attended", '= rms_norm(x + attended, **attention["output_norm"], eps=eps)'),
            (f"attention_residual + {FFN}", f'rms_norm(attention_residual + {FFN}, **ffn["output_norm"], eps=eps)'),
        ),
    ),
    "no norm after attention": ("missing norm after a block", no_norm("rms_norm", "attention")),
    "no norms after blocks": ("missing norm after a block", no_norm("rms_norm", "attention", "ffn")),
    "norms after blocks exchanged": ("norms exchanged", swapped("attention.output_norm", "ffn.output_norm")),
    "norms of heads": (
        "norms of heads instead of norms of rows",
        both("rms_norm(linear(x, **{0})", "by_heads(linear(x, **{0})") & edited(added=BY_HEADS),
    ),
    "no norms of queries and keys": (
        "norms of queries and keys left out",
        both("rms_norm(linear(x, **{0}), **{0}_norm, eps=eps)", "linear(x, **{0})"),
    ),
    "rotated first": (
        "norms of queries and keys after the rotation",
        both("{0}_normed = rms_norm(linear(x, **{0}), **", "{0}_rotated = rotate(split_heads(linear(x, **{0}), {1}), *angles)\n"
             "    {0}_normed = rms_norm(combine_heads({0}_rotated), **")
        & both("{0}_rotated = rotate(split_heads({0}_normed, {1}), *angles)", "{0}_heads = split_heads({0}_normed, {1})")
        & edited(("attention(query_rotated,", "attention(query_heads,"), ("[past[0], key_rotated]", "[past[0], key_heads]")),
    ),
    "norms of queries and keys exchanged": ("norms of queries and keys exchanged", swapped("query_norm", "key_norm")),
    "eps of 1e-6": ("wrong RMSNorm eps", edited((ROOT_MEAN_SQUARE, ROOT_MEAN_SQUARE.replace("eps", "1e-6")))),
    "mean subtracted from queries and keys": (
        "mean subtracted in RMSNorm",
        both("rms_norm(linear(x, **{0})", "rms_norm(centred(linear(x, **{0}))") & edited(added=BY_HEADS),
    ),
    "no last norm": ("RMSNorm left out", edited(("return rms_norm(x, **norm, eps=eps), past", "return x, past"))),
    "the FFN reads the layer's input": (
        "the FFN reads the wrong stage", edited((FFN, FFN.replace("attention_residual", "x")))
    ),
    "the FFN first": ("FFN before attention", edited(added=FFN_FIRST)),
}  # fmt: skip
SLOPES = "np.concatenate([geometric(below), geometric(2 * below)[::2][: n_heads - below]])"
DISTANCES, BIASED = "np.arange(length) - np.arange(length)[:, None]", "math.sqrt(query_heads.shape[-1]) + bias"
BLOOM: dict[str, tuple[str, Plant]] = {
    "split in thirds": THIRDS,
    "slopes of 2^(-8 h / H)": ("ALiBi with wrong slopes", edited((SLOPES, "geometric(n_heads)"))),
    "slopes of the first heads": ("ALiBi with wrong slopes", edited((SLOPES, "geometric(2 * below)[:n_heads]"))),
    "wrong sign": ("ALiBi with the wrong sign", edited((DISTANCES, f"-({DISTANCES})"))),
    "absolute distances": ("ALiBi with the wrong sign", edited((DISTANCES, f"abs({DISTANCES})"))),
    "no ALiBi": ("ALiBi left out", edited((BIASED, BIASED.removesuffix(" + bias")))),
    "scaled": ("ALiBi scaled", edited((BIASED, f"{BIASED} / math.sqrt(query_heads.shape[-1])"))),
}
OPT: dict[str, tuple[str, Plant]] = {
    "no offset": ("positions off by one", inputs(lambda given: {"positions": given["positions"] - 2})),
    "no project_in": (
        "missing projection of the token rows",
        edited((
            "total = linear(embedding(ids, **token), **project)",
            "tokens = embedding(ids, **token)\n    project = np.pad(tokens, ((0, 0), (0, 16)))\n    total = project",
        )),
    ),
    "no project_out": (
        "missing projection of the last layer's rows",
        edited((
            "return last_projection(last_norm(x, **norm, eps=eps), **project)",
            "project = x[:, :16]\n    return project",
        )),
    ),
    "norms before": ("pre-norm instead of post-norm", layer("opt_layer", gpt2_layer)),
}  # fmt: skip
SUM = "attention_residual + gemma2_feed_forward(normed, activation, eps, **ffn)"
GEMMA2: dict[str, tuple[str, Plant]] = {
    "w for 1 + w": ("1 + weight of RMSNorm misused", edited(("rms_norm(x, 1 + weight, eps)", "rms_norm(x, weight, eps)"))),
    "no norm after attention": ("missing norm after a block", no_norm("gemma_norm", "attention")),
    "no norm after the FFN": ("missing norm after a block", no_norm("gemma_norm", "ffn")),
    "Llama's places": ("norms in the wrong places", swapped("attention.output_norm", "ffn_norm")),
    "norm of the sum": (
        "norm of the sum, not of a block's output",
        no_norm("gemma_norm", "attention", "ffn")
        & edited(
            ("= x + attended", '= gemma_norm(x + attended, **attention["output_norm"], eps=eps)'),
            (SUM, f'gemma_norm({SUM}, **ffn["output_norm"], eps=eps)'),
        ),
    ),
    "no cap of scores": ("soft cap of scores left out", edited(("soft_cap(uncapped_scores, score_cap)", "uncapped_scores"))),
    "no cap of logits": (
        "soft cap of logits left out", edited(('soft_cap(linear(x, **head["output"]), logit_cap)', 'linear(x, **head["output"])'))
    ),
    "1 / sqrt(d_head)": ("scores divided by sqrt(d_head)", edited(("q @ k.mT * score_scale", "q @ k.mT * q.shape[-1] ** -0.5"))),
    "no window": ("wrong local window", window("99")),
    "exclusive window": ("wrong local window", window("reach - 1")),
    "unscaled embeddings": ("embeddings scaled differently", edited(("tokens = scale *", "tokens ="))),
    "silu": ("wrong activation", edited((GELU_TANH, "x / (1 + np.exp(-x))"))),
}  # fmt: skip
HEADS = "split_heads(linear(x, **{0}), {1})"
GEMMA3: dict[str, tuple[str, Plant]] = {
    "window everywhere": ("wrong local window", window("2")),
    "heads not normalized": (
        "norms of queries and keys left out", both("gemma_norm(" + HEADS + ", **{0}_norm, eps=eps)", HEADS)
    ),
    "rotated first": (
        "norms of queries and keys after the rotation",
        both("{0}_normed = gemma_norm(" + HEADS + ", **", "{0}_rotated = rotate(" + HEADS + ", *angles)\n"
             "    {0}_heads = {0}_normed = gemma_norm({0}_rotated, **")
        & edited(
            ("query_rotated, key_rotated = rotate(query_normed, *angles), rotate(key_normed, *angles)", "query_heads, key_heads = query_normed, key_normed"),
            ("attention(query_rotated,", "attention(query_heads,"), ("[past[0], key_rotated]", "[past[0], key_heads]"),
        ),
    ),
    "w for 1 + w in heads": ("1 + weight of RMSNorm misused", both("gemma_norm(" + HEADS, "rms_norm(" + HEADS)),
    "thetas exchanged": ("rotation with the wrong base", rotated_in("(1, 0)")),
}  # fmt: skip
#: Family -> name of a planted mistake -> its name in the diagnosis, and the plant.
PLANTED = {
    "gpt_neox": GPT_NEOX, "phi3": PHI3 | LONG_PHI3, "smollm3": SMOLLM3, "olmo2": OLMO2, "bloom": BLOOM, "opt": OPT,
    "gemma2": GEMMA2, "gemma3_text": GEMMA3,
}  # fmt: skip


def diagnosed(model: Model, planted: str, shown: Callable[[str], bool]) -> golden.Diagnosis:
    """Diagnoses a port with one mistake from the stages that it shows. The correct port must pass the comparison."""
    recorded = golden.record(model, [Text(ids) for ids in TEXTS])
    comparison = golden.compare(recorded, run(model, recorded, padded=False))
    assert comparison.ok, comparison
    assert not comparison.missing, comparison.missing
    stages = run(model, recorded, PLANTED[model.config.model_type][planted][1], padded=False)
    return golden.diagnose(recorded, {name: array for name, array in stages.items() if shown(name)}, model)


def diagnosis(model: Model, planted: str, full: bool) -> str:
    """The diagnosis from all stages if `full`, else from hidden states and answers."""
    ends = ("",) if full else ("ffn_residual", "ffn_norm", *(f"/{each}" for each in ANSWERS))
    return str(diagnosed(model, planted, lambda stage: stage.endswith(ends))).partition("then")[0]
