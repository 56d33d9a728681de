"""`check_family(name, folder)`: the checks that every family of checkpoints must pass.

`tests/families/test_every_family.py` runs each check for each entry of `FAMILIES`, so the entry of a new family is
enough to test it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import npformer
from npformer import golden
from npformer.checkpoint import convert, flatten, load_folder
from npformer.engine.runtime.packing import Text
from npformer.engine.taps import listen
from npformer.families import FAMILIES, read_config, write_config
from npformer.interpret import stages
from npformer.interpret.traces import trace
from npformer.model import Model, Seq2Seq
from npformer.training import standard_rates
from tests.support import tiny
from tests.support.bits import alike
from tests.support.cli_runner import run

CLASSIFIER = "sequence-classification"
DTYPES = ("float32", "float64")
THREADS = (1, 2, 3)
LENGTHS = (1, 2, 7, 7, 40, 128, 129, 260, 31)  # threads share the longest texts; two texts have the same length
WIDE = {"d_model": 96, "d_ffn": 200, "max_length": 300}
#: Family -> fields in which its files differ from tiny models; None if the files lack a tiny model's field.
NEEDED: dict[str, dict[str, Any]] = {
    "gpt2": {"pad_id": 0},
    **{name: {"pad_id": 0, "padding_idx": 0} for name in ("llama", "mistral", "qwen2", "qwen3", "phi3", "smollm3")},
    "olmo2": {"pad_id": 0, "padding_idx": 0},
    **{name: {"padding_idx": None} for name in ("t5", "mt5", "transformer")},
}
ROWS = [("i love it", "good"), ("i hate it", "bad"), ("it is good", "good"), ("it is politics", "bad")]


def heads(name: str) -> list[str]:
    return list(FAMILIES[name].all_heads)


def usual_head(name: str) -> str:
    """Returns the classifier's head, or the only head of a family without a classifier."""
    return CLASSIFIER if CLASSIFIER in heads(name) else heads(name)[0]


def two_heads(name: str) -> list[str]:
    """Returns the usual head and one other, which varies with the family, because families share the heads' code."""
    others = [head for head in heads(name) if head != usual_head(name)]
    turn = list(FAMILIES).index(name)
    return [usual_head(name), *others[turn % max(len(others), 1) :][:1]]


def inputs(model: Model | Seq2Seq, lengths: Sequence[int], seed: int = 0) -> list[Any]:
    """Returns random texts, or pairs for translators: with token types if the family has them, and some with gaps."""
    random, config = np.random.default_rng(seed), model.config
    if isinstance(model, Seq2Seq):
        ends = (config.vocab_size, config.decoder.vocab_size)
        return [tuple(Text(random.integers(2, end, length)) for end in ends) for length in lengths]
    texts = []
    for length in lengths:
        types = random.integers(0, config.n_token_types, length) if config.n_token_types else None
        positions = np.sort(random.choice(config.max_length, length, replace=False)) if random.random() < 0.3 else None
        ids = random.integers(5, config.vocab_size, length)
        if config.decoder.end_ids:  # BART's heads read the row of the end token
            ids[-1] = config.decoder.end_ids[0]
        texts.append(Text(ids, types, positions))
    return texts


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(alike(a[name], b[name]) for name in a)


def check_bits(of_threads: Sequence[Model | Seq2Seq], given: Sequence[Any], seed: int = 0) -> None:
    """Checks that a text has the same bits alone on one thread, in any order, on more threads, and when traced."""
    alone = [of_threads[0].run([each])[0] for each in given]
    random = np.random.default_rng(seed)
    for model in of_threads:
        order = random.permutation(len(given))
        for index, answer in zip(order, model.run([given[i] for i in order]), strict=True):
            assert same(answer, alone[index]), f"text {index}, {model.threads} threads"
        one = int(random.integers(len(given)))
        assert same(model.run([given[one]])[0], alone[one]), f"text {one} alone, {model.threads} threads"
        with listen(lambda name, array: array):
            assert same(model.run([given[one]])[0], alone[one]), f"text {one} with a listener, {model.threads} threads"


def same_bits(name: str, head: str, dtype: str = "float32", **fields: Any) -> None:
    """Runs `check_bits` on a tiny model with these fields in its config."""
    first = tiny.model(name, head, dtype=dtype, threads=1, **{**WIDE, **fields})
    of_threads = [type(first)(first.config, first.weights, threads=threads) for threads in THREADS]
    check_bits(of_threads, inputs(first, LENGTHS))


# --- the checks -----------------------------------------------------------------------------------------------------


def check_a_text_has_the_same_bits_in_any_company(name: str, folder: Path) -> None:
    """Each of the two heads runs in one of the two dtypes."""
    for i, head in enumerate(two_heads(name), list(FAMILIES).index(name)):
        same_bits(name, head, DTYPES[i % 2])


