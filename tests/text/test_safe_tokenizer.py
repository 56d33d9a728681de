"""A tokenizer is an untrusted file. If a file would make the library abort, panic, hang or fail, reading it is an error
that names the file. Any later failure of the library is an NpformerError."""

from __future__ import annotations

import base64
import itertools
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import npformer
from npformer.common.errors import NpformerError
from npformer.common.limits import Limits
from npformer.text import safe_tokenizer
from npformer.text.safe_tokenizer import SafeTokenizer, safely
from npformer.text.tokenizer import load_tokenizer
from tests.golden.make_tokenizer import write_folder
from tests.support import tiny

CONFIG = tiny.config(vocab_size=100)
WORDS = {piece: i for i, piece in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "##a", "b"])}
WORD_PIECE = {
    "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
    "vocab": WORDS,
}  # fmt: skip
BPE = {"type": "BPE", "unk_token": "[UNK]", "vocab": WORDS, "merges": []}
A, B = ({"Sequence": {"id": each, "type_id": 0}} for each in "AB")


def several(kind: str, parts: list[Any]) -> dict[str, Any]:
    return {"type": "Sequence", kind: parts}


def replaced(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def template(**fields: Any) -> dict[str, Any]:
    return {"type": "TemplateProcessing", "single": [A], "pair": [A, B], "special_tokens": {}, **fields}


def added(content: str, number: int = 7) -> list[dict[str, Any]]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False)
    return [{"id": number, "content": content, "normalized": True, **flags}]


def write(folder: Path, **fields: Any) -> Path:
    names = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "truncation", "padding")
    data = {"version": "1.0", "added_tokens": [], **dict.fromkeys(names), "model": WORD_PIECE, **fields}
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    return folder


BOMB = several("normalizers", [replaced("a", "a" * 1000)] * 4)  # one letter makes the library abort the process
BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}
SPACES = [{"type": "Metaspace", "replacement": each, "prepend_scheme": "always", "split": True} for each in "xy" * 20]
CLS_PIECE = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
CLS = {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}}

