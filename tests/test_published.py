"""The published numbers of the real checkpoint, and a test that the comparison detects wrong numbers.

The checkpoint is in the Hugging Face cache or on the hub; if it is in neither, one test is skipped with a message.
"""

import copy
import json
import re
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

import npformer
from examples import published_numbers
from npformer.common.errors import NpformerError
from npformer.interpret.traces import trace
from tests.support import tiny

TEXT = "I love ice cream"


def test_every_published_number():
    published = published_numbers.read()
    try:
        model = published_numbers.real_model(published)
    except NpformerError as error:
        pytest.skip(
            f"the published numbers were NOT checked: {published['checkpoint']} is neither in the Hugging Face cache "
            f"nor reachable ({str(error).splitlines()[0]})"
        )
    found = published_numbers.check(model, published)
    assert len(found) == 13
    assert not any(found.values()), found


def printed(number, digits):
    """Formats a float32 number as torch prints it: four decimals, or five significant digits."""
    return Decimal(format(float(number), digits))


def published_by(model):
    """Returns the numbers that a walk-through would print for this model, from its float64 run, in the form of
    tests/published.json."""
    t = trace(model, TEXT)
    c = model.config
    published = {
        "config": {
            "vocab_size": c.vocab_size,
            "dim": c.d_model,
            "n_heads": c.n_heads,
            "d_head": c.d_head,
            "n_layers": c.n_layers,
            "hidden_dim": c.d_ffn,
            "max_position_embeddings": c.max_length,
            "layer_norm_eps": Decimal("1e-12"),
            "activation": c.activation,
        },
        "text": TEXT,
        "input_ids": t.ids.tolist(),
        "tokens": t.tokens,
        "columns": [0, 1, 2, -3, -2, -1],
        "results": {},
    }
    for table in published_numbers.TABLES:
        digits = ".4f" if table.name in ("embeddings_normalized", "layer_0_output", "logits") else ".4e"
        array = published_numbers.computed(t, published, table)
        published[table.name] = np.vectorize(lambda x, digits=digits: printed(x, digits), otypes=[object])(
            array
        ).tolist()
    for text in (TEXT, "I like my hot movie"):
        t = trace(model, text)
        score = Decimal(repr(float(t["probabilities"].max())))
        published["results"][text] = {"label": t.label, "score": score}
    return published


@pytest.fixture(scope="module")
def model():
    return tiny.model(n_layers=3)


@pytest.fixture(scope="module")
def published():
    return published_by(tiny.model(n_layers=3, dtype=np.float64))


def test_a_model_agrees_with_its_own_numbers(model, published):
    found = published_numbers.check(model, published)
    assert len(found) == 13
    assert not any(found.values()), found


@pytest.mark.parametrize("table", published_numbers.TABLES, ids=lambda table: table.name)
def test_one_wrong_digit_is_found(model, published, table):
    """Changes one number by three units of its last digit, plus the rounding and noise that the table permits."""
    wrong = copy.deepcopy(published)
    row = wrong[table.name] if table.name in ("logits", "probabilities") else wrong[table.name][1]
    unit = Decimal(1).scaleb(row[1].as_tuple().exponent)
    row[1] += 3 * unit + Decimal(table.noise) + Decimal(table.relative) * abs(row[1])
    found = published_numbers.check(model, wrong)
    assert [name for name, lines in found.items() if lines] == [table.name]
    place = "[1]" if table.name in ("logits", "probabilities") else "[1, 1]"
    assert len(found[table.name]) == 1
    assert found[table.name][0].startswith(f"{place}: printed {row[1]}, got ")


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("config", {"n_heads": 12}),
        ("input_ids", [101, 1045, 2293, 3256, 6949, 102]),
        ("tokens", ["[CLS]", "[SEP]"]),
        (TEXT, {"label": "NEUTRAL"}),
        (TEXT, {"score": Decimal("0.1234567")}),
    ],
)
def test_values_outside_tables_are_compared_too(model, published, key, change):
    wrong = copy.deepcopy(published)
    if key == TEXT:
        wrong["results"][key] |= change
    elif key == "config":
        wrong[key] |= change
    else:
        wrong[key] = change
    found = published_numbers.check(model, wrong)
    assert [name for name, lines in found.items() if lines] == [key]


def test_another_model_is_found_out(published):
    found = published_numbers.check(tiny.model(n_layers=3, seed=1), published)
    assert all(found[table.name] for table in published_numbers.TABLES)


def test_shapes_and_nan_differ():
    one = [[Decimal("1.0000")]]
    assert list(published_numbers.differences(one, np.array([[1.0, 2.0]]))) == ["expected the shape (1, 1), got (1, 2)"]
    assert list(published_numbers.differences(one, np.array([[np.nan]])))
    assert not list(published_numbers.differences(one, np.array([[1.00005]])))
    assert list(published_numbers.differences(one, np.array([[1.00006]])))


def test_the_figures_keep_the_digits_that_were_printed():
    published = published_numbers.read()
    assert published["columns"] == [0, 1, 2, -3, -2, -1]
    assert str(published["position_embeddings"][2][2]) == "-0.0094000"
    for table in published_numbers.TABLES:
        rows = published[table.name]
        rows = rows["rows"] if isinstance(rows, dict) else rows
        shape = (2,) if table.name in ("logits", "probabilities") else (6, 6)
        assert np.array(rows, dtype=object).shape == shape


def test_the_teardown_notebook_takes_the_published_steps_with_the_numbers_of_its_own_model():
    """The notebook begins with a text and a formula. It shows each published table's stage, but no published number."""
    path = Path(__file__).parents[1] / "docs" / "learn" / "teardown.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert "$$" in "".join(cells[0]["source"])
    first = next("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert first.splitlines()[:3] == ["import npformer", "", 'text = "I love ice cream"']
    outputs = [out for cell in cells for out in cell.get("outputs", [])]
    shown = "\n".join("".join(out.get("text", out.get("data", {}).get("text/plain", []))) for out in outputs)
    numbers = {round(float(word), 4) for word in re.findall(r"-?\d+\.\d*(?:e-?\d+)?", shown)}
    steps, published = trace(npformer.load("distilbert-sst2"), "I love ice cream"), published_numbers.read()
    for table in (each for each in published_numbers.TABLES if each.stage):
        rows = np.atleast_2d(steps[table.stage.replace("{last}", "5")])[:, :2]
        assert {round(float(number), 4) for number in rows[0]} <= numbers, table.name
        foreign = np.atleast_2d(np.array(published[table.name], dtype=float))
        if foreign.shape[1] == 6:  # single numbers of two digits may be equal by chance
            assert not {round(number, 4) for number in foreign[2]} <= numbers, table.name
