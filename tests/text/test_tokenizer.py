"""The tokenizer of a checkpoint folder, read from any of its files. The ids equal transformers' ids; the golden file
describes how they were made. A folder without a tokenizer for the model is refused with the reason."""

import json
from pathlib import Path

import numpy as np
import pytest

from npformer import Model, Pair, load, pipeline
from npformer.common.errors import NpformerError
from npformer.text.encoding import Encoder
from npformer.text.sentencepiece_file import MOST_FIELDS
from npformer.text.tokenizer import load_tokenizer, longest_text, special_token
from tests.fuzz import corpus
from tests.fuzz.protobuf_form import BYTES, VARINT, build, varint
from tests.golden.make_tokenizer import CASES, write_folder
from tests.support import tiny

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "tasks" / "tokenizer_ids.json").read_text(encoding="utf-8"))
CONFIG = tiny.config(vocab_size=len(tiny.VOCABULARY) + 8)


def folder(path, files):
    return write_folder(path / "model", files)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_the_ids_are_transformers(case, tmp_path):
    model_type = case["files"].get("config.json", {}).get("model_type", "bert")
    tokenizer = load_tokenizer(folder(tmp_path, case["files"]), tiny.config(model_type, vocab_size=300))
    for text, ids in zip(GOLDEN["texts"], case["ids"], strict=True):
        encoding = tokenizer.encode(*([text] if isinstance(text, str) else text))
        assert encoding.ids == ids, text


def test_the_forty_texts_distinguish_the_cases():
    distinct = {json.dumps(case["ids"]) for case in GOLDEN["cases"]}
    assert len(GOLDEN["texts"]) == 40
    assert len(distinct) >= 15


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


@pytest.mark.parametrize("name", ["BertTokenizer", "DistilBertTokenizerFast", "ElectraTokenizer", "MPNetTokenizerFast"])
def test_normalization_settings_override_the_file_for_the_classes_that_read_them(name, tmp_path):
    (tmp_path / "tokenizer.json").write_text(tiny.tokenizer().to_str())
    for kind, tokens in ((name, ["I", "##C", "##E"]), ("PreTrainedTokenizerFast", ["ice"])):
        settings = {"tokenizer_class": kind, "do_lower_case": False, "tokenize_chinese_chars": False}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        assert load_tokenizer(tmp_path, CONFIG).encode("ICE", add_special_tokens=False).tokens == tokens


