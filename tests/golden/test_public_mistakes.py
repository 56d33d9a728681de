"""Mistakes of published programs, planted in the page of each family, are named, and no other mistake is stated.

Each row names an issue or pull request on GitHub that says what was wrong and why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from npformer import golden
from npformer.engine.mechanisms import Rotary, SoftCap, Window
from npformer.engine.mechanisms.rotary_scaling import Linear, Llama3
from npformer.engine.runtime.packing import Text
from tests.support import tiny
from tests.support.edited_pages import Arrays, Plant, edited, inputs, rotated, run
from tests.support.planted import CAUSAL, GELU, GELU_TANH, REACH
from tests.support.planted_decoders import FREQUENCIES, HEADS, NOT_ROTATED, SLOPES, UNROTATED, both
from tests.support.slow import slow_after

pytestmark = [pytest.mark.numbers, pytest.mark.edits]

LM, LABEL = "causal-lm", "sequence-classification"
#: Stages in the export of a port that shows hidden states and answers.
HIDDEN = ("ffn_residual", "ffn_norm", "/embeddings.sum", "/embeddings.norm", "/norm", "/logits", "/project")
ERF = "(x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))) / 2).astype(x.dtype)"
SILU = "x / (1 + np.exp(-x))"
EPS_OF_LAYERS = edited(*((f"**{norm}, eps=eps)", f"**{norm}, eps=1e-5)") for norm in ("attention_norm", "ffn_norm")))
NO_BIASES = edited(*((f"linear(x, **{each})", f'linear(x, {each}["weight"])') for each in ("query", "key", "value")))
NEIGHBOURS = edited(
    ("np.split(x, 2, axis=-1)", "x[..., ::2], x[..., 1::2]"),
    ("np.concatenate([first", "np.stack([first"),
    ("first * sin], axis=-1)", "first * sin], axis=-1).reshape(x.shape)"),
)
GATE_AND_UP = edited(("(linear(x, **gate))", "(linear(x, **up))"), ("* linear(x, **up)\n", "* linear(x, **gate)\n"))
ROTATED_FIRST = (
    UNROTATED
    & both(
        f"{{0}}_normed = rms_norm({HEADS},",
        f"{{0}}_rotated = rotate({HEADS}, *angles); {{0}}_heads = {{0}}_normed = rms_norm({{0}}_rotated,",
    )
    & edited(("query_rotated, key_rotated = rotate(query_normed, *angles), rotate(key_normed, *angles)\n", "\n"))
)
#: A wrong causal mask: the second chunk, from row 4 on, uses the top left corner of the mask.
TOP_LEFT = "np.tri(n_queries, dtype=bool) & (np.arange(n_queries) < 4)[:, None] | np.tri(n_queries, k=-4, dtype=bool)"
LLAMA_3_1 = {"mechanisms": (Rotary(30.0, scaling=Llama3(8.0, 1.0, 4.0, 64)),)}


def narrow_cap() -> dict[str, Any]:
    """Gemma 2 with a cap that changes most scores."""
    own = tiny.config("gemma2", LM)
    capped = (own.mechanisms[0], SoftCap(0.5))
    return {"mechanisms": capped, "local": replace(own.local, mechanisms=(*capped, Window(3)))}


def scaled_global_layers() -> dict[str, Any]:
    """Gemma 3 with a global layer, whose rotation is scaled."""
    own = tiny.config("gemma3_text", LM)
    norm, window = own.mechanisms[0], own.local.mechanisms[-1]
    local = replace(own.local, layers=(0,), mechanisms=(norm, Rotary(10.0), window))
    return {"mechanisms": (norm, Rotary(30.0, scaling=Linear(8.0))), "local": local}


#: (source, family, head, choices of the model, plant, what the diagnosis prints: the name of a known mistake after
#: "cause: ", or the line of an edit after "+ ").
ROWS: tuple[tuple[str, str, str, Mapping[str, Any], Plant, str], ...] = (
    # the cap goes to a call that ignores it, and every attention runs uncapped
    ("sgl-project/sglang#33915", "gemma2", LM, narrow_cap(), edited(("soft_cap(uncapped_scores, score_cap)", "uncapped_scores")),
        "cause: soft cap of scores left out"),
    # scores of the 9B model are divided by sqrt(d_model / n_heads), not by sqrt(d_head): sqrt(224), not sqrt(256)
    ("ggml-org/llama.cpp#8444", "gemma2", LM, {"d_model": 28, "head_width": 8}, edited(("q @ k.mT * score_scale", "q @ k.mT * 7**-0.5")),
        "cause: scores scaled differently (by 1 / sqrt(d_model / n_heads))"),
    # the gate uses Llama's SiLU, although config.json says gelu_pytorch_tanh
    ("NVIDIA/TensorRT-Model-Connect#177", "gemma", LM, {}, edited((GELU_TANH, SILU)), "cause: wrong activation (silu for gelu_tanh)"),
    # rope_scaling is read, but positions of the global layers are not divided by its factor
    ("Blaizzy/mlx-vlm#1709", "gemma3_text", LM, scaled_global_layers(), edited(
        ("rotary_angles(positions, *rotation)", "rotary_angles(positions, rotation[0] * (8 if np.isinf(reach) else 1), rotation[1])")),
        "cause: rotation scaled differently (left out)"),
    # the diagonal of the window is one too low: a query sees one key more than sliding_window
    ("huggingface/transformers#26792", "mistral", LM, {"mechanisms": (Rotary(30.0), Window(3))}, edited((REACH, "key_positions) <= reach + 1")),
        "cause: wrong local window (one token more)"),
    # queries and keys are rotated in pairs of even and odd columns, but the checkpoint is for halves
    ("jzhang38/TinyLlama#24", "llama", LM, {}, NEIGHBOURS, "cause: rotation of pairs instead of halves"),
    # the frequencies of Llama 3.1 are not scaled, because the program does not read rope_scaling
    ("lablup/mlxcel#1355", "llama", LM, LLAMA_3_1, inputs(frequencies=FREQUENCIES), "cause: rotation scaled differently (left out"),
    # the heads of keys and values are tiled instead of repeated one by one
    ("onnx/onnx#7274", "llama", LM, {}, edited(
        ("each.repeat(n_heads // n_kv_heads, axis=-3)", "np.concatenate([each] * (n_heads // n_kv_heads), axis=-3)")),
        "cause: grouped heads paired wrongly (heads tiled, not each repeated: keys and values)"),
    # the loader for Llama leaves out the biases of query, key and value
    ("sbryngelson/ANEForge#253", "qwen2", LM, {}, NO_BIASES, "cause: missing bias"),
    # one decoder for all families normalizes queries and keys after their rotation
    ("meta-pytorch/torchtune#2809", "qwen3", LM, {}, ROTATED_FIRST, "cause: norms of queries and keys after the rotation"),
    # every layer is rotated, including the layers without rotation
    ("airockchip/rknn-llm#501", "smollm3", LM, {}, rotated((0, 0)), "cause: rotation in the wrong layers (rotation in all layers)"),
    # blocks are parallel even in checkpoints with use_parallel_residual false
    ("ml-explore/mlx-lm#586", "gpt_neox", LM, {"parallel": False}, edited(("layer_norm(attention_residual, **ffn_norm", "layer_norm(x, **ffn_norm")),
        "cause: the FFN reads the wrong stage (its norm reads the layer's input, parallel to attention"),
    # the slopes are a single geometric sequence even if the number of heads is not a power of 2
    ("ml-explore/mlx#3071", "bloom", LM, {"n_heads": 6, "d_model": 48}, edited((SLOPES, "geometric(n_heads)")),
        "cause: ALiBi with wrong slopes (2^(-8 h / H), even if H is not a power of two)"),
    # the norm after the last layer is missing
    ("huggingface/transformers#17785", "opt", LM, {}, edited(
        ("return last_projection(last_norm(x, **norm, eps=eps), **project)", "norm = x\n    return last_projection(norm, **project)")),
        "cause: norm left out (the last)"),
    # GPT-2's activation is the exact GELU
    ("nntile/nntile#370", "gpt2", LM, {}, edited((GELU_TANH, ERF)), "cause: erf GELU for tanh"),
    # the norm of the embeddings has eps 1e-12, but the norms of the layers have the default, 1e-5
    ("keras-team/keras-hub#642", "bert", LABEL, {}, EPS_OF_LAYERS, "cause: another layer norm eps (1e-05 for 1e-12)"),
    # positions of flattened texts begin at row 0, not at padding_idx + 1
    ("huggingface/sentence-transformers#3879", "roberta", LABEL, {}, inputs(positions="positions - 2"), "cause: positions off by one (from 0)"),
    # local layers are rotated with the base of the global layers
    ("keras-team/keras-hub#2518", "modernbert", LABEL, {}, inputs(rotations="[rotations[0]] * len(rotations)"),
        "cause: rotation with the wrong base (the global layers' base in all layers)"),
    # position-to-content scores use the distance with the opposite sign
    ("nntrainer/nntrainer#3982", "deberta-v2", LABEL, {}, edited(
        ("products[..., rows, np.arange(len(rows))]", "products[..., rows.T, np.arange(len(rows))]")),
        "+ return products[..., rows.mT, np.arange(len(rows))]"),
    # scores are divided by sqrt(d_head), without the factor sqrt(3)
    ("NVIDIA/FasterTransformer#707", "deberta-v2", LABEL, {}, edited(
        ("math.sqrt((1 + len(forms)) * query_heads.shape[-1])", "math.sqrt(query_heads.shape[-1])")),
        "+ divisor = math.sqrt(query_heads.shape[-1])"),
    # the decoder's biases of distances are added in attention to the source, too
    ("guillaume-be/rust-bert#171", "t5", "question-answering", {}, edited(("normed, source, 0, True,", "normed, source, bias, True,")),
        "cause: relative bias in attention to the source (of one direction)"),
    # the rows before the projection are scaled if the embeddings are not tied, but should be if they are
    ("ml-explore/mlx-examples#591", "t5", "translation", {"scale_output": True}, edited(("scaled = scale_output * x", "scaled = x")),
        "cause: rows before the projection not scaled"),
    # config.json names the exact GELU, but the original code uses the tanh form
    ("huggingface/transformers#2395", "albert", LABEL, {"activation": "gelu_tanh"}, edited((GELU_TANH, ERF)), "cause: erf GELU for tanh"),
    # with earlier keys in a cache, row i of the new queries sees the keys 0 to i
    ("pytorch/pytorch#103082", "llama", LM, {}, edited((CAUSAL, TOP_LEFT)),
        "+ weights = masked_softmax(scores, mask & from_corner(scores, rest_after(4)))"),
    # 1 is added to weights of norms that already include it
    ("utensils/mold#1078", "gemma3_text", LM, {}, edited(("rms_norm(x, 1 + weight, eps)", "rms_norm(x, 2 + weight, eps)")),
        "+ return rms_norm(x, 2 * 1 + weight, eps)"),
    # Gemma's activation is the exact GELU
    ("huggingface/transformers#29402", "gemma", LM, {}, edited((GELU_TANH, ERF)), "cause: erf GELU for tanh"),
    # rope_theta is not copied from config.json, and the default is 10000
    ("lyogavin/airllm#369", "llama", LM, {"mechanisms": (Rotary(500_000.0),)}, inputs(
        frequencies="(1 / 10000.0 ** (np.arange(0, 8, 2) / 8)).astype(np.float32)"), "cause: rotation with the wrong base (10000)"),
    # the code path with a cache omits the norms of queries and keys
    ("paiml/aprender#2085", "qwen3", LM, {}, both(f"rms_norm({HEADS}, **{{0}}_norm, eps=eps)", HEADS),
        "cause: norms of queries and keys left out (of queries and keys)"),
    # the exponents of the slopes begin at 0, not at 1
    ("paiml/aprender#2143", "bloom", LM, {}, edited(("np.arange(1, count + 1)", "np.arange(count)")), "cause: ALiBi with wrong slopes (from h = 0)"),
    # the window ends before its last token, which should be in it
    ("vllm-project/vllm#44040", "modernbert", LABEL, {}, edited((REACH, "key_positions) <= reach - 1")), "cause: wrong local window (one token fewer)"),
    # the activation is the exact GELU, whatever config.json says
    ("huggingface/candle#3991", "modernbert", LABEL, {"activation": "silu"}, edited((SILU, ERF)), "cause: wrong activation (gelu for silu)"),
    # no_rope_layers is inverted
    ("onnxruntime/mobius#233", "smollm3", LM, {}, rotated((1, 0)) & NOT_ROTATED, "cause: rotation in the wrong layers (1 and 0 exchanged)"),
    # SwiGLU gets its two arguments in the wrong order
    ("ml-explore/mlx-lm#767", "llama", LM, {}, GATE_AND_UP, "cause: gate and up swapped"),
    # "gelu" in config.json means the tanh form
    ("huggingface/text-embeddings-inference#753", "bert", LABEL, {}, edited((GELU, GELU_TANH)), "cause: tanh GELU for erf"),
)  # fmt: skip
BY_SOURCE = {row[0]: row[1:] for row in ROWS}
#: Names that the diagnosis may also state: another name of the same rows, or a name that is vaguer than the edit.
ALSO = {
    "huggingface/sentence-transformers#3879": "positions from the wrong rule (p - 2 from 0 on",
    "NVIDIA/FasterTransformer#707": "scaled by a constant (1.73205 times the correct value)",
    "pytorch/pytorch#103082": "wrong mask (query 8 sees the keys [0, 1, 2, 3, 4],",
}


@cache
def exported(source: str) -> tuple[Any, golden.Golden, Arrays]:
    """The model, its golden file and the stages of the mistaken port. Asserts that the correct port passes."""
    family, head, fields, plant, _ = BY_SOURCE[source]
    model = tiny.model(family, head, **fields)
    texts: list[Any] = [Text(np.arange(5, 14)), Text(np.arange(20, 26))]
    if head == "translation":
        texts = [(text, Text(np.array([3, *text.ids[::-1]]))) for text in texts]
    recorded = golden.record(model, texts)
    comparison = golden.compare(recorded, run(model, recorded, padded=False))
    assert comparison.ok, comparison
    return model, recorded, run(model, recorded, plant, padded=False)


@pytest.mark.parametrize("hidden", [False, True], ids=["every stage", "hidden states"])
@pytest.mark.parametrize("source", slow_after(20, list(BY_SOURCE)))
def test_a_published_mistake_is_named(source: str, hidden: bool) -> None:
    model, recorded, stages = exported(source)
    shown = {name: array for name, array in stages.items() if not hidden or name.endswith(HIDDEN)}
    words = BY_SOURCE[source][-1]
    diagnosis = golden.diagnose(recorded, shown, model)
    if words.startswith("cause: "):  # a known mistake needs no search for edits, which takes seconds
        diagnosis = replace(diagnosis, search=None)
    found = str(diagnosis).partition("with this mistake in the model")[0]
    assert words in found, found
    names = (words.removeprefix("cause: "), ALSO.get(source, words.removeprefix("cause: ")))
    for stated in re.findall(r"^  (?:cause|also fits): (.*)$", found, re.MULTILINE):
        assert stated.startswith(names), found
