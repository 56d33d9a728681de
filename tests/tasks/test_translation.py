"""Translation: Marian's tokenizers as in Transformers, the task, its command, and missing files."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer.cli.main import main
from npformer.common.errors import NpformerError
from npformer.common.limits import Limits
from npformer.model import Seq2Seq
from npformer.tasks.task import InputError
from npformer.tasks.text_to_text import Translation
from tests.fuzz.protobuf_form import BYTES, build
from tests.support.extras import needs
from tests.support.seq2seq_models import MARIAN_FILES as FILES
from tests.support.seq2seq_models import folder_of_letters

pytestmark = pytest.mark.numbers

EXPECTED: list[dict[str, Any]] = json.loads((FILES / "expected.json").read_text())
needs_sentencepiece = needs("translate", "sentencepiece")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns a copy of the tiny Marian model."""
    return Path(shutil.copytree(FILES, tmp_path / "model"))


@pytest.fixture(scope="module")
def in_json(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the same model with a tokenizer.json, in which pieces are letters, and without SentencePiece models."""
    return folder_of_letters(tmp_path_factory.mktemp("letters") / "model")


@pytest.fixture(scope="module")
def of_letters(in_json: Path) -> Seq2Seq:
    return npformer.load(in_json)


# --- as Transformers -------------------------------------------------------------------------------------------------


@needs_sentencepiece
def test_ids_and_translations_match_transformers() -> None:
    """Texts have language codes, unknown letters, spaces and special tokens. generation_config.json has settings."""
    task = npformer.pipeline("translation", FILES)
    assert isinstance(task, Translation)
    assert [task.model.tokenizer.encode(each["text"]) for each in EXPECTED] == [each["ids"] for each in EXPECTED]
    texts = [each["text"] for each in EXPECTED]
    assert [each["translation_text"] for each in task(texts)] == [each["target"] for each in EXPECTED]
    assert task(texts[0])["translation_text"] == EXPECTED[0]["target"]
    assert task(texts[0])[0]["translation_text"] == EXPECTED[0]["target"]  # transformers returns a list of one answer


@needs_sentencepiece
def test_marians_tokenizer_of_shared_pieces() -> None:
    tokenizer = npformer.load(FILES).tokenizer
    assert tokenizer.languages == (">>deu<<", ">>fra<<")
    assert tokenizer.target is tokenizer.source
    assert tokenizer.decode(tokenizer.encode("A dog runs.")) == "A dog runs."
    with pytest.raises(NpformerError, match="decode: expected ids of the target vocabulary, got 999"):
        tokenizer.decode([999])


@needs_sentencepiece
def test_marians_tokenizer_of_separate_vocabularies(folder: Path) -> None:
    """Each language has its own ids, so the target's pieces are decoded with the target's SentencePiece model."""
    pieces = json.loads((folder / "vocab.json").read_text())
    turned = {piece: len(pieces) - 1 - i for piece, i in pieces.items()}
    (folder / "target_vocab.json").write_text(json.dumps(turned))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "separate_vocabs": True}))
    tokenizer = npformer.load(folder).tokenizer
    assert tokenizer.encode("A dog.") == npformer.load(FILES).tokenizer.encode("A dog.")
    ids = [turned[piece] for piece in ("▁E", "in")] if "▁E" in turned else [turned["▁"], turned["E"], turned["in"]]
    assert tokenizer.decode([*ids, turned["</s>"]]).strip() == "Ein"
    assert tokenizer.languages == ()
    assert tokenizer.target is not tokenizer.source


# --- tokenizer.json --------------------------------------------------------------------------------------------------


def test_a_translator_needs_no_more_than_a_tokenizer_json(in_json: Path) -> None:
    task = npformer.pipeline("translation", in_json, num_beams=1, max_new_tokens=5)
    assert isinstance(task.model, Seq2Seq)
    assert task.model.tokenizer.encode("dog")[-1] == 0
    assert sorted(task.model.tokenizer.languages) == [">>deu<<", ">>fra<<"]
    assert isinstance(task("dog")["translation_text"], str)


def test_the_target_may_have_its_own_tokenizer(tmp_path: Path) -> None:
    folder = folder_of_letters(tmp_path / "model")
    shutil.copy(folder / "tokenizer.json", folder / "target_tokenizer.json")
    tokenizer = npformer.load(folder).tokenizer
    assert tokenizer.decode(tokenizer.encode("dog")) == "dog"


# --- the task --------------------------------------------------------------------------------------------------------


def test_translations_come_as_texts_do(of_letters: Seq2Seq) -> None:
    task = npformer.pipeline("translation", of_letters, max_new_tokens=6)
    one, two = task("dog"), task(["dog", {"text": "a man"}])
    assert two[0] == one
    assert list(task(iter(["dog"]))) == [one]
    assert (one.n_tokens, one.truncated) == (4, False)
    several = task("dog", num_return_sequences=3)
    assert [list(each) for each in several] == [["translation_text"]] * 3
    assert several[0] == one
    assert task("dog", to="deu") == task(">>deu<< dog") == task("dog", to=">>deu<<")


def test_a_translator_s_settings_hold_unless_a_call_overrides_them(of_letters: Seq2Seq) -> None:
    task = npformer.pipeline("translation", of_letters, max_new_tokens=6, num_beams=2)
    assert task("dog", max_new_tokens=3) == npformer.pipeline("translation", of_letters)(
        "dog", num_beams=2, max_new_tokens=3
    )
    assert task("dog") == npformer.pipeline("translation", of_letters)("dog", num_beams=2, max_new_tokens=6)


def test_a_translation_grows_token_by_token(of_letters: Seq2Seq) -> None:
    task = npformer.pipeline("translation", of_letters, max_new_tokens=8)
    grown = list(task.tokens("dog"))
    assert "".join(grown) == task("dog", num_beams=1)["translation_text"]
    assert len(grown) > 1
    beams = npformer.pipeline("translation", of_letters, max_new_tokens=8, num_beams=4)
    assert list(beams.tokens("dog")) == grown
    drawn = {"do_sample": True, "seed": 3}
    assert "".join(beams.tokens("dog", **drawn)) == beams("dog", num_beams=1, **drawn)["translation_text"]
    with pytest.raises(NpformerError, match="stream: expected one beam and one sequence"):
        list(task.tokens("dog", num_beams=4))
    with pytest.warns(UserWarning, match="input 0: 101 tokens, cut to 64"):
        assert list(task.tokens("d" * 100, long="truncate"))


def test_half_of_a_letter_waits_for_the_rest_of_it(of_letters: Seq2Seq, monkeypatch: pytest.MonkeyPatch) -> None:
    """A letter that takes two tokens is yielded as one piece. If it stays incomplete, it comes last, as in the translation."""
    task = npformer.pipeline("translation", of_letters, max_new_tokens=3)
    for texts, pieces in ((["a", "a\ufffd", "aß"], ["a", "ß"]), (["a", "ab", "ab\ufffd"], ["a", "b", "\ufffd"])):
        monkeypatch.setattr(task.tokenizer, "decode", lambda ids, texts=texts: texts[len(ids) - 1])
        assert list(task.tokens("dog")) == pieces


def test_too_long_a_source_is_refused_or_cut(of_letters: Seq2Seq) -> None:
    task = npformer.pipeline("translation", of_letters, max_new_tokens=3)
    with pytest.raises(
        NpformerError, match="expected at most 64 tokens, got 101; split the text, or use long='truncate'"
    ):
        task("d" * 100)
    with pytest.warns(UserWarning, match="input 0: 101 tokens, cut to 64"):
        answer = task("d" * 100, long="truncate")
    assert (answer.n_tokens, answer.truncated) == (101, True)
    first = "d" * 63  # 63 letters, because a truncated text keeps its end token
    assert answer == task(first)
    with pytest.raises(NpformerError, match="sources are not read in windows"):
        task("dog", long="window")


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "the text is empty"),
        (" \n", {}, "the text is empty"),
        (">>deu<< ", {}, "the text is empty"),
        (">>eng<< dog", {}, r"language: '>>eng<<' is not known.* Known: >>deu<<, >>fra<<"),
        ("dog", {"to": "eng"}, "language: '>>eng<<' is not known"),
        ("dog", {"force_words_ids": [[5]]}, "force_words_ids: a list is not supported: Transformers 5 moved"),
        ("dog", {"num_beam": 2}, "argument of translation: 'num_beam' is not known; did you mean 'num_beams'"),
        ("dog", {"device": 0}, "device: 0 is not supported; everything runs on the CPU"),
        ("dog", {"progress": 1}, "progress: expected true or false, got 1"),
        ("dog", {"num_beams": -1}, "num_beams: expected a whole number"),
        (3, {}, "expected a text, got int"),
    ],
)
def test_impossible_translations_are_refused(
    of_letters: Seq2Seq, text: Any, options: dict[str, Any], message: str
) -> None:
    task = npformer.pipeline("translation", of_letters, max_new_tokens=3)
    with pytest.raises(NpformerError, match=message):
        task(text, **options)


def test_one_bad_source_among_many_is_named(of_letters: Seq2Seq) -> None:
    task = npformer.pipeline("translation", of_letters, max_new_tokens=3)
    with pytest.raises(InputError, match="input 1: the text is empty"):
        task(["dog", "", "man"])


def test_translation_refuses_a_model_that_is_no_translator() -> None:
    classifier = npformer.load(FILES.parent / "classifier")
    with pytest.raises(
        NpformerError, match="translation: expected an encoder-decoder, got a sequence-classification model"
    ):
        npformer.pipeline("translation", classifier)
    with pytest.raises(NpformerError, match=r"no default model; pass model=, .*opus-mt-en-de"):
        npformer.pipeline("translation")


def test_a_translator_is_no_classifier() -> None:
    with pytest.raises(NpformerError, match="text-classification: expected a sequence-classification model"):
        npformer.pipeline("text-classification", FILES)


# --- the command -----------------------------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], str]:
    code = main(["translate", *arguments])
    out, err = capsys.readouterr()
    return code, out.splitlines(), err


def test_translate_writes_a_line_for_each_line(
    in_json: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = npformer.pipeline("translation", in_json, max_new_tokens=6)
    dog, man = (each["translation_text"] for each in task(["dog", "man"], num_beams=2))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"dog\n\nman\n")))
    code, lines, _ = run(capsys, "-m", str(in_json), "--beams", "2", "--max-tokens", "6")
    assert (code, lines) == (0, [dog, "", man])


def test_translate_writes_json_and_the_best_of_several(in_json: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, complaint = run(
        capsys, "-m", str(in_json), "--json", "--best", "2", "--max-tokens", "4", "--to", "fra", "dog", ""
    )
    first, second = map(json.loads, lines)
    assert (code, first["text"], first["n_tokens"], len(first["translations"])) == (0, "dog", 6, 2)
    assert second == {"text": "", "translation_text": ""}
    assert complaint == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--best", "3", "--beams", "1"], "--best: 3 sequences need as many beams, or --sample; --beams is 1"),
        (["--max-tokens", "9999"], "--max-tokens: expected a whole number from 1 to 64, got 9999"),
        (["--length-penalty", "99"], "--length-penalty: expected a number from -50 to 50, got 99.0"),
        (["--sample", "--beams", "2"], "--beams: expected 1 for sampling; use no --sample for beam search"),
    ],
)
def test_an_error_of_translate_names_the_option_that_was_given(
    arguments: list[str], message: str, in_json: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines, complaint = run(capsys, "-m", str(in_json), *arguments, "dog")
    assert (code, lines, complaint) == (1, [], f"npformer: {message}\n")


def test_translate_samples_by_a_seed(in_json: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outs = [
        run(capsys, "-m", str(in_json), "--sample", "--seed", seed, "--max-tokens", "9", "dog")[1] for seed in "112"
    ]
    assert outs[0] == outs[1] != outs[2]


def test_translate_complains_of_a_bad_line_and_translates_the_others(
    in_json: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines, complaint = run(capsys, "-m", str(in_json), "--max-tokens", "4", ">>eng<< dog", "dog")
    assert code == 1
    assert len(lines) == 2
    assert "argument 1: language: '>>eng<<' is not known" in complaint


# --- missing or broken files --------------------------------------------------------------------------------


def test_a_translator_s_missing_tokenizer_files_are_named(folder: Path) -> None:
    (folder / "target.spm").unlink()
    with pytest.raises(
        NpformerError,
        match=r"no tokenizer; looked for tokenizer\.json, and for source\.spm.*of which target\.spm is missing",
    ):
        npformer.pipeline("translation", folder)
    (folder / "vocab.json").unlink()
    with pytest.raises(NpformerError, match=r"of which target\.spm, vocab\.json are missing"):
        npformer.pipeline("translation", folder)


def test_without_sentencepiece_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(NpformerError, match=r"source\.spm: this file needs sentencepiece: pip install"):
        npformer.pipeline("translation", FILES)


@needs_sentencepiece
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("source.spm", b"no model", r"source\.spm: not a SentencePiece model"),
        ("source.spm", b"", r"source\.spm: the file is empty"),
        ("vocab.json", b"[1]", r"vocab\.json: expected a JSON object"),
        ("vocab.json", b'{"a": 900}', r"vocab\.json: 'a': expected an id below \d+, got 900"),
        ("vocab.json", b'{"</s>": 0, "<unk>": 1}', r"vocab\.json: the special token .<pad>. is missing"),
    ],
)
def test_a_translator_s_broken_tokenizer_files_are_named(folder: Path, name: str, content: bytes, message: str) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(NpformerError, match=message):
        npformer.pipeline("translation", folder)


@needs_sentencepiece
def test_a_text_that_sentencepiece_makes_too_long_is_refused(folder: Path) -> None:
    """The map replaces each "a" with 200 characters, and SentencePiece would need tens of bytes for each character."""
    trie = np.zeros(256, "<u4")  # a tree with the root, the letter, and the letter's value: the text at offset 0
    trie[0], trie[1 ^ ord("a")], trie[1 ^ ord("a") ^ 2] = 1 << 10, 2 << 10 | 1 << 8 | ord("a"), 1 << 31
    charsmap = trie.nbytes.to_bytes(4, "little") + trie.tobytes() + b"b" * 200 + b"\0"
    with open(folder / "source.spm", "ab") as file:
        file.write(build([(3, BYTES, build([(2, BYTES, charsmap)]))]))
    tokenizer = npformer.load(folder, limits=Limits(characters=1000)).tokenizer
    assert len(tokenizer.encode("a" * 30)) > len(tokenizer.encode("c" * 1000)) > 1
    for text in ("a" * 1000, ("a" * 35 + "</s>") * 25):
        with pytest.raises(NpformerError, match=r"source\.spm: a text of \d+ characters becomes longer than 8000"):
            tokenizer.encode(text)


def test_a_translator_s_broken_tokenizer_json_is_named(tmp_path: Path) -> None:
    folder = folder_of_letters(tmp_path / "model")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(NpformerError, match=r"tokenizer\.json: not a readable tokenizer"):
        npformer.pipeline("translation", folder)


def test_marians_decoder_without_its_encoder_is_refused(folder: Path) -> None:
    from safetensors.numpy import load_file, save_file

    tensors = {
        name: each for name, each in load_file(folder / "model.safetensors").items() if "encoder.layers" not in name
    }
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(
        NpformerError, match=r"missing: encoder\.layers\.0\.attention\.query\.weight \(model\.encoder\.layers\.0"
    ):
        npformer.load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MarianModel"]}, r"architectures: expected one of MarianMTModel, got 'MarianModel'"),
        ({"normalize_before": True}, "normalize_before: True is not supported; supported: False"),
        ({"encoder_layers": None}, "n_layers: expected a whole number"),
        ({"decoder_attention_heads": 5}, "n_heads: 5 does not divide d_model 24"),
        ({"decoder_start_token_id": 999}, "start_id: expected a whole number from 0 to"),
    ],
)
def test_a_marian_config_that_is_not_supported_is_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(NpformerError, match=message):
        npformer.load(folder)


def test_marian_s_files_survive_a_round_trip(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    own = npformer.checkpoint.convert(FILES, tmp_path / "own")
    back = npformer.checkpoint.convert(own, tmp_path / "back", to="torch")
    first, second = (load_file(each / "model.safetensors") for each in (FILES, back))
    assert first.keys() == second.keys()
    assert all((first[name] == second[name]).all() for name in first)
    assert (own / "source.spm").exists()
    ids = EXPECTED[0]["ids"]
    targets = [npformer.load(each).generate([ids])[0][0].ids.tolist() for each in (FILES, own, back)]
    assert targets[0] == targets[1] == targets[2]


def test_an_older_marian_file_has_every_tied_tensor_and_its_positions(folder: Path) -> None:
    """In earlier versions, pytorch_model.bin contained the shared table four times, and also the sinusoids."""
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    model = npformer.load(folder)
    tables = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
    tensors |= dict.fromkeys(tables, tensors["model.shared.weight"])
    positions = model.weights["encoder"]["embeddings"]["position"]["weight"]
    tensors |= {f"model.{side}.embed_positions.weight": positions for side in ("encoder", "decoder")}
    save_file(tensors, folder / "model.safetensors")
    again = npformer.load(folder)
    assert again.weights["head"]["output"]["weight"].base is not None  # the token table itself, transposed
    assert again.generate([[5, 6, 0]])[0][0].ids.tolist() == model.generate([[5, 6, 0]])[0][0].ids.tolist()