def check_config_and_weights_there_and_back(name: str, folder: Path) -> None:
    """Converts the config of every head, and the files of one head, to both layouts and back."""
    for head in dict.fromkeys(FAMILIES[name].architectures.values()):  # heads that a config.json can name
        config = tiny.config(name, head, **NEEDED.get(name, {}))
        assert read_config(write_config(config)) == config, head
    made = tiny.folder(folder / "torch", name, usual_head(name))
    convert(made, folder / "own")
    convert(folder / "own", folder / "back", to="torch")
    config, weights = load_folder(made)
    expected = flatten(weights)
    for each in ("own", "back"):
        found_config, found = load_folder(folder / each)
        found = flatten(found)
        assert found_config == config
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[key], expected[key]) for key in expected)


def check_dropout_stands_at_stages_of_the_model(name: str, folder: Path) -> None:
    for head in heads(name):
        config = tiny.config(name, head)
        rates, fired = standard_rates(config, 0.25, attention=0.5), stages.names(config)
        for pattern, rate in rates.items():
            at = stages.selected(pattern, fired)
            assert at, (head, pattern)
            assert all(rate == 0.5 for each in at if each.endswith("attention.weights"))
            assert 0 < rate < 1


def check_a_golden_file_fits_its_model_and_no_other(name: str, folder: Path) -> None:
    """A trace is within the budgets, and a change to the last stage is reported at that stage."""
    for head in two_heads(name):
        model = tiny.model(name, head)
        given = inputs(model, (9, 4))
        recorded = golden.record(model, given)
        if isinstance(model, Seq2Seq):  # a source and its target are traced as one pair
            arrays = {f"{i}/{stage}": a for i, each in enumerate(given) for stage, a in trace(model, each).items()}
        else:
            seen = trace(model, given)
            arrays = {f"{i}/{stage}": array for stage in seen for i, array in enumerate(seen.texts(stage))}
        comparison = golden.compare(recorded, arrays)
        assert comparison.ok, f"{head}: {comparison}"
        stage = list(recorded.stages)[-1]
        changed = {f"{i}/{stage}": array + 1 for i, array in enumerate(recorded.stages[stage])}
        assert golden.compare(recorded, changed).first.stage == stage


def check_a_port_of_unusual_sizes_is_diagnosed(name: str, folder: Path) -> None:
    """The diagnosis skips mistakes that are impossible with three heads of width 8, or with heads of odd width."""
    model = tiny.model(name, usual_head(name), d_model=24, n_heads=3, n_layers=1)
    recorded = golden.record(model, inputs(model, (4,)))
    stage = next(each for each in recorded.stages if each.endswith("attention.context"))
    random = np.random.default_rng(0)
    theirs = {f"{i}/{stage}": random.standard_normal(array.shape) for i, array in enumerate(recorded.stages[stage])}
    assert golden.diagnose(recorded, theirs, model).stage == stage


def check_the_commands_take_it(name: str, folder: Path) -> None:
    """Records a golden file, trains a classifier on a few rows, and traces and draws the result."""
    if CLASSIFIER not in heads(name):
        return
    start = next(head for head in ("translation", "base", heads(name)[0]) if head in heads(name))
    tiny.folder(folder / "start", name, start, **NEEDED.get(name, {}))
    assert run("golden", "record", "--tiny", name, "-o", folder / "tiny")[0] == 0
    train = folder / "train.tsv"
    train.write_text("sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in ROWS * 8))
    options = ("--train", train, "--dev", train, "--batch-size", "4", "--learning-rate", "3e-3")
    code, _, errors = run("finetune", "--model", folder / "start", *options, "-o", folder / "made")
    assert code == 0, errors
    assert load_folder(folder / "made")[0].model_type == name
    classify = npformer.pipeline("text-classification", folder / "made")
    assert sum(classify(text)[0]["label"] == label for text, label in ROWS) >= 3
    code, printed, errors = run("trace", "-m", folder / "made", "I love it")
    assert code == 0, errors
    assert "logits" in printed
    code, _, errors = run("view", "-m", folder / "made", "I love it", "-o", folder / "view.html")
    assert code == 0, errors


CHECKS: dict[str, Callable[[str, Path], None]] = {
    function.__name__.removeprefix("check_"): function
    for function in (
        check_a_text_has_the_same_bits_in_any_company,
        check_config_and_weights_there_and_back,
        check_dropout_stands_at_stages_of_the_model,
        check_a_golden_file_fits_its_model_and_no_other,
        check_a_port_of_unusual_sizes_is_diagnosed,
        check_the_commands_take_it,
    )
}


def check_family(name: str, folder: Path) -> None:
    """Runs every check of one family; folder: an empty folder for files."""
    for title, check in CHECKS.items():
        (folder / title).mkdir()
        check(name, folder / title)
