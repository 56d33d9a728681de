"""NaN or infinity in weights or answers raises an error that names the array, without a warning from NumPy."""

import warnings

import numpy as np
import pytest

import npformer
from npformer import NpformerError
from npformer.checkpoint import convert, flatten, load_folder
from npformer.checkpoint.read import OWN_WEIGHTS, read_folder
from npformer.checkpoint.safetensors import read_tensors, write_tensors
from npformer.checkpoint.storage import first_nonfinite
from npformer.engine.runtime.narrow import BFLOAT16
from tests.support import tiny, torch_writer

QUERY = "layers.1.attention.query.weight"
THEIRS = "distilbert.transformer.layer.1.attention.q_lin.weight"
IDS = [[1, 5, 6, 2]]


@pytest.fixture(autouse=True)
def no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def damaged(path, value=np.nan, layout="torch", marked=False):
    """Returns a tiny model in which one number is `value`: the weight from input 2 to output 5 of a query."""
    folder = tiny.folder(path, own=layout == "own")
    tensors = {name: np.array(array) for name, array in read_folder(folder).tensors.items()}
    if layout == "own":
        tensors[QUERY][2, 5] = value
        write_tensors(folder / OWN_WEIGHTS, tensors, {"format": "npformer"} | ({"finite": "true"} if marked else {}))
        return folder
    tensors[THEIRS][5, 2] = value
    if layout == "torch":
        write_tensors(folder / "model.safetensors", tensors, {"format": "pt"})
    else:
        (folder / "model.safetensors").unlink()
        torch_writer.save(folder / "pytorch_model.bin", tensors)
    return folder


