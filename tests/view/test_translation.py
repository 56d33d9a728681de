"""Views of a translation model for a text alone: the text is translated first, and each side shows its tokens."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from npformer import load, view
from npformer.common.errors import NpformerError
from npformer.engine.runtime.packing import Text
from npformer.generation import generate
from npformer.interpret.traces import trace
from npformer.text.inputs import Pair
from tests.support.extras import needs
from tests.support.seq2seq_models import random_model

FILES = Path(__file__).parents[1] / "golden" / "seq2seq" / "marian-files"
TEXT = "A dog runs through the snow."
KINDS = ("heads", "model", "neurons", "stages", "attribution")
needs_sentencepiece = needs("translate", "sentencepiece")


@pytest.fixture(scope="module")
def model() -> Any:
    return load(FILES)


@needs_sentencepiece
def test_the_target_is_the_models_own_translation(model: Any) -> None:
    expected = next(each for each in json.loads((FILES / "expected.json").read_text()) if each["text"] == TEXT)
    pieces = {i: piece for piece, i in model.tokenizer.vocabulary.items()}
    t = trace(model, TEXT)
    assert t.key_tokens == [pieces[i] for i in expected["ids"]]
    assert t.tokens[0] == pieces[model.config.decoder.start_id]  # the decoder's input, without the end token
    assert model.tokenizer.decode(t.ids.tolist()) == expected["target"]
    assert t.tokens == [pieces[i] for i in t.ids]


def test_characters_made_of_several_byte_tokens_are_whole_in_words() -> None:
    shown = view.attribution(load("en-de-multi30k"), "A man \U0001f600 in \u65e5\u672c.", methods=["leave-one-out"])
    assert shown.methods[0].words == ["A", "man", "\U0001f600", "in", "\u65e5\u672c."]
    assert "\ufffd" not in shown.html()


@needs_sentencepiece
def test_three_attentions_between_the_tokens_of_both_sides(model: Any) -> None:
    t = trace(model, TEXT)
    source, target = tuple(t.key_tokens), tuple(t.tokens)
    shown = view.heads(model, TEXT)
    assert [(s.title, s.queries.tokens, s.keys.tokens) for s in shown.stacks] == [
        ("Encoder self-attention", source, source),
        ("Decoder self-attention", target, target),
        ("Cross-attention", target, source),
    ]
    (hypothesis,) = generate(model, [Text(np.array(model.tokenizer.encode(TEXT)))], output_attentions=True)[0][:1]
    for stack, ours in zip(shown.stacks[2].layers, hypothesis.cross_attentions, strict=True):
        np.testing.assert_allclose(stack[:, : ours.shape[1]], ours[:, : stack.shape[1]], rtol=0, atol=1e-5)


@needs_sentencepiece
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_draws_a_translation(model: Any, kind: str) -> None:
    shown = getattr(view, kind)(model, TEXT)
    assert max(map(len, shown.text().splitlines())) <= 80
    assert shown.svg().startswith("<svg")
    if kind in ("heads", "model", "neurons"):
        assert "Cross-attention" in shown.text().splitlines()[0]
        assert shown.text().endswith("\n\nalso on the page: Encoder self-attention, Decoder self-attention")
    page = shown.html()
    if kind in ("heads", "model", "neurons"):
        assert all(title in page for title in ("Encoder self-attention", "Decoder self-attention", "Cross-attention"))


@needs_sentencepiece
def test_the_stage_view_shows_source_and_target(model: Any) -> None:
    t, shown = trace(model, TEXT), view.stages(model, TEXT)
    assert shown.sides.distinct == [shown.sides.keys, shown.sides.queries]
    assert shown.ids == {"queries": tuple(t.ids.tolist()), "keys": tuple(t.key_ids.tolist())}
    assert shown.texts[0] == "A dog runs through the snow."
    for title in (shown.title, view.heads(model, TEXT).title, view.neurons(model, TEXT).title):
        assert "A dog runs through the snow. / er" in title
        assert not re.search("<pad>|</s>", title)


@needs_sentencepiece
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (Pair("a", "b"), "a translation model generates the second text itself"),
        ("  ", "the text is empty"),
        ("dog " * 200, "expected at most 64 tokens, got 401"),
        (3, "expected a text"),
    ],
)
def test_impossible_translations_are_errors(model: Any, text: Any, message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        view.heads(model, text)


def test_token_ids_need_no_tokenizer() -> None:
    model = random_model(max_length=24)
    shown = view.heads(model, [3, 4, 5, 6])
    assert shown.stacks[0].queries.tokens == ("3", "4", "5", "6")
    assert shown.stacks[2].queries.tokens[0] == "499"
    with pytest.raises(NpformerError, match="without tokens"):
        view.heads(model, [])


def test_a_tokenizer_of_the_tokenizers_library_names_both_sides(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FILES, tmp_path / "model"))
    pieces = json.loads((folder / "vocab.json").read_text())
    tokenizer = Tokenizer(models.WordLevel(pieces, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.add_special_tokens(["</s>", "<unk>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    for name in ("source.spm", "target.spm"):
        (folder / name).unlink()
    encoder, _, cross = view.heads(load(folder), "snow").stacks
    assert encoder.queries.tokens == ("s", "n", "o", "w", "</s>")
    assert cross.queries.tokens[0] == "<pad>"


def test_a_recorded_trace_takes_the_tokens_of_both_sides() -> None:
    model = random_model()
    with trace() as t:
        model([3, 4, 5], decoder_input_ids=[499, 7])
    shown = view.heads(t, tokens=["<s>", "x"], key_tokens=list("abc"))
    assert shown.stacks[2].keys.tokens == ("a", "b", "c")