@pytest.mark.parametrize(("limit", "tokens"), [(None, 64), (16, 16), (1e30, 64), (1000, 64), ("nonsense", 64)])
def test_the_longest_text_is_the_smaller_of_model_and_settings(limit, tokens, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": limit}))
    assert longest_text(tmp_path, tiny.config()) == tokens
    assert longest_text(None, tiny.config()) == 64


def test_model_input_names_may_leave_out_the_token_types(tmp_path):
    """Without token_type_ids in model_input_names, Transformers passes no token types, and every token has type 0."""
    tiny.folder(tmp_path, "bert")
    pair = Pair("ice cream", "not")
    scores = []
    for names in (["input_ids", "token_type_ids", "attention_mask"], ["input_ids", "attention_mask"]):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_input_names": names}))
        classify = pipeline("text-classification", tmp_path, function_to_apply="none")
        scores.append([each["score"] for each in classify(pair, top_k=None)])
    encoding = classify.tokenizer.encode(*pair)
    for types, found in zip((encoding.type_ids, [0] * len(encoding.ids)), scores, strict=True):
        logits = classify.model([encoding.ids], token_type_ids=[types]).logits[0]
        np.testing.assert_array_equal(np.float32(found), np.sort(logits)[::-1])
    assert scores[0] != scores[1]
    (tmp_path / "tokenizer_config.json").write_text('{"model_input_names": "input_ids"}')
    with pytest.raises(NpformerError, match="model_input_names: expected a list of names"):
        Encoder(load(tmp_path))


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
        assert f"at most 100 pieces, one per row of the embedding table, got {len(tiny.VOCABULARY)};" in message


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"version": "1.0", "model": {"type": "Nonsense"}}', b"[" * 10_000],
)
def test_a_corrupt_tokenizer_json(content, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(content)
    assert "tokenizer.json: not a readable tokenizer" in refused(tmp_path)


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


@pytest.mark.parametrize("token", ["$A", "${HOME}", "[CLS]:1"])
def test_special_tokens_with_a_meaning_in_templates_are_refused(token, tmp_path):
    message = refused(folder(tmp_path, {"tokenizer_config.json": {"cls_token": token}}))
    assert f"the special token {token!r} must not begin with $ or contain :" in message


# --- vocab.json and merges.txt, and SentencePiece's files ------------------------------------------------------------

ROBERTA, XLM_ROBERTA = (tiny.config(each, vocab_size=300) for each in ("roberta", "xlm-roberta"))
MERGES, PIECES = CASES["merges"], CASES["XLM-RoBERTa's pieces"]
SPM = corpus.unigram()["sentencepiece.bpe.model"]


def test_places_of_byte_level_pieces_begin_after_their_spaces(tmp_path):
    tokenizer = load_tokenizer(folder(tmp_path, MERGES), ROBERTA)
    encoding = tokenizer.encode("the good café")
    assert encoding.tokens == ["<s>", "the", "Ġgood", "Ġ", "c", "a", "f", "Ã©", "</s>"]
    assert encoding.offsets == [(0, 0), (0, 3), (4, 8), (9, 9), (9, 10), (10, 11), (11, 12), (12, 13), (0, 0)]
    pair = tokenizer.encode("the", "good")
    assert pair.tokens == ["<s>", "the", "</s>", "</s>", "good", "</s>"]
    assert set(pair.type_ids) == {0}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["the"]),
        ({"add_bos_token": False}, ["the"]),
        ({"add_bos_token": None, "add_eos_token": True}, ["the", "</s>"]),
        ({"add_bos_token": True, "bos_token": "<s>"}, ["<s>", "the"]),
    ],
)
def test_a_decoder_s_tokenizer_adds_the_tokens_that_its_settings_ask_for(settings, expected, tmp_path):
    """OPT's published folders name GPT-2's tokenizer with add_bos_token."""
    path = folder(tmp_path, MERGES)
    names = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>"}
    (path / "tokenizer_config.json").write_text(json.dumps(names | settings))
    assert load_tokenizer(path, tiny.config("opt", vocab_size=300)).encode("the").tokens == expected


def test_the_normalizer_of_a_byte_level_tokenizer_json_is_applied(tmp_path):
    made = load_tokenizer(folder(tmp_path / "merges", CASES["merges"]), ROBERTA)
    made.save(str(tmp_path / "merges" / "tokenizer.json"))
    plain = load_tokenizer(tmp_path / "merges", ROBERTA)
    described = json.loads((tmp_path / "merges" / "tokenizer.json").read_text())
    described["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}
    (tmp_path / "merges" / "tokenizer.json").write_text(json.dumps(described))
    assert load_tokenizer(tmp_path / "merges", ROBERTA).encode("The GOOD").ids == plain.encode("the good").ids


def test_fairseq_ids_are_one_higher_than_the_file_s(tmp_path):
    tokenizer = load_tokenizer(folder(tmp_path, PIECES), XLM_ROBERTA)
    assert [tokenizer.id_to_token(i) for i in range(5)] == ["<s>", "<pad>", "</s>", "<unk>", "e"]  # <unk> <s> </s> e
    assert tokenizer.id_to_token(tokenizer.get_vocab_size() - 1) == "<mask>"


@pytest.mark.parametrize("times", [20, 1000])  # the longer text is tokenized in blocks if possible
@pytest.mark.parametrize("model_type", ["roberta", "xlm-roberta"])
def test_long_texts_are_read_in_windows(model_type, times, tmp_path):
    """In every window, the tokens and their offsets are the same as in the whole text."""
    path = folder(tmp_path, MERGES if model_type == "roberta" else PIECES)
    config = tiny.config(model_type, "token-classification", vocab_size=300)
    model = Model(config, tiny.weights(config), path)
    text = "the good ice cream in a film was good " * times
    (encoded,) = Encoder(model).read([text], "window")
    whole = model.tokenizer.encode(text)
    for name in ("ids", "offsets"):
        cut = [list(getattr(piece, name))[rows] for piece, rows in zip(encoded.pieces, encoded.rows(), strict=True)]
        assert [each for part in cut for each in part] == getattr(whole, name)


def written(path, case, name, content):
    path = folder(path, case)
    (path / name).write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("merges.txt", b"t h\nth\n", "expected two pieces separated by a space in each line, got 'th'"),
        ("merges.txt", b"t" * 5000 + b" h\n", "characters of a piece: 2501 is more than the limit"),
        ("merges.txt", b"t h\n\n", "expected two pieces"),
        ("merges.txt", b"t h e\n", "expected two pieces"),
        ("merges.txt", b"\xff \xfe\n", "not UTF-8 (byte 0)"),
        ("merges.txt", "щ щ".encode(), "not a readable tokenizer"),
        ("vocab.json", b'{"<s>": 308}', "expected ids below 308"),
        ("vocab.json", b'{"<s>": -1}', "not a readable tokenizer"),
        ("vocab.json", b"[]", "expected a JSON object"),
        ("tokenizer_config.json", b'{"add_prefix_space": 1}', "add_prefix_space: expected true or false, got 1"),
        ("tokenizer_config.json", b'{"trim_offsets": null}', "trim_offsets: expected true or false"),
    ],
)
def test_merges_that_make_no_sense(name, content, said, tmp_path):
    assert said in refused(written(tmp_path, MERGES, name, content), ROBERTA)


