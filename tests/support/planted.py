"""Mistakes that people make in ports, each under a short name, with the `Plant` that makes it in a page."""

from __future__ import annotations

import numpy as np

from npformer.plain.formulas import encoder_layer
from npformer.plain.gpt2 import gpt2_layer
from npformer.plain.transformer import sinusoidal_positions
from tests.support.edited_pages import Plant, changed, edited, exported, inputs, layer, resplit, rotated, swapped, taken

#: Pieces of the pages' source that several mistakes edit.
GELU = "x * (1 + erf(x / math.sqrt(2))) / 2"
GELU_TANH = "x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2"
DEVIATION, AFFINE = "np.sqrt(variance + eps)", "np.sqrt(variance + eps) * weight + bias"
NORM = f"(x - mean) / {DEVIATION}"
SCORES, ROOT = "q @ k.mT / math.sqrt(q.shape[-1])", "math.sqrt(q.shape[-1])"
MASKED, ALLOWED = "softmax(np.where(mask, scores, np.finfo(scores.dtype).min)) * mask", "np.where(mask, scores,"
CAUSAL = "np.tri(n_queries, max(n_queries, n_keys), max(n_keys - n_queries, 0), dtype=bool)"
SPLIT, JOIN = "x.reshape(*x.shape[:-1], n_heads, x.shape[-1] // n_heads).swapaxes(-2, -3)", "np.moveaxis(x, -3, 0)"
LINEAR, OUTPUT = "x @ weight + bias", "return linear(combined, **output)"
FIRST, LOGITS = "x[..., 0, :]", 'linear(pooled, **head["output"])'
FED, FFN_NORM = "y + feed_forward(y, activation, **ffn)", "return layer_norm(ffn_residual, **ffn_norm, eps=eps)"
REACH = "key_positions) <= reach"
#: The columns of an array after the padding of each text is moved before its tokens.
LEFT = "np.take_along_axis({0}, ((np.arange(ids.shape[1]) + lengths[:, None]) % ids.shape[1]).reshape({0}.shape), -1)"
#: Mistakes in the diagnosis's list, each with the name that the diagnosis must give.
KNOWN: dict[str, tuple[str, Plant]] = {
    "tanh gelu": ("tanh GELU for erf", edited((GELU, GELU_TANH))),
    "quick gelu": ("quick GELU", edited((GELU, "x / (1 + np.exp(-1.702 * x))"))),
    "gelu 0.0447": ("wrong constant in the activation", edited((GELU, GELU_TANH.replace("0.044715", "0.0447")))),
    "sigmoid 1.6": ("wrong constant in the activation", edited((GELU, "x / (1 + np.exp(-1.6 * x))"))),
    "relu": ("wrong activation", edited((GELU, "np.maximum(x, 0)"))),
    "silu": ("wrong activation", edited((GELU, "x / (1 + np.exp(-x))"))),
    "no activation": ("activation left out", edited((GELU, "x"))),
    "eps": ("another layer norm eps", edited((DEVIATION, "np.sqrt(variance + 1e-5)"))),
    "eps outside": ("eps outside the root", edited((DEVIATION, "(np.sqrt(variance) + 1e-5)"))),
    "unbiased": ("unbiased variance", edited(("x.var(", "x.var(ddof=1, "))),
    "variance": ("wrong deviation in the norm", edited((DEVIATION, "variance"))),
    "root of std": ("wrong deviation in the norm", edited((DEVIATION, "variance**0.25"))),
    "rms norm": ("mean not subtracted", edited((NORM, "x / np.sqrt((x * x).mean(axis=-1, keepdims=True))"))),
    "no affine": ("norm without weight or bias", edited((AFFINE, DEVIATION))),
    "gamma and beta": ("weight and bias of the norm mixed up", edited((AFFINE, f"{DEVIATION} * bias + weight"))),
    "norms exchanged": ("norms exchanged", swapped("attention_norm", "ffn_norm")),
    "no embedding norm": ("norm left out", edited(("return layer_norm(total, **norm, eps=eps)", "norm = total; return norm"))),
    "no ffn norm": ("norm left out", edited((FFN_NORM, "ffn_norm = ffn_residual; return ffn_norm"))),
    "types all 1": ("wrong token types", inputs(token_type_ids="token_type_ids * 0 + 1")),
    "types all 0": ("token types ignored", inputs(token_type_ids="token_type_ids * 0")),
    "sinusoids": ("sinusoidal positions instead of learned", changed("position.weight", lambda w: sinusoidal_positions(*w.shape))),
    "no positions": ("positions left out", changed("position.weight", np.zeros_like)),
    "from 1": ("positions off by one", inputs(positions="positions + 1")),
    "from 2": ("positions off by one", inputs(positions="positions + 2")),
    "no offset": ("positions off by one", inputs(positions="text_positions")),
    "padding counted": ("wrong positions", inputs(positions="text_positions + pad_id + 1")),
    "restarting": ("wrong positions", inputs(positions="positions - 2 * (token_type_ids == 1)")),
    "reversed": ("positions from the wrong rule", inputs(positions="(seen[:, 0, 0].cumsum(1)[:, ::-1] - 1).clip(0)")),
    "sqrt(D)": ("embeddings scaled differently", changed("embeddings.token", lambda w: w * 32**0.5)),
    "q and k": ("query and key swapped", swapped("query", "key")),
    "q and v": ("query and value swapped", swapped("query", "value")),
    "k and v": ("key and value swapped", swapped("key", "value")),
    "fused": ("fused query, key and value split wrongly", resplit(-1, 3, 8)),
    "interleaved": ("heads interleaved", edited((SPLIT, "np.moveaxis(x.reshape(*x.shape[:-1], -1, n_heads), -1, -3)"))),
    "reversed heads": ("heads in the wrong order", edited((JOIN, f"{JOIN}[::-1]"))),
    "no transpose": ("heads reshaped without the transpose", edited((SPLIT, "x.reshape(*x.shape[:-2], n_heads, x.shape[-2], -1)"))),
    "half the heads": ("wrong number of heads", inputs(n_heads="n_heads // 2")),
    "twice the heads": ("wrong number of heads", inputs(n_heads="n_heads * 2")),
    "unscaled": ("unscaled scores", edited((SCORES, "q @ k.mT"))),
    "doubly scaled": ("doubly scaled scores", edited((ROOT, "q.shape[-1]"))),
    "d_model": ("scores divided by sqrt(d_model)", edited((ROOT, "math.sqrt(4 * q.shape[-1])"))),
    "base 2": ("wrong softmax", edited(("np.exp(x - x.max", "np.exp2(x - x.max"))),
    "queries": ("softmax over the wrong axis", edited((MASKED, "softmax(np.where(mask, scores, np.float32(-1e9)), -2)"))),
    "softmax twice": ("wrong softmax", edited((MASKED, "softmax(softmax(np.where(mask, scores, np.float32(-1e9))))"))),
    "mask ignored": ("mask ignored", edited((MASKED, "softmax(scores)"))),
    "mask inverted": ("mask inverted", edited((MASKED, "softmax(scores + np.finfo(scores.dtype).min * mask)"))),
    "mask after": ("mask misused", edited((MASKED, "softmax(scores) * mask"))),
    "mask 1e-9": ("mask misused", edited((MASKED, "softmax(np.where(mask, scores, np.float32(1e-9)))"))),
    "causal": ("causal mask", edited((ALLOWED, "np.where(mask := mask & np.tri(scores.shape[-1], dtype=bool), scores,"))),
    "no W_O": ("W_O left out", edited((OUTPUT, "output = combined; return output"))),
    "no residual 1": ("residual left out", edited(("attention_residual = x + ", "attention_residual = "))),
    "no residual 2": ("residual left out", edited(("ffn_residual = y", "ffn_residual = 0"))),
    "residual of x": ("residual from the wrong place", edited(("ffn_residual = y", "ffn_residual = x"))),
    "residual before norm": ("residual from the wrong place", edited(("ffn_residual = y", "ffn_residual = attention_residual"))),
    "pre-norm": ("pre-norm instead of post-norm", layer("encoder_layer", gpt2_layer)),
    "ffn first": ("FFN before attention", edited(
        ("attention_residual = x", "x = layer_norm(x + feed_forward(x, activation, **ffn), **ffn_norm, eps=eps); attention_residual = x"),
        (f"ffn_residual = {FED}\n    {FFN_NORM}", "ffn_norm = y; return ffn_norm"))),
    "layer 0 in 1": ("weights of another layer", taken(("layers.1.", "layers.0."))),
    "layer 1 in 0": ("weights of another layer", taken(("layers.0.", "layers.1."))),
    "last missing": ("wrong number of layers", edited(("for layer in layers:", "for layer in layers[:-1]:"))),
    "last twice": ("wrong number of layers", edited(("for layer in layers:", "for layer in [*layers, layers[-1]]:"))),
    "last token": ("wrong pooling", edited((FIRST, "x[np.arange(len(x)), lengths - 1]"))),
    "mean": ("wrong pooling", edited((FIRST, "x.mean(axis=-2, where=seen[:, 0, 0, :, None])"))),
    "pooler linear": ("wrong pooler activation", edited((f"logits = {LOGITS}", f"pooled = linear(x[..., 0, :], **pooler); logits = {LOGITS}"))),
    "labels": ("labels in the wrong order", edited((LOGITS, f"{LOGITS}[..., ::-1]"))),
    "sigmoid": ("wrong probabilities", exported(probabilities="1 / (1 + np.exp(-logits))")),
    "left padding": ("left padding", inputs(**{each: LEFT.format(each) for each in ("ids", "token_type_ids", "seen", "mask")})),
    "transposed": ("transposed weight", changed("layers.1.attention.key.weight", np.transpose)),
    "no bias": ("missing bias", changed("layers.1.ffn.output.bias", np.zeros_like)),
    "int8": ("quantized weights", edited((LINEAR, "x @ (np.rint(weight / (step := abs(weight).max() / 127)) * step) + bias"))),
    "int8 by column": ("quantized weights", edited((LINEAR, "x @ (np.rint(weight / (step := abs(weight).max(0) / 127)) * step) + bias"))),
    "dropout": ("dropout left on", edited(
        ("(scores, mask)\n", "(scores, mask) * (random.random(scores.shape) >= 0.1) / np.float32(0.9)\n"), added="random = np.random.default_rng(0)")),
    "restarted": (
        "layer reads the wrong rows",
        edited(("for layer in layers:", "first = x\n    for layer in layers:\n        x = first")),
    ),
}  # fmt: skip
#: Mistakes that show only in a causal, pre-norm model, or show differently there.
IN_GPT2: dict[str, tuple[str, Plant]] = {
    **{key: KNOWN[key] for key in ("q and k", "fused", "from 1", "left padding")},
    "no causal mask": ("causal mask left out", edited((CAUSAL, "seen"))),
    "layer's number": ("scores divided by the layer's number", edited((ROOT, f'({ROOT} * (int(at().split(".")[1]) + 1))'))),
    "strictly causal": ("causal mask off by one", edited((CAUSAL, "np.tri(n_queries, k=-1, dtype=bool) & seen"))),
    "the next seen": ("causal mask off by one", edited((CAUSAL, "np.tri(n_queries, k=1, dtype=bool) & seen"))),
    "later ones seen": ("causal mask misused", edited((CAUSAL, f"{CAUSAL}.T & seen"))),
    "conv as linear": ("transposed weight", changed(".attention.output.weight", np.transpose)),
    "exact gelu": ("erf GELU for tanh", edited((GELU_TANH, "(x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2).astype(x.dtype)"))),
    "no final norm": ("norm left out", edited(("return layer_norm(x, **norm, eps=eps)", "norm = x; return norm"))),
    "post-norm": ("post-norm instead of pre-norm", layer("gpt2_layer", encoder_layer)),
    "first token": ("wrong pooling", edited(("logits = linear(row,", "logits = linear(x[:, 0],"))),
    "last of the batch": ("wrong pooling", edited(("logits = linear(row,", "logits = linear(x[:, -1],"))),
}  # fmt: skip
#: Mistakes in ModernBERT's local windows and rotations, and in the mask and softmax of its padded batches.
IN_MODERNBERT: dict[str, tuple[str, Plant]] = {
    "mask ignored": ("mask ignored", edited(("mask & near", "near"))),
    "mask after": ("mask misused", edited(("mask & near", "near"), (MASKED, "softmax(np.where(mask, scores, np.float32(-1e9))) * seen"))),
    "queries": KNOWN["queries"],
    "no window": ("wrong local window", edited((REACH, "key_positions) <= 99"))),
    "half the window": ("wrong mask", edited((REACH, "key_positions) <= reach / 2"))),
    "bases exchanged": ("rotation with the wrong base", rotated((1, 0, 0, 1))),
    "other local layers": ("the wrong layers are local", rotated((1, 0, 1, 0)) & edited(("reaches):", "[reaches[i] for i in (1, 0, 1, 0)]):"))),
}  # fmt: skip
SCALE, ORDER, WEIGHT_ORDER = "scaled by a constant", "in the wrong order", "weight in the wrong order"
#: Mistakes that are not in the diagnosis's list, each with the only names that the diagnosis may give with certainty.
HELD_BACK: dict[str, tuple[tuple[str, ...], Plant]] = {
    "sigmoid 1.3": ((), edited((GELU, "x / (1 + np.exp(-1.3 * x))"))),
    "elu 0.5": ((), edited((GELU, "np.where(x > 0, x, 0.5 * np.expm1(x))"))),
    "gelu of 1.1 x": ((), edited((GELU, "1.1 * x * (1 + erf(1.1 * x / math.sqrt(2))) / 2"))),
    "clipped gelu": (("clipped",), edited((GELU, f"({GELU}).clip(-1, 1)"))),
    "gelu of |x|": ((), edited((GELU, "abs(x) * (1 + erf(abs(x) / math.sqrt(2))) / 2"))),
    "eps 3e-5": ((), edited((DEVIATION, "np.sqrt(variance + 3e-5)"))),
    "eps 0.1": ((), edited((DEVIATION, "np.sqrt(variance + 0.1)"))),
    "median": ((), edited(("x.mean(axis=-1", "np.median(x, axis=-1"))),
    "ddof 2": ((SCALE,), edited(("x.var(", "x.var(ddof=2, "))),
    "half of the row": ((), edited(("x.var(", "x[..., :16].var("))),
    "norm clipped": (("clipped",), edited((f"{NORM} * weight + bias", f"({NORM} * weight + bias).clip(-1.5, 1.5)"))),
    "weights of norms squared": ((), changed("norm.weight", np.square)),
    "positions from 3": (("positions from the wrong rule",), inputs(positions="positions + 3")),
    "positions doubled": (("positions from the wrong rule",), inputs(positions="2 * positions")),
    "half the positions": ((SCALE, "embeddings added twice"), changed("position.weight", lambda w: w * 0.5)),
    "a tenth more tokens": ((SCALE,), changed("embeddings.token", lambda w: w * 1.1)),
    "last token unknown": (("wrong token ids",), inputs(ids="np.where(text_positions == 2, 1, ids)")),
    "temperature 0.7": ((SCALE,), edited((SCORES, f"{SCORES} / 0.7"))),
    "clipped scores": ((), edited((ALLOWED, "np.where(mask, scores.clip(-0.5, 0.5),"))),
    "alibi": ((), edited((ALLOWED, "np.where(mask, scores - (0.5 ** np.arange(1, 5)[:, None, None] * abs(places - places[:, None])).astype(np.float32),"), added="places = np.arange(9)")),
    "cosine attention": ((), edited((SCORES, "10 * unit(q) @ unit(k).mT"), added="unit = lambda x: x / np.sqrt((x * x).sum(-1, keepdims=True))")),
    "scores plus the distance": ((), edited((ALLOWED, "np.where(mask, scores + np.arange(scores.shape[-1]),"))),
    "two heads exchanged": ((ORDER,), edited((JOIN, f"{JOIN}[[1, 0, 2, 3]]"))),
    "W_O twice": (("values of another stage",), edited((OUTPUT, "output = linear(linear(combined, **output), **output); return output"))),
    "tanh after W_O": (("an extra function",), edited((OUTPUT, "output = np.tanh(linear(combined, **output)); return output"))),
    "residual of 0.9": (("residual scaled",), edited(("attention_residual = x", "attention_residual = np.float32(0.9) * x"))),
    "highway": ((), edited(("ffn_residual = y", "ffn_residual = y / (1 + np.exp(-y))"))),
    "ffn output times 1.2": (("sum with wrong factors",), edited(("y + feed_forward(", "y + 1.2 * feed_forward("))),
    "residual of both": ((), edited(("ffn_residual = y", "ffn_residual = x + y"))),
    "noise in layer 1": ((), changed("layers.1.", lambda w: w + 0.05 * np.random.default_rng(w.size).standard_normal(w.shape))),
    "rows of W_1 reversed": ((WEIGHT_ORDER,), changed("hidden.weight", np.flipud)),
    "columns of W_V reversed": ((ORDER, WEIGHT_ORDER), changed("value.weight", np.fliplr)),
    "biases halved": (("bias with wrong values",), changed(".ffn.hidden.bias", lambda w: w * 0.5)),
    "int6": ((), edited((LINEAR, "x @ (np.rint(weight * 40) / 40 if 'ffn' in at() else weight) + bias"))),
    "mean and first": ((), edited((FIRST, "(x[..., 0, :] + x.mean(axis=-2)) / 2"))),
    "pooler cubed": ((), edited((f"logits = {LOGITS}", f"pooled = linear(x[..., 0, :], **pooler) ** 3; logits = {LOGITS}"))),
    "logits over 2": ((SCALE,), edited((LOGITS, f"{LOGITS} / 2"))),
    "probabilities of 1.5 x": ((), exported(probabilities="(e := np.exp(1.5 * logits)) / e.sum(-1, keepdims=True)")),
}  # fmt: skip
