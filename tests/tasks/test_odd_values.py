"""Odd values in settings files and texts give an answer or a short NpformerError."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer import Pair
from npformer.common.errors import NpformerError
from npformer.config import Config
from npformer.generation.settings import NAMES, UNSUPPORTED
from npformer.tasks.task import Task
from npformer.text import translation_tokenizer
from npformer.text.tokenizer import load_tokenizer, longest_text, special_token
from tests.support import tiny, writers
from tests.support.seq2seq_models import folder_of_letters

#: Values in JSON. Python reads some of them as inf, nan, or a whole number that no float can represent.
JSON = (
    "null", "true", "false", "0", "-1", "2", "1.5", "1e400", "-1e400", "NaN", "1" + "0" * 400, "-1" + "0" * 400, '""', '"x"',
    '"\\u0000"', '"\\ud800"', '"' + "x" * 10**5 + '"', "[]", "[[]]", "[[[]]]", "[null]", "[1e400]", '["x", "x"]', "{}",
    '{"x": {}}', '{"": [[]]}', '["mean"' + ', "mean"' * 999 + "]",
)  # fmt: skip
ODD_TEXTS: tuple[Any, ...] = (
    None, 5, 1.5, float("nan"), True, b"text", bytearray(b"text"), "\ud800", "a\udfffb", np.array("text"), np.array(5), np.array(None),
    np.array([[1.5]]), np.str_("text"), np.bytes_(b"text"), {}, {"text": None}, {"text": 5}, {"text": "a", "text_pair": b"b"},
    {"x" * 10**4: "text"}, {5: 5}, Pair(None, None), Pair("a", "\ud800"), Pair(b"a", "b"), Pair("a", np.array("b")),  # type: ignore[arg-type]
    [None], [["a", "b"]], [[]], [b"text"], [np.array("text")], [np.array(["a", "b"])], ("a", 5), [{"text": ["a"]}], object(), type, len,
    [float("inf")], {"text": "a", "text_pair": {"text": "b"}},
)  # fmt: skip
STRANGE = (
    "",
    " ",
    "\0",
    "a\0b",
    "\n\r\t\v\f",
    "\u200b\u2028\ufeff\u202e",
    "\uffff\U0010ffff",
    "e" + "\u0301" * 500,
    "[MASK]" * 100,
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    made = {head: tiny.folder(root / head, "bert", head) for head in HEADS.values()}
    made["text-generation"] = writers.folder(root / "writer")
    translator = folder_of_letters(root / "translation")
    settings = with_field(translator, "generation_config.json", "max_length", "5")  # enough steps for every setting
    (translator / "generation_config.json").write_text(settings)
    return made | {"translation": translator}


HEADS = {
    "text-classification": "sequence-classification", "token-classification": "token-classification",
    "question-answering": "question-answering", "fill-mask": "masked-lm", "feature-extraction": "base",
    "sentence-embedding": "base", "sparse-embedding": "masked-lm", "zero-shot-classification": "sequence-classification",
}  # fmt: skip


def bounded(act: Any) -> bool:
    """Returns whether the action succeeds. If it fails, its error must be an NpformerError of bounded length."""
    said = "-"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            act()
        except NpformerError as error:
            said = str(error)
    assert 0 < len(said.strip()) < 2500
    return said == "-"


def tasks(folders: dict[str, Path]) -> Iterator[tuple[str, Task]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, head in HEADS.items():
            options = {"candidate_labels": ["a", "b"]} if name == "zero-shot-classification" else {}
            yield name, npformer.pipeline(name, folders[head], **options)
        yield "text-generation", npformer.pipeline("text-generation", folders["text-generation"], max_new_tokens=2)
        yield "translation", npformer.pipeline("translation", folders["translation"], max_new_tokens=2)


@pytest.mark.slow
def test_odd_texts(folders: dict[str, Path]) -> None:
    for name, task in tasks(folders):
        for text in ODD_TEXTS:
            fine = bounded(lambda task=task, text=text: task(text))
            many = bounded(lambda task=task, text=text: list(task(iter([text]))))
            assert not (fine and many) or isinstance(text, str), (name, text)
            if name == "question-answering":
                assert not bounded(lambda task=task, text=text: task(question=text, context=text)) or isinstance(
                    text, str
                )
                bounded(lambda task=task, text=text: task(question=["a", "b"], context=text))
        for text in STRANGE:
            bounded(lambda task=task, text=text: task(text))
            bounded(lambda task=task, text=text: task([text, "a"]))
    for text in ODD_TEXTS:
        bounded(lambda text=text: npformer.trace(task.model, text, "logits"))


@pytest.mark.slow
def test_odd_options(folders: dict[str, Path]) -> None:
    values = [*map(json.loads, JSON), np.array([1, 2]), np.array("x"), b"x", object(), 10**5000, type]
    for name, task in tasks(folders):
        habits = ["truncation", "device", "padding", "batch_size", "handle_long_generation", "stop", "return_full_text"]
        known = [*(NAMES if name in ("translation", "text-generation") else vars(task.options)), *habits]
        for option in (*known, "x" * 10**4):
            for value in values:
                if option in ("progress",):
                    continue
                bounded(lambda task=task, option=option, value=value: task("a", **{option: value}))


def refused_or_read(folder: Path, file: str, content: str, act: Any) -> bool:
    """Runs an action while a file in the folder has this content; returns whether it succeeds, like `bounded`."""
    path, before = folder / file, (folder / file).read_bytes() if (folder / file).exists() else None
    path.write_text(content, encoding="utf-8")
    try:
        return bounded(act)
    finally:
        if before is None:
            path.unlink()
        else:
            path.write_bytes(before)


def with_field(folder: Path, file: str, name: str, value: str) -> str:
    """Returns the file's content with one field set."""
    stored = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    fields = {**{key: json.dumps(each) for key, each in stored.items()}, name: value}
    return "{" + ", ".join(f"{json.dumps(key)}: {each}" for key, each in fields.items()) + "}"