#: Name of a harmful change -> the changed fields, and words of the error. The first nine changes make the library end
#: the process.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a normalizer that doubles": ({"normalizer": BOMB}, "normalizer.*limit `growth`"),
    "a normalizer of bytes of bytes": ({"normalizer": several("normalizers", [BYTES] * 32)}, "limit `growth`"),
    "splits that double": ({"pre_tokenizer": several("pretokenizers", SPACES)}, "limit `growth`"),
    "splits of bytes of bytes": ({"pre_tokenizer": several("pretokenizers", [BYTES] * 32)}, "limit `growth`"),
    "a decoder that doubles": ({"decoder": {"type": "Sequence", "decoders": BOMB["normalizers"]}}, "decoder.*`growth`"),
    "an added token that a normalizer lengthens": (
        {"normalizer": replaced("a", "a" * 200), "added_tokens": [*added("a" * 900), *added("ab" * 450)] * 3},
        "added_tokens.*limit `characters`",
    ),
    "a template of many texts": ({"post_processor": template(single=[A] * 210_000)}, "limit `tokenizer`"),
    "a map of 4 GB": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"\xff" * 4).decode()}},
        "invalid size of the trie, 4294967295 of 4 bytes",
    ),
    "a map without an end": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAAAAAAAAA"}}, "invalid size of the trie, 0 of",
    ),
    "a sequence in a sequence": (
        {"normalizer": several("normalizers", [several("normalizers", BOMB["normalizers"])])}, "limit `growth`"
    ),
    "a pattern that matches between letters": (
        {"normalizer": several("normalizers", [replaced("(?=a)", "b", "Regex")] * 9)}, "limit `growth`"
    ),
    "an empty pattern": ({"normalizer": several("normalizers", [replaced("", "b")] * 9)}, "limit `growth`"),
    "a long insertion": ({"normalizer": {"type": "Prepend", "prepend": "x" * 2000}}, "limit `piece`"),
    "many parts": ({"normalizer": several("normalizers", [{"type": "NFC"}] * 101)}, "limit `parts`"),
    "a part of no type": ({"normalizer": {"pattern": {"String": "a"}, "content": "b"}}, "normalizer: None is not known"),
    "a part of an unknown type": ({"pre_tokenizer": {"type": "BertPretokenizer"}}, "mean 'BertPreTokenizer'"),
    "an expression that backtracks": ({"normalizer": replaced("(a+)+$", "b", "Regex")}, "tokenizer failed.*retry"),
    "a split that backtracks": (
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a|a)*$"}, "behavior": "Isolated", "invert": False}},
        "tokenizer failed.*retry",
    ),
    "an expression that takes the square": (
        {"normalizer": replaced("a*a*$", "b", "Regex")}, "take too long on"
    ),
    "no expression": ({"normalizer": replaced("(a", "b", "Regex")}, "not a readable tokenizer"),
    "a long word": ({"model": WORD_PIECE | {"max_input_chars_per_word": 10**9}}, "limit `piece`"),
    "a word of no length": ({"model": WORD_PIECE | {"max_input_chars_per_word": -1}}, "at least 0, got -1"),
    "no entry for the unknown": ({"model": WORD_PIECE | {"unk_token": "zz"}}, "unknown token 'zz'"),
    "BPE without an entry": ({"model": BPE | {"unk_token": "zz"}}, "unknown token 'zz'"),
    "a merge without an entry": ({"model": BPE | {"merges": ["a a"]}}, "not a readable tokenizer"),
    "a merge of pieces shorter than their prefix": (
        {"model": BPE | {"continuing_subword_prefix": "####", "merges": ["a b"]}}, "not a readable tokenizer"
    ),
    "words without an entry": (
        {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "q"}}, "unknown token 'q'"
    ),
    "Unigram without an entry": (
        {"model": {"type": "Unigram", "unk_id": None, "vocab": [["a", 0.0]], "byte_fallback": False}}, "unk_id: missing"
    ),
    "a long piece": ({"model": {"type": "Unigram", "unk_id": 0, "vocab": [["a" * 2000, 0.0]]}}, "limit `piece`"),
    "a piece of quotes": ({"model": BPE | {"vocab": ['"' * 1_000_000]}}, "not a readable tokenizer"),
    "an id beyond the table": ({"model": WORD_PIECE | {"vocab": {**WORDS, "z": 108}}}, "ids below 108"),
    "an id of any length": ({"model": WORD_PIECE | {"vocab": {**WORDS, "z": 10**4000}}}, "ids below 108"),
    "an added id beyond the table": ({"added_tokens": added("x", 2**32 - 1)}, "from 0 to 2147483647, got 4294967295"),
    "[CLS] beyond the table": (
        {"post_processor": template(special_tokens={"[CLS]": {**CLS["[CLS]"], "ids": [100]}})}, "from 0 to 99, got 100"
    ),
    "more ids than tokens": (
        {"post_processor": template(special_tokens={"[CLS]": {**CLS["[CLS]"], "ids": [2, 2]}})}, "as many ids as tokens"
    ),
    "a template without the text": ({"post_processor": template(single=[])}, "single: expected .A exactly once"),
    "a template with a text twice": (
        {"post_processor": template(pair=[A, B, B])},
        "pair: expected .A and .B exactly once",
    ),
    "a template with an unknown token": (
        {"post_processor": template(single=[CLS_PIECE, A])}, r"single: the token '\[CLS\]' is not in special_tokens"
    ),
    "a pair's template with an unknown token": (
        {"post_processor": several("processors", [BYTES, template(pair=[A, B, CLS_PIECE])])}, "pair: the token"
    ),
    "a template in a template": (
        {"post_processor": several("processors", [template(), template()])}, "got a second one"
    ),
    "ends beyond the table": (
        {"post_processor": {"type": "BertProcessing", "sep": ["x", 2**32 - 1], "cls": ["y", 9]}}, "got 4294967295"
    ),
    "a decoder that strips more than there is": (
        {"decoder": {"type": "Strip", "content": "a", "start": 10**9, "stop": 0}}, "from 0 to 1000, got 1000000000"
    ),
    "another kind of file": ({"model": None}, "not a readable tokenizer"),
    "a model with nothing": ({"model": {}}, "not a readable tokenizer"),
}  # fmt: skip