@pytest.mark.parametrize("layout", ["torch", "own", "pickle"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("mapped", [True, False])
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path, layout, value, mapped):
    folder = damaged(tmp_path / "model", value, layout)
    for load in (npformer.load, load_folder, lambda *a, **k: npformer.pipeline(None, *a, **k)):
        with pytest.raises(NpformerError, match=rf"{QUERY}.*: the number at \[2, 5\] is {value}; .*allow_nonfinite"):
            load(folder, mapped=mapped)
    weights = npformer.load(folder, mapped=mapped, allow_nonfinite=True).weights
    assert np.array_equal(flatten(weights)[QUERY][2, 5], value, equal_nan=True)


def test_tensors_of_other_heads_are_not_checked(tmp_path):
    folder = tiny.folder(tmp_path / "model")
    tensors = {name: np.array(array) for name, array in read_folder(folder).tensors.items()}
    tensors["classifier.weight"][0, 0] = np.nan
    write_tensors(folder / "model.safetensors", tensors, {"format": "pt"})
    load_folder(folder, head="base")
    with pytest.raises(NpformerError, match=r"head\.output\.weight"):
        load_folder(folder)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_answers_of_such_weights_are_errors_and_a_trace_shows_where(tmp_path, value):
    model = npformer.load(damaged(tmp_path / "model", value), allow_nonfinite=True)
    with pytest.raises(NpformerError, match=r"text 0: logits: not finite.*npformer\.trace shows"):
        model(IDS)
    with pytest.raises(NpformerError, match="not finite"):
        npformer.pipeline("text-classification", model)("hot")
    for task in ("feature-extraction", "sentence-embedding"):
        with pytest.raises(NpformerError, match="text 0: last_hidden_state: not finite"):
            npformer.pipeline(task, model if task == "sentence-embedding" else base(tmp_path, value))(["hot", "cold"])
    recorded = npformer.trace(model, [1, 5, 6, 2])
    stages = [name for name in recorded if not np.isfinite(recorded[name]).all()]
    assert stages[0] == "layers.1.attention.query"
    assert stages[-1] == "probabilities"


def base(tmp_path, value):
    return npformer.load(damaged(tmp_path / "base", value), head="base", allow_nonfinite=True)


@pytest.mark.parametrize("texts", [1, 64])
def test_finite_weights_that_overflow_are_an_error(tmp_path, texts):
    """Sums of finite weights overflow in float32, on this thread or on a worker's, but not in float64."""
    folder = tiny.folder(tmp_path / "model")
    tensors = {name: np.array(array) for name, array in read_folder(folder).tensors.items()}
    tensors["classifier.weight"][:] = 3e38
    write_tensors(folder / "model.safetensors", tensors, {"format": "pt"})
    ids = [[1, *[5, 6, 7] * (1 + number % 7), 2] for number in range(texts)]
    with pytest.raises(
        NpformerError, match=r"text 0: logits: not finite, because an intermediate number is too large for float32"
    ):
        npformer.load(folder, threads=2)(ids)
    assert np.isfinite(npformer.load(folder, dtype=np.float64, threads=2)(ids).logits).all()


def test_a_masked_word_head_that_overflows_is_an_error(tmp_path):
    """For masked words, the head runs after the encoder, and only at the masks."""
    folder = tiny.folder(tmp_path / "model", head="masked-lm")
    tensors = {name: np.array(array) for name, array in read_folder(folder).tensors.items()}
    tensors["vocab_transform.weight"][:] = 3e38
    write_tensors(folder / "model.safetensors", tensors, {"format": "pt"})
    fill = npformer.pipeline("fill-mask", folder)
    with pytest.raises(NpformerError, match=r"mask 0: logits: not finite"):
        fill("i [MASK] ice")


def test_translations_of_such_weights_are_errors(tmp_path):
    folder = tmp_path / "model"
    source = npformer.checkpoint.convert("tests/golden/seq2seq/marian-files", folder, dtype="float32")
    tensors = {name: np.array(array) for name, array in read_tensors(source / OWN_WEIGHTS)[0].items()}
    tensors["decoder.layers.0.ffn.output.bias"][0] = np.nan
    write_tensors(folder / OWN_WEIGHTS, tensors, {"format": "npformer"})
    with pytest.raises(NpformerError, match=r"decoder\.layers\.0\.ffn\.output\.bias: the number at \[0\] is nan"):
        npformer.load(folder)
    model = npformer.load(folder, allow_nonfinite=True)
    for settings in ({"num_beams": 1}, {"num_beams": 3}, {"num_beams": 1, "do_sample": True}):
        with pytest.raises(NpformerError, match="the scores of the next token are not finite"):
            model.generate([[3, 4, 0]], max_new_tokens=5, **settings)
    with pytest.raises(NpformerError, match="text 0: logits: not finite"):
        model([3, 4, 0], labels=[5, 6, 0])


def test_a_converted_checkpoint_marked_as_finite_is_not_checked_again(tmp_path):
    """A file marked as finite is not checked when it is loaded. If the mark is wrong, calls raise errors."""
    finite = convert(tiny.folder(tmp_path / "a"), tmp_path / "b")
    assert read_tensors(finite / OWN_WEIGHTS)[1]["finite"] == "true"
    source = damaged(tmp_path / "c")
    kept = convert(source, tmp_path / "d")
    assert "finite" not in read_tensors(kept / OWN_WEIGHTS)[1]
    back = convert(kept, tmp_path / "e", to="torch")
    assert np.isnan(read_tensors(back / "model.safetensors")[0][THEIRS][5, 2])
    model = npformer.load(damaged(tmp_path / "f", layout="own", marked=True))
    with pytest.raises(NpformerError, match="not finite"):
        model(IDS)


def test_a_mark_in_torch_s_layout_counts_for_nothing(tmp_path):
    folder = damaged(tmp_path / "a")
    tensors, _ = read_tensors(folder / "model.safetensors")
    write_tensors(folder / "model.safetensors", {name: np.array(a) for name, a in tensors.items()}, {"finite": "true"})
    with pytest.raises(NpformerError, match="the number at"):
        npformer.load(folder)


@pytest.mark.parametrize("shape", [(), (5,), (200,), (130, 3), (3, 130), (65, 2, 3)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_first_number_that_is_not_finite(shape, dtype):
    array = np.ones(shape, dtype)
    assert first_nonfinite(array) is None
    for place in (0, array.size // 2, array.size - 1):
        index = np.unravel_index(place, shape) if shape else ()
        for value in (np.nan, np.inf):
            found = array.copy()
            found[index] = value
            assert first_nonfinite(found) == index
            if array.ndim == 2:
                assert first_nonfinite(np.asfortranarray(found)) == index


def test_bfloat16_is_looked_at_too():
    bits = np.full((70, 4), 0x3F80, np.uint16)  # 1.0
    assert first_nonfinite(bits.view(BFLOAT16)) is None
    bits[66, 1] = 0x7F80  # infinity
    assert first_nonfinite(bits.view(BFLOAT16)) == (66, 1)


@pytest.mark.parametrize("bits", [0x7F800001, 0xFF812345])
def test_a_signalling_nan_is_refused_without_a_warning(tmp_path, bits):
    folder = damaged(tmp_path / "model", np.uint32(bits).view(np.float32))
    for dtype in (np.float32, np.float64):
        with pytest.raises(NpformerError, match="the number at"):
            npformer.load(folder, dtype=dtype)
    convert(folder, tmp_path / "double", dtype="float64")
    with pytest.raises(NpformerError, match="the number at"):
        npformer.load(tmp_path / "double")


def test_a_double_that_single_precision_cannot_hold(tmp_path):
    folder = tiny.folder(tmp_path / "model")
    tensors = {name: np.array(a, np.float64) for name, a in read_folder(folder).tensors.items()}
    tensors["classifier.bias"][1] = 1e300
    write_tensors(folder / "model.safetensors", tensors, {"format": "pt"})
    with pytest.raises(NpformerError, match=r"head\.output\.bias .*the number at \[1\] is inf"):
        npformer.load(folder)
    assert np.isfinite(npformer.load(folder, dtype=np.float64)(IDS).logits).all()