def test_merges_of_models_that_split_texts_in_another_way(tmp_path):
    """Transformers reads these two files with Qwen2's own regular expression and normalizer."""
    path = folder(tmp_path, MERGES)
    said = refused(path, tiny.config("qwen2", vocab_size=300))
    assert "merges.txt: qwen2 models do not split texts as GPT-2 does" in said
    names = {"tokenizer_class": "GPT2Tokenizer", "bos_token": None, "eos_token": "</s>", "unk_token": "</s>"}
    (path / "tokenizer_config.json").write_text(json.dumps(names))
    assert load_tokenizer(path, tiny.config("qwen2", vocab_size=300)).encode("the").tokens == ["the"]


def test_merges_without_their_vocabulary(tmp_path):
    path = folder(tmp_path, MERGES)
    (path / "vocab.json").unlink()
    assert "vocab.json: No such file" in refused(path, ROBERTA)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it has no pieces"),
        (b"\x0a\x05abc", "not a SentencePiece model"),
        (b"\x80" * 100_000, "not a SentencePiece model"),
        (b"\x0b\x00", "not a SentencePiece model"),
        (SPM[:-3], "not a SentencePiece model"),
        (SPM + build([(2, BYTES, build([(3, VARINT, varint(2))]))]), "of type unigram, got BPE"),
        (SPM + build([(2, BYTES, build([(3, VARINT, varint(2**63))]))]), "of type unigram, got 9223372036854775808"),
        (SPM + build([(1, BYTES, b"\x0a\x01a\x15\x00\x00\xc0\x7f")]), "or its score nan"),
        (SPM + build([(1, BYTES, b"\x15\x00\x00\x00\x00")]), "a piece has no text"),
        (SPM + build([(1, BYTES, b"\x0a\x01\xff\x15\x00\x00\x00\x00")]), "a piece is not UTF-8"),
        (
            SPM + build([(3, BYTES, build([(2, BYTES, bytes(2000))]))]),
            "precompiled_charsmap: invalid size of the trie, 0 of 2000 bytes",
        ),
        (
            SPM + build([(1, BYTES, b"\x0a\x03" + b"%d" % i) for i in range(100, 456)]),
            "pieces, one per row of the embedding table",
        ),
        (bytes(1000), "not a SentencePiece model"),  # fields whose number is 0
        (b"\x20\x00" * (MOST_FIELDS + 1), "not a SentencePiece model"),
    ],
)
def test_a_corrupt_sentencepiece_file(content, said, tmp_path):
    path = written(tmp_path, PIECES, "sentencepiece.bpe.model", content)
    message = refused(path, XLM_ROBERTA)
    assert "sentencepiece.bpe.model: " in message
    assert said in message


def test_pieces_with_differently_encoded_fields(tmp_path):
    """The fields of a piece may be in any order. The last of several equal fields is used, and a missing field has a
    default.
    """
    pieces = [
        b"\x15\x00\x00\x80\xbf\x0a\x02zz",  # the score, -1, comes first
        b"\x0a\x01q\x0a\x02zq\x15\x00\x00\x80\xbf\x18\x01",  # two text fields
        b"\x0a\x02qq",  # no score
        b"\x0a\x02##\x15\x00\x00\x80\xbf\x18\x04",  # never split
    ]
    path = written(tmp_path, PIECES, "sentencepiece.bpe.model", SPM + build([(1, BYTES, each) for each in pieces]))
    tokenizer = load_tokenizer(path, XLM_ROBERTA)
    assert tokenizer.encode("zzqqzq##").tokens == ["<s>", "▁", "zz", "qq", "zq", "##", "</s>"]