GENERATION = (*NAMES, *UNSUPPORTED, "unknown")
TOKENIZER = (
    "model_max_length", "do_lower_case", "strip_accents", "tokenize_chinese_chars", "tokenizer_class", "unk_token", "cls_token",
    "sep_token", "mask_token", "pad_token", "additional_special_tokens", "added_tokens_decoder", "separate_vocabs",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", GENERATION)
def test_odd_settings_of_generation(name: str, folders: dict[str, Path]) -> None:
    folder = folders["translation"]
    model = npformer.load(folder)
    for value in JSON:
        content = with_field(folder, "generation_config.json", name, value)
        refused_or_read(folder, "generation_config.json", content, lambda: npformer.pipeline("translation", model)("a"))


def read_texts(folder: Path, config: Config) -> None:
    tokenizer = load_tokenizer(folder, config)
    assert len(tokenizer.encode("a [MASK]").ids) >= 3
    assert 1 <= longest_text(folder, config) <= config.max_length
    assert special_token(folder, config, "mask_token")


def read_sources(folder: Path, config: Config) -> None:
    assert translation_tokenizer.load_tokenizer(folder, config).encode("a")
    longest_text(folder, config)


def with_a_vocabulary(folder: Path) -> None:
    """Replaces the tokenizer of a folder with its vocabulary."""
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(tiny.VOCABULARY), encoding="utf-8")


@pytest.mark.slow
def test_odd_added_tokens(tmp_path: Path) -> None:
    folder, config = tiny.folder(tmp_path / "model", "bert", "masked-lm"), tiny.config("bert", "masked-lm")
    with_a_vocabulary(folder)
    for value in JSON:
        for content in (f'{{"a": {value}}}', value):
            refused_or_read(folder, "added_tokens.json", content, lambda: read_texts(folder, config))


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZER)
def test_odd_settings_of_a_tokenizer(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    folder, config = tiny.folder(tmp_path / "model", "bert", "masked-lm"), tiny.config("bert", "masked-lm")
    for value in JSON:
        content = with_field(folder, "tokenizer_config.json", name, value)
        refused_or_read(folder, "tokenizer_config.json", content, lambda: read_texts(folder, config))
    with_a_vocabulary(folder)
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        for value in JSON:
            content = with_field(folder, file, name, value)
            refused_or_read(folder, file, content, lambda: read_texts(folder, config))
    translator = folders["translation"]
    config = npformer.load(translator).config
    for value in JSON:
        content = with_field(translator, "tokenizer_config.json", name, value)
        refused_or_read(translator, "tokenizer_config.json", content, lambda: read_sources(translator, config))


MODULES = [{"type": "models.Transformer", "path": ""}, {"type": "models.Pooling", "path": "1_Pooling"}]


def embed(folder: Path) -> None:
    task = npformer.pipeline("sentence-embedding", folder)
    assert task("a").shape[0] <= 6 * 32


def sentence_folder(path: Path) -> Path:
    folder = tiny.folder(path / "model", "bert", "base", n_layers=1)
    (folder / "1_Pooling").mkdir()
    (folder / "modules.json").write_text(json.dumps(MODULES))
    return folder


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("1_Pooling/config.json", "pooling_mode"),
        ("1_Pooling/config.json", "pooling_mode_cls_token"),
        ("1_Pooling/config.json", "include_prompt"),
        ("sentence_bert_config.json", "max_seq_length"),
        ("sentence_bert_config.json", "do_lower_case"),
        ("config_sentence_transformers.json", "default_prompt_name"),
        ("config_sentence_transformers.json", "prompts"),
    ],
)
def test_odd_settings_of_sentence_transformers(file: str, name: str, tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path)
    for value in JSON:
        content = with_field(folder, file, name, value)
        if name == "prompts":
            content = content.replace("{", '{"default_prompt_name": "x", ', 1)
        refused_or_read(folder, file, content, lambda: embed(folder))


@pytest.mark.parametrize(
    "file", ["1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json"]
)
def test_odd_files_of_sentence_transformers(file: str, tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path)
    for value in JSON:
        refused_or_read(folder, file, value, lambda: embed(folder))


@pytest.mark.parametrize("field", ["type", "path"])
def test_odd_modules(field: str, tmp_path: Path) -> None:
    folder = tiny.folder(tmp_path / "model", "bert", "base", n_layers=1)
    for value in (*JSON, '"' + "x" * 5000 + '"', '".."', '"/"', '"a/../../b"', '"con\\u0000"'):
        for module in (0, 1):
            fields = [json.dumps(each) for each in MODULES]
            fields[module] = with_field(tmp_path, "none", field, value)
            for content in (f"[{', '.join(fields)}]", value):
                refused_or_read(folder, "modules.json", content, lambda: embed(folder))