#: Files that are refused after a panic of the library, because no check of the file finds the fault.
PANICS = (
    "an expression that backtracks", "a split that backtracks", "a merge of pieces shorter than their prefix",
)  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_harmful_file_is_refused(case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fields, said = REFUSED[case]
    with pytest.raises(NpformerError, match=f"(?s)tokenizer.json.*{said}") as caught:
        load_tokenizer(write(tmp_path, **fields), CONFIG)
    assert len(str(caught.value)) < 700
    if case not in PANICS:
        assert capfd.readouterr().err == ""  # in a case of PANICS, Rust prints the panic although Python catches it


def test_a_duplicate_key_is_refused(tmp_path: Path) -> None:
    """If a key occurs twice, some readers use its first value and others its last, so checking one is not enough."""
    text = (write(tmp_path) / "tokenizer.json").read_text()
    for before in ('"decoder"', '"max_input_chars_per_word"'):
        twice = text.replace(before, f"{before}: 100, {before.replace('d', chr(92) + 'u0064', 1)}", 1)
        (tmp_path / "tokenizer.json").write_text(twice)
        with pytest.raises(NpformerError, match="a duplicate key"):
            load_tokenizer(tmp_path, CONFIG)


def test_a_user_who_trusts_a_file_can_raise_a_limit(tmp_path: Path) -> None:
    write(tmp_path, normalizer=replaced("b", "a" * 300))
    with pytest.raises(NpformerError, match=r"Limits\(growth="):
        load_tokenizer(tmp_path, CONFIG)
    assert load_tokenizer(tmp_path, CONFIG, Limits(growth=300)).encode("b").tokens == ["[CLS]", "[UNK]", "[SEP]"]


def test_files_as_people_publish_them_are_read(tmp_path: Path) -> None:
    """The files are like those of BERT, GPT-2, Llama 3, XLM-R (without its map), ALBERT and CLIP."""
    llama = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    )
    isolated = {"behavior": "Isolated", "invert": False}
    forms: list[dict[str, Any]] = [
        {"pre_tokenizer": several("pretokenizers", [{"type": "Split", "pattern": {"Regex": llama}, **isolated}, BYTES])},
        {"normalizer": several("normalizers", [{"type": "Prepend", "prepend": "▁"}, replaced(" ", "▁")])},
        {"normalizer": several("normalizers", [replaced("``", '"'), {"type": "NFKD"}, replaced(" {2,}", " ", "Regex")])},
        {"normalizer": several("normalizers", [{"type": "NFC"}, replaced(r"\s+", " ", "Regex"), {"type": "Lowercase"}])},
        {"pre_tokenizer": several("pretokenizers", [{"type": "WhitespaceSplit"}, SPACES[0]])},
        {"post_processor": several("processors", [BYTES, template(single=[CLS_PIECE, A], special_tokens=CLS)])},
        {"model": {each: value for each, value in WORD_PIECE.items() if each != "type"}},  # older files have no type
        {"truncation": {"max_length": 2, "strategy": "LongestFirst", "stride": 5, "direction": "Right"}},
        {"padding": {"strategy": {"Fixed": 10**12}, "direction": "Right", "pad_to_multiple_of": 0, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}},
    ]  # fmt: skip
    for fields in forms:
        assert load_tokenizer(write(tmp_path, **fields), CONFIG).encode("a b").ids


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"vocab.txt": "[PAD]\n[CLS]\n[SEP]\na"}, "unknown token '\\[UNK\\]' is not in the vocabulary"),
        ({"vocab.txt": "a" * 3000}, "limit `piece`"),
        ({"vocab.txt": ""}, "unknown token"),
        ({"added_tokens.json": '{"0": Infinity}'}, "added_tokens.json"),
        ({"added_tokens.json": '{"0": 1e400}'}, "added_tokens.json"),
        ({"added_tokens.json": '{"a": 1' + "0" * 5000 + "}"}, "added_tokens.json"),
        ({"added_tokens.json": '{"a": [[]]}'}, "added_tokens.json"),
        ({"tokenizer_config.json": '{"added_tokens_decoder": {"7": {"content": "' + "x" * 2000 + '"}}}'}, "limit `piece`"),
        ({"tokenizer_config.json": '{"added_tokens_decoder": {"7": {"content": "x", "lstrip": 7}}}'}, "added tokens"),
        ({"tokenizer_config.json": '{"added_tokens_decoder": {"7": {"content": ["x"]}}}'}, "added tokens"),
        ({"tokenizer_config.json": '{"unk_token": "' + "x" * 9000 + '"}'}, "unknown token"),
        ({"tokenizer_config.json": '{"do_lower_case": ' + "1" * 4000 + "}"}, "do_lower_case"),
        ({"tokenizer_config.json": '{"do_lower_case": ' + "1" * 5000 + "}"}, "not JSON"),
        ({"special_tokens_map.json": '{"cls_token": {"content": 1e999}}'}, "special_tokens_map.json"),
        ({"special_tokens_map.json": "[" * 100_000}, "not JSON"),
    ],
)  # fmt: skip
def test_harmful_older_files_are_refused(files: dict[str, str], said: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", {})
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    with pytest.raises(NpformerError, match=f"(?s){said}") as caught:
        load_tokenizer(folder, tiny.config(vocab_size=len(tiny.VOCABULARY) + 8))
    assert len(str(caught.value)) < 700


def test_an_added_token_that_is_a_null_character(tmp_path: Path) -> None:
    """BERT's clean-up removes the null character, and the resulting empty token would match everywhere."""
    folder = write_folder(tmp_path / "model", {})
    (folder / "tokenizer_config.json").write_text('{"added_tokens_decoder": {"7": {"content": "\\u0000"}}}')
    config = tiny.config(vocab_size=len(tiny.VOCABULARY) + 8)
    try:
        ids = load_tokenizer(folder, config).encode("ice cream").ids
    except NpformerError:
        return
    assert len(ids) == 4


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_pipes_and_devices_are_not_waited_for(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", {})
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(NpformerError, match=f"{name}: not a regular file"):
        load_tokenizer(folder, tiny.config(vocab_size=len(tiny.VOCABULARY) + 8))


# --- failures of the library in use --------------------------------------------------------------------------------


class Panic(BaseException):
    """A substitute for pyo3_runtime.PanicException, which is not an Exception."""


class Failing:
    """A tokenizer whose methods raise a given error."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.model = None

    def encode(self, *_: Any, **__: Any) -> Any:
        raise self.error

    id_to_token = encode_batch = post_process = encode

    def get_added_tokens_decoder(self) -> dict[int, Any]:
        return {}


@pytest.mark.parametrize("method", ["encode", "decode", "encode_batch", "post_process"])
def test_every_failure_of_the_library_is_an_npformer_error(method: str) -> None:
    for error in (Panic("x" * 10**5), TypeError("y"), OSError("z")):
        tokenizer: Any = SafeTokenizer(Failing(error), "here")  # type: ignore[arg-type]
        with pytest.raises(NpformerError, match=r"^here: the tokenizer failed: [xyz]") as caught:
            getattr(tokenizer, method)("text")
        assert len(str(caught.value)) < 300
    for passing in (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        with pytest.raises(passing), safely("here"):
            raise passing


def test_a_real_panic_at_a_call(tmp_path: Path) -> None:
    """A regular expression may fail on a text that was not tested before. The next text is still read."""
    tokenizer = load_tokenizer(write(tmp_path, normalizer=replaced("(b+)+$", "a", "Regex")), CONFIG)
    with pytest.raises(NpformerError, match=r"tokenizer failed: .*retry-limit"):
        tokenizer.encode("b" * 40 + "?")
    assert tokenizer.encode("a").tokens == ["[CLS]", "a", "[SEP]"]


@pytest.mark.parametrize("given", [("a b " * 5000,), ("a", "b " * 9000), ("a " * 9000, None), ("a", "b")])
def test_a_long_text_is_encoded_without_holding_pythons_lock(given: tuple[str, ...], tmp_path: Path) -> None:
    """`encode` holds the GIL until it ends, which takes seconds for a million characters; `encode_batch` does not."""
    original = load_tokenizer(write(tmp_path), CONFIG)._tokenizer
    called: list[str] = []

    class Recording:
        def encode(self, *args: Any, **options: Any) -> Any:
            called.append("encode")
            return original.encode(*args, **options)

        def encode_batch(self, *args: Any, **options: Any) -> Any:
            called.append("encode_batch")
            return original.encode_batch(*args, **options)

    tokenizer: Any = SafeTokenizer(Recording(), "here")  # type: ignore[arg-type]
    for options in ({}, {"add_special_tokens": False}):
        found, expected = tokenizer.encode(*given, **options), original.encode(*given, **options)
        assert (found.ids, found.offsets, found.type_ids) == (expected.ids, expected.offsets, expected.type_ids)
    assert set(called) == {"encode" if len("".join(filter(None, given))) < 10_000 else "encode_batch"}


def test_a_text_that_the_tokenizer_makes_too_long_is_refused(tmp_path: Path) -> None:
    """A million letters, each repeated 200 times, would need 40 GB.

    Without that much memory, the library aborts the process.
    """
    parts = several("normalizers", [replaced("a", "b" * 20), replaced("b", "b" * 10)])
    tokenizer = load_tokenizer(write(tmp_path, normalizer=parts), CONFIG, Limits(characters=20_000))
    long, said = (
        "ca" * 10_000,
        "a text of 20000 characters becomes longer than 160000, 8 times the limit `characters`",
    )
    words = {"is_pretokenized": True}
    for method, given, options in (
        ("encode", [long], {}), ("encode", ["c", long], {}), ("encode", [["c", long]], words),
        ("encode_batch", [["c", long]], {}), ("encode_batch", [[("c", long)]], {}), ("encode_batch_fast", [["c", long]], {}),
    ):  # fmt: skip
        with pytest.raises(NpformerError, match=said):
            getattr(tokenizer, method)(*given, **options)
    few = load_tokenizer(tmp_path, CONFIG, Limits(characters=10))
    for harmless in (tokenizer.encode("c" * 20_000), few.encode("c" * 10)):
        assert harmless.tokens == ["[CLS]", "[UNK]", "[SEP]"]
    with pytest.raises(NpformerError, match="longer than 80, 8 times the limit"):
        few.encode("ca")


def test_growth_by_normal_forms_is_counted(tmp_path: Path) -> None:
    """NFKC turns U+FDFA into 18 characters. The limit for one text is also the limit for all texts together."""
    tokenizer = load_tokenizer(write(tmp_path, normalizer={"type": "NFKC"}), CONFIG, Limits(characters=1000))
    assert len(tokenizer.encode_batch(["\ufdfa" * 400, "a" * 400])) == 2
    for texts in (["\ufdfa" * 500], ["\ufdfa" * 445] * 2):
        with pytest.raises(NpformerError, match=r"longer than 8000, .* --allow characters=N"):
            tokenizer.encode_batch(texts)


def test_other_attributes_are_those_of_the_librarys_tokenizer(tmp_path: Path) -> None:
    tokenizer: Any = load_tokenizer(write(tmp_path), CONFIG)
    assert tokenizer.token_to_id("a") == 4
    assert tokenizer.padding is None
    tokenizer.decoder = None
    assert tokenizer.decoder is None
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.encode("a b").ids == tokenizer.encode("a b").ids
    with pytest.raises(AttributeError):
        tokenizer.nonsense  # noqa: B018


@pytest.mark.parametrize("family", ["bert", "bart"])
def test_calling_a_tokenizer_is_an_error_with_the_right_call(family: str, tmp_path: Path) -> None:
    head = "translation" if family == "bart" else "base"
    tokenizer: Any = npformer.load(tiny.folder(tmp_path / "model", family, head)).tokenizer
    with pytest.raises(NpformerError, match=r"^tokenizer: expected tokenizer\.encode\(text\), got a call"):
        tokenizer("a b", return_tensors="np")


def test_an_expression_is_refused_only_if_every_trial_of_a_text_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.cycle([1.0, 1.0, 0.0])
    monkeypatch.setattr(safe_tokenizer, "_seconds", lambda tokenizer, text: next(seconds))
    folder = write(tmp_path, normalizer=replaced("a", "b", "Regex"))
    load_tokenizer(folder, CONFIG)
    seconds = itertools.cycle([1.0])
    with pytest.raises(NpformerError, match="its regular expressions take too long on 8 characters"):
        load_tokenizer(folder, CONFIG)


@pytest.mark.slow
def test_the_process_survives_each_file(tmp_path: Path) -> None:
    """A process with 2 GB reads all bad files one after another, and a good one at the end."""
    for number, (fields, _) in enumerate([*REFUSED.values(), ({}, "")]):
        (tmp_path / str(number)).mkdir()
        write(tmp_path / str(number), **fields)
    root = Path(__file__).parents[2]
    code = (
        f"import resource, sys; sys.path[:0] = [{str(root)!r}]\n"
        "from pathlib import Path\n"
        "from tests.support import tiny\n"
        "from npformer.common.errors import NpformerError\n"
        "from npformer.text.tokenizer import load_tokenizer\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2 * 2**30, 2 * 2**30))\n"
        f"for number in range({len(REFUSED) + 1}):\n"
        "    try:\n"
        f"        tokenizer = load_tokenizer(Path({str(tmp_path)!r}, str(number)), tiny.config(vocab_size=100))\n"
        "    except NpformerError:\n"
        "        continue\n"
        "    print(number, tokenizer.encode('a b').ids)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "RUST_BACKTRACE": "0"},
    )
    assert (done.returncode, done.stdout) == (0, f"{len(REFUSED)} [2, 1, 3]\n"), done.stderr[-2000:]