def test_deberta_reads_a_spm_model_and_cleans_up_by_its_own_rules(tmp_path):
    path, config = tmp_path, tiny.config("deberta-v2", vocab_size=90)
    (path / "spm.model").write_bytes(SPM)
    settings = {"unk_token": "<unk>", "vocab_type": "spm"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    (path / "added_tokens.json").write_text('{"[PAD]": 70}')
    encoded = load_tokenizer(path, config).encode("ice\n  cream,a ", "Ä [MASK]")
    assert encoded.tokens == ["[CLS]", "▁ice", "▁cream", ",", "▁", "a", "[SEP]", "▁", "Ä", "[MASK]", "[SEP]"]
    assert encoded.offsets[1:6] == [(0, 3), (5, 11), (11, 12), (12, 13), (12, 13)]
    assert encoded.type_ids == [0] * 7 + [1] * 4
    for change, tokens in (({"do_lower_case": True}, ["▁", "ä"]), ({"split_by_punct": True}, ["▁", "Ä"])):
        (path / "tokenizer_config.json").write_text(json.dumps({**settings, **change}))
        assert load_tokenizer(path, config).encode("Ä").tokens[1:-1] == tokens
    (path / "tokenizer_config.json").write_text(json.dumps({**settings, "split_by_punct": "yes"}))
    assert "split_by_punct: expected true or false" in refused(path, config)


def test_albert_s_clean_up_of_a_spiece_model(tmp_path):
    path = tmp_path / "model"
    path.mkdir()
    (path / "spiece.model").write_bytes(SPM)
    config = tiny.config("bert", vocab_size=100)
    unknown = {"unk_token": "<unk>"}
    for settings, tokens in (
        ({}, ["▁", "e", "i", "c", "e"]),
        ({"keep_accents": True}, ["▁", "é", "i", "c", "e"]),
        ({"do_lower_case": False}, ["▁", "E", "i", "c", "e"]),  # "E" is unknown
        ({"add_prefix_space": False}, ["e", "i", "c", "e"]),
    ):
        (path / "tokenizer_config.json").write_text(json.dumps({**unknown, **settings}))
        assert load_tokenizer(path, config).encode("Éice", add_special_tokens=False).tokens == tokens, settings
    (path / "tokenizer_config.json").write_text("{}")
    assert "spiece.model: the unknown token '[UNK]' is not in the vocabulary" in refused(path, config)


def test_a_unigram_model_without_an_unknown_piece(tmp_path):
    """Older tokenizer.json files have no unk_id, and Transformers takes the family's token."""
    load_tokenizer(folder(tmp_path, PIECES), XLM_ROBERTA)._tokenizer.save(str(tmp_path / "tokenizer.json"))
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    assert data["model"].pop("unk_id") == 3
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    assert load_tokenizer(tmp_path, XLM_ROBERTA).encode("e我").tokens == ["<s>", "▁", "e", "我", "</s>"]
    assert load_tokenizer(tmp_path, XLM_ROBERTA).encode("我").ids[-2] == 3
    assert "unk_id: missing" in refused(tmp_path, tiny.config("bert", vocab_size=300))


def test_the_space_before_a_text_follows_the_settings(tmp_path):
    load_tokenizer(folder(tmp_path, MERGES), ROBERTA)._tokenizer.save(str(tmp_path / "tokenizer.json"))
    for settings, tokens in (
        ({}, ["the"]),
        ({"add_prefix_space": True}, ["Ġthe"]),
        ({"add_prefix_space": True, "tokenizer_class": "RobertaTokenizerFast"}, ["Ġthe"]),
        ({"add_prefix_space": True, "tokenizer_class": "PreTrainedTokenizerFast"}, ["the"]),
    ):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        assert load_tokenizer(tmp_path, ROBERTA).encode("the").tokens[1:-1] == tokens, settings
    (tmp_path / "tokenizer_config.json").write_text('{"add_prefix_space": "yes"}')
    assert "add_prefix_space: expected true or false, got 'yes'" in refused(tmp_path, ROBERTA)
