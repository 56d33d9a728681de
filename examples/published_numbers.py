"""Computes the numbers that two walk-throughs of DistilBERT print, and compares them with the printed ones.

    python examples/published_numbers.py

"Transformer Teardown: DistilBERT" and "Demystifying Transformers" run one checkpoint on one sentence with torch, stage
by stage, and print each result. Their numbers are in tests/published.json, digit for digit; the checkpoint (268 MB)
comes from the Hugging Face cache, or from the hub. All tables except the single-head attention weights show a stage of
npformer's trace.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npformer.common.errors import NpformerError
from npformer.engine.functions import softmax
from npformer.interpret.traces import Trace, trace
from npformer.loading import load
from npformer.model import Model

FILE = Path(__file__).parent.parent / "tests" / "published.json"


class Table(NamedTuple):
    """One table: its name in the file, the stage that it shows, and how far float32 may be from the printed digits.

    The printed digits are rounded by up to half a unit. In addition, two float32 computations may add numbers in
    different orders. `noise` is a little more than the difference between the two walk-throughs at stages that both
    print (2e-6 after the last layer). `relative` is the tolerance for exponentials of scores near 40, which float32
    stores to 1e-5.
    """

    name: str
    stage: str
    noise: float = 0.0
    relative: float = 0.0


TABLES = (
    Table("value_embeddings", "embeddings.token"),
    Table("position_embeddings", "embeddings.position"),
    Table("embeddings_normalized", "embeddings.norm", noise=1e-6),
    Table("layer_0_single_head_attention_weights", "", relative=3e-5),
    Table("layer_0_output", "layers.0.ffn_norm", noise=2e-6),
    Table("last_layer_output", "layers.{last}.ffn_norm", noise=3e-6),
    Table("logits", "logits", noise=1e-5),
    Table("probabilities", "probabilities", relative=3e-5),
)
SCORE_NOISE = 1.5e-7  # scores are printed in full; this is 2.5 times the spacing of float32 numbers just below 1


def read(path: Path = FILE) -> dict[str, Any]:
    """Returns the published numbers as decimals, which keep the printed digits."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    return data


def real_model(published: dict[str, Any]) -> Model:
    """Loads the walk-throughs' checkpoint from the cache, under its current or old name, or else from the hub."""
    name, revision = published["checkpoint"], published["revision"]
    for each, at in ((name, revision), (name, None), (name.partition("/")[2], None)):
        try:
            return load(each, at, offline=True)
        except NpformerError:
            continue
    return load(name, revision)


def computed(t: Trace, published: dict[str, Any], table: Table) -> np.ndarray:
    """Returns the stage of a table: all rows, but only the printed columns of wide stages."""
    if not table.stage:
        return single_head_weights(t)
    array = np.asarray(t[table.stage.format(last=published["config"]["n_layers"] - 1)])
    return array[:, published["columns"]] if array.ndim == 2 else array


def single_head_weights(t: Trace) -> np.ndarray:
    """Returns softmax(Q K^T / sqrt(K)) of the first layer's whole projections, as if they were one head, (T, T)."""
    q, k, d_head = (
        t["layers.0.attention.query"],
        t["layers.0.attention.key"],
        t["layers.0.attention.key_heads"].shape[-1],
    )
    return softmax(q @ k.T / math.sqrt(d_head))


def differences(printed: Any, ours: np.ndarray, noise: float = 0.0, relative: float = 0.0) -> Iterator[str]:
    """Yields a line for each number that differs from the printed one by more than rounding and float32's noise."""
    digits = np.array(printed, dtype=object)
    if digits.shape != ours.shape:
        yield f"expected the shape {digits.shape}, got {ours.shape}"
        return
    for place, number in np.ndenumerate(digits):
        allowed = 0.5001 * 10.0 ** number.as_tuple().exponent + noise + relative * abs(float(number))
        if not abs(float(ours[place]) - float(number)) <= allowed:  # this is true for NaN as well
            yield f"{list(place)}: printed {number}, got {float(ours[place]):.6g}"


def check(model: Model, published: dict[str, Any]) -> dict[str, list[str]]:
    """Returns, for each table, the differences between the model's numbers and the published ones."""
    c, given = model.config, published["config"]
    sizes = {
        "vocab_size": c.vocab_size,
        "dim": c.d_model,
        "n_heads": c.n_heads,
        "d_head": c.d_head,
        "n_layers": c.n_layers,
        "hidden_dim": c.d_ffn,
        "max_position_embeddings": c.max_length,
        "layer_norm_eps": Decimal(str(c.eps)),
        "activation": c.activation,
    }
    wrong = [key for key, size in sizes.items() if given[key] != size]
    found = {"config": [f"{key}: printed {given[key]}, got {sizes[key]}" for key in wrong]}
    t = trace(model, published["text"])
    for key, ours in (("input_ids", t.ids.tolist()), ("tokens", t.tokens)):
        found[key] = [] if published[key] == ours else [f"printed {published[key]}, got {ours}"]
    for table in TABLES:
        printed = published[table.name]
        rows = printed["rows"] if isinstance(printed, dict) else printed
        found[table.name] = list(differences(rows, computed(t, published, table), table.noise, table.relative))
    for text, result in published["results"].items():
        answer = trace(model, text)
        label = [] if answer.label == result["label"] else [f"printed {result['label']}, got {answer.label}"]
        score = np.array(answer["probabilities"].max())
        found[text] = label + list(differences(result["score"], score, SCORE_NOISE))
    return found


def main() -> int:
    published = read()
    model = load(sys.argv[1]) if sys.argv[1:] else real_model(published)
    t = trace(model, published["text"])
    print(f"{published['text']!r}: {t.ids.tolist()} {' '.join(t.tokens)}")
    for table in TABLES:
        print(f"\n{table.name.replace('_', ' ')}")
        print(np.array2string(computed(t, published, table), precision=4, max_line_width=100))
    found = check(model, published)
    wrong = {name: lines for name, lines in found.items() if lines}
    print(f"\n{len(found) - len(wrong)} of {len(found)} tables agree with the published ones")
    for name, lines in wrong.items():
        print(f"{name} differs in {len(lines)} places: {lines[0]}")
    return int(bool(wrong))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NpformerError as error:
        sys.exit(f"error: {error}")
