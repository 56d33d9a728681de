"""Names and arguments of other libraries raise an error that shows the line to write instead."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import pickle
import re

import numpy as np
import pytest

import npformer
from npformer import Model, NpformerError, pipeline
from npformer.cli.main import COMMANDS
from npformer.common import other_libraries
from tests.support import tiny

CLASSIFIER = tiny.model("bert", "sequence-classification")
TOKENIZER = npformer.load("distilbert-sst2").tokenizer
TASKS = (
    pipeline("text-classification", CLASSIFIER),
    pipeline("sentence-embedding", tiny.model("bert", "base")),
    pipeline("sparse-embedding", tiny.model("bert", "masked-lm")),
    pipeline("text-ranking", tiny.model(labels=("SCORE",))),
)
OBJECTS = {
    "MODEL": (CLASSIFIER,),
    "TASK": TASKS,
    "CONFIG": (CLASSIFIER.config,),
    "TOKENIZER": (TOKENIZER,),
    "ARRAY": (TASKS[1](["ice"]),),
    "OUTPUT": (CLASSIFIER([[2, 3]]),),
    "MODULE": (npformer,),
}
TABLES = {name: getattr(other_libraries, name) for name in OBJECTS}
NAMES = [(table, name) for table in TABLES if table != "MODULE" for name in TABLES[table]]


@pytest.mark.parametrize(("table", "name"), NAMES)
def test_another_library_s_name_gets_a_hint(table, name):
    """An object without this attribute raises an AttributeError with the hint, so `hasattr` works."""
    without = [each for each in OBJECTS[table] if not hasattr(each, name)]
    assert without
    for each in without:
        with pytest.raises(AttributeError) as error:
            getattr(each, name)
        assert str(error.value).endswith(f": {TABLES[table][name]}")


@pytest.mark.parametrize("table", ["MODEL", "TASK"])
def test_setting_another_library_s_name_gets_a_hint(table):
    """Setting the name would have no effect: `task.max_length = 8` truncates nothing."""
    for name, line in TABLES[table].items():
        without = [each for each in OBJECTS[table] if not hasattr(each, name)]
        for each in without:
            with pytest.raises(AttributeError) as error:
                setattr(each, name, 8)
            assert str(error.value).endswith(f": {line}")
            assert not hasattr(each, name)


@pytest.mark.parametrize("name", other_libraries.MODULE)
def test_an_import_from_npformer_is_answered(name):
    with pytest.raises(NpformerError, match=re.escape(f"npformer has no {name}: {other_libraries.MODULE[name]}")):
        exec(f"from npformer import {name}")
    assert name not in dir(npformer)


def test_unknown_names_stay_python_s_own():
    for each in (CLASSIFIER, TASKS[0], CLASSIFIER.config, TOKENIZER, OBJECTS["ARRAY"][0]):
        with pytest.raises(AttributeError, match=r"object has no attribute 'nothing'$"):
            _ = each.nothing
    with pytest.raises(AttributeError, match="module 'npformer' has no attribute 'nothing'"):
        _ = npformer.nothing


@pytest.mark.parametrize("line", sorted({line for table in TABLES.values() for line in table.values()}))
def test_the_names_in_a_line_to_write_exist(line):
    """The attributes and commands in a suggested line exist on a model, task, config, tokenizer or the module."""
    known = {"model": OBJECTS["MODEL"], "task": TASKS, "config": OBJECTS["CONFIG"], "tokenizer": OBJECTS["TOKENIZER"]}
    for owner, path in re.findall(r"(?<![\w.])(model|task|config|tokenizer|npformer)((?:\.[a-z]\w*)+)", line):
        values = known.get(owner, (npformer,))
        assert any(exists(each, path[1:].split(".")) for each in values), (owner, path)
    assert set(re.findall(r"`npformer ([\w-]+)", line)) <= set(COMMANDS)


def exists(value, names):
    if inspect.ismodule(value) and names[0] == "training":
        value, names = importlib.import_module("npformer.training"), names[1:]
    try:
        functools.reduce(getattr, names, value)
    except AttributeError:
        return False
    return True


def test_names_of_classes_are_answered_too():
    for owner, name in ((npformer.Model, "from_pretrained"), (npformer.Config, "from_pretrained"), (Model, "save")):
        with pytest.raises(
            AttributeError, match=rf"type object '{owner.__name__}' has no attribute '{name}': .*npformer"
        ):
            getattr(owner, name)
    with pytest.raises(AttributeError, match=r"type object 'Model' has no attribute 'nothing'$"):
        _ = npformer.Model.nothing


def test_calls_of_rankers_in_the_form_of_others_are_answered():
    rank = TASKS[3]
    line = r"write task.rank\(query, texts\), or task\(\[npformer.Pair\(query, text\), ...\]\) for the scores"
    with pytest.raises(NpformerError, match=f"text-ranking: expected one argument, got 2; {line}"):
        rank("ice", ["cream"])
    for given in ({"query": "ice", "documents": ["cream"]}, [{"query": "ice", "text": "cream"}]):
        with pytest.raises(NpformerError, match=f"expected a pair of a query and a text, got query, .*; {line}"):
            rank(given)
    assert [each["corpus_id"] for each in rank.rank("ice", ["cream"])] == [0]
    with pytest.raises(NpformerError, match="text-classification: expected one argument, got 3; pass several texts as"):
        TASKS[0]("ice", "cream", "hot")


@pytest.mark.parametrize("name", ["model.gguf", "dir/Model.Q4_K_M.GGUF", "model.onnx", "tf_model.h5", "owner/m.gguf"])
def test_a_file_of_another_engine_is_answered(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in ("absent", "present"):
        with pytest.raises(
            NpformerError, match=f"{name}: .* files are not read; give the folder or the hub id of the o"
        ):
            npformer.load(name)
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"GGUF")


# --- arguments -------------------------------------------------------------------------------------------------------

CALLS = {
    "load": lambda **given: npformer.load("distilbert-sst2", **given),
    "log_softmax": lambda **given: npformer.log_softmax([1.0, 2.0], **given),
    "search": lambda **given: npformer.search(np.eye(2), np.eye(2), **given),
    "Model.__call__": lambda **given: CLASSIFIER([[2, 3]], **given),
}


@pytest.mark.parametrize("function", CALLS)
def test_an_argument_of_another_library_is_answered(function):
    assert CALLS.keys() == other_libraries.ARGUMENTS.keys()
    for name, line in other_libraries.ARGUMENTS[function].items():
        with pytest.raises(NpformerError, match=re.escape(f": no argument {name!r}: {line}")):
            CALLS[function](**{name: 1})
    with pytest.raises(TypeError, match="'nothing'"):
        CALLS[function](nothing=1)


def test_functions_that_answer_keep_their_signature_and_are_pickled():
    for name in ("load", "log_softmax", "search"):
        function = getattr(npformer, name)
        assert not set(inspect.signature(function).parameters) & set(other_libraries.ARGUMENTS[name])
        assert pickle.loads(pickle.dumps(function)) is function


# --- what still works ------------------------------------------------------------------------------------------------


def test_outputs_are_counted_as_in_transformers():
    output = CLASSIFIER([[2, 3]])
    assert output[0] is output[-1] is output["logits"] is output.logits
    for key in (1, -2, "hidden_states", True):
        with pytest.raises(KeyError, match=str(key)):
            output[key]


def test_objects_that_answer_are_copied_and_pickled():
    array = OBJECTS["ARRAY"][0]
    assert np.array_equal(pickle.loads(pickle.dumps(array)), array)
    assert type(array[:1]) is type(array)
    for each in (CLASSIFIER, CLASSIFIER.config):
        assert repr(copy.copy(each)) == repr(pickle.loads(pickle.dumps(each))) == repr(each)
