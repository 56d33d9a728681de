"""The tokenizer of a checkpoint folder: the ids are transformers' (the golden file says how they were made), whatever
files describe it, and every folder that cannot give a tokenizer for the model is refused with its reason."""

import json
from pathlib import Path

import pytest

from npformer.errors import NpformerError
from npformer.text.tokenizer import load_tokenizer, longest_text, special_token
from tests.golden.make_tokenizer import write_folder
from tests.support import tiny

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "tasks" / "tokenizer_ids.json").read_text(encoding="utf-8"))
CONFIG = tiny.config(vocab_size=len(tiny.VOCABULARY) + 8)


def folder(path, files):
    return write_folder(path / "model", files)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_the_ids_are_transformers(case, tmp_path):
    tokenizer = load_tokenizer(folder(tmp_path, case["files"]), CONFIG)
    for text, ids in zip(GOLDEN["texts"], case["ids"], strict=True):
        encoding = tokenizer.encode(*([text] if isinstance(text, str) else text))
        assert encoding.ids == ids, text


def test_the_forty_texts_tell_the_cases_apart():
    distinct = {json.dumps(case["ids"]) for case in GOLDEN["cases"]}
    assert len(GOLDEN["texts"]) == 40
    assert len(distinct) >= 9


def test_nothing_cuts_or_pads(tmp_path):
    tokenizer = load_tokenizer(folder(tmp_path, {"lowercase": True}), CONFIG)
    assert tokenizer.truncation is None
    assert tokenizer.padding is None
    assert len(tokenizer.encode("a " * 300).ids) == 302
    assert len(tokenizer.encode("").ids) == 2


def test_a_pair_has_two_segments(tmp_path):
    tokenizer = load_tokenizer(folder(tmp_path, {}), CONFIG)
    encoding = tokenizer.encode("ice cream", "i love it")
    assert encoding.tokens == ["[CLS]", "ice", "cream", "[SEP]", "i", "love", "it", "[SEP]"]
    assert encoding.type_ids == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_file_without_marks_or_decoder_gets_bert_s(tmp_path):
    tokenizer = tiny.tokenizer()
    data = json.loads(tokenizer.to_str())
    data["post_processor"] = data["decoder"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    loaded = load_tokenizer(tmp_path, CONFIG)
    assert loaded.encode("ice cream", "i").tokens == tokenizer.encode("ice cream", "i").tokens
    assert loaded.decode(loaded.encode("loving it.").ids) == tokenizer.decode(tokenizer.encode("loving it.").ids)


@pytest.mark.parametrize(("limit", "tokens"), [(None, 64), (16, 16), (1e30, 64), (1000, 64), ("nonsense", 64)])
def test_the_longest_text_is_the_smaller_of_model_and_settings(limit, tokens, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": limit}))
    assert longest_text(tmp_path, tiny.config()) == tokens
    assert longest_text(None, tiny.config()) == 64


def test_special_tokens_by_role(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"mask_token": {"content": "<mask>"}}))
    assert special_token(tmp_path, CONFIG, "mask_token") == "<mask>"
    assert special_token(tmp_path, CONFIG, "pad_token") == "[PAD]"
    assert special_token(None, CONFIG, "mask_token") == "[MASK]"


def refused(path, config=CONFIG):
    with pytest.raises(NpformerError) as caught:
        load_tokenizer(path, config)
    return str(caught.value)


def test_a_folder_without_a_tokenizer(tmp_path):
    message = refused(tmp_path)
    assert str(tmp_path) in message
    assert "tokenizer.json" in message
    assert "vocab.txt" in message


def test_a_tokenizer_larger_than_the_embedding_table(tmp_path):
    for name, files in {"old": {}, "new": {"lowercase": True}}.items():
        message = refused(folder(tmp_path / name, files), tiny.config(vocab_size=100))
        assert f"{len(tiny.VOCABULARY)} pieces" in message
        assert "100 rows" in message


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"version": "1.0", "model": {"type": "Nonsense"}}', b"[" * 10_000],
)
def test_a_corrupt_tokenizer_json(content, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(content)
    assert "tokenizer.json: not a tokenizer that can be read" in refused(tmp_path)


def test_a_corrupt_vocabulary(tmp_path):
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\n\xff\xfe\n")
    assert "vocab.txt" in refused(tmp_path)


@pytest.mark.parametrize("missing", ["[CLS]", "[SEP]"])
def test_special_tokens_that_the_vocabulary_lacks_are_added(missing, tmp_path):
    pieces = [piece for piece in tiny.VOCABULARY if piece != missing]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    assert load_tokenizer(tmp_path, CONFIG).token_to_id(missing) == len(pieces)


def test_an_unknown_token_that_the_vocabulary_lacks(tmp_path):
    data = json.loads(tiny.tokenizer().to_str())
    data["model"]["unk_token"] = "<unk>"
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    assert "<unk>" in refused(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", {"do_lower_case": "yes"}),
        ("tokenizer_config.json", {"strip_accents": 1}),
        ("tokenizer_config.json", {"additional_special_tokens": "x"}),
        ("tokenizer_config.json", {"additional_special_tokens": [3]}),
        ("tokenizer_config.json", {"mask_token": 7}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "y"}}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"1": {}}}),
        ("tokenizer_config.json", {"added_tokens_decoder": 3}),
        ("tokenizer_config.json", []),
        ("special_tokens_map.json", {"cls_token": ["a"]}),
        ("added_tokens.json", {"x": "y"}),
    ],
)
def test_settings_that_make_no_sense(name, content, tmp_path):
    assert name in refused(folder(tmp_path, {name: content}))
