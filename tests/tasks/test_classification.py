"""text-, zero-shot- and token-classification: the options that the golden answers do not cover."""

from itertools import pairwise

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from npformer.common.errors import NpformerError
from npformer.engine.output_heads.formulas import probabilities
from npformer.tasks import Pair, pipeline
from tests.support import tiny

pytestmark = pytest.mark.numbers

THREE = ("NEGATIVE", "NEUTRAL", "POSITIVE")
NLI = ("contradiction", "neutral", "entailment")


def classifier(**fields):
    return pipeline("text-classification", tiny.model("bert", "sequence-classification", **fields))


# --- text-classification ---------------------------------------------------------------------------------------------


def test_text_classification_gives_one_label_or_a_list_of_them():
    classify = classifier(labels=THREE)
    best, ranked = classify("ice cream"), classify("ice cream", top_k=None)
    assert [each["score"] for each in ranked] == sorted((each["score"] for each in ranked), reverse=True)
    assert {each["label"] for each in ranked} == set(THREE)
    assert sum(each["score"] for each in ranked) == pytest.approx(1)
    assert best == ranked[0]
    assert classify("ice cream", top_k=1) == ranked[:1]
    assert classify("ice cream", top_k=9) == ranked
    assert classify(["ice cream"], top_k=2) == [ranked[:2]]


def test_the_first_of_one_answer_is_itself():
    answer = classifier()("ice cream")
    assert answer[0]["label"] == answer["label"]
    with pytest.raises(KeyError):
        answer[1]
    assert answer.get(0) is None
    assert set(answer) == {"label", "score"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"labels": THREE}, "softmax"),
        ({"labels": ("SCORE",)}, "sigmoid"),
        ({"labels": THREE, "problem_type": "multi_label_classification"}, "sigmoid"),
        ({"labels": THREE, "problem_type": "single_label_classification"}, "softmax"),
        ({"labels": ("SCORE",), "problem_type": "regression"}, "none"),
    ],
)
def test_the_model_chooses_how_logits_become_scores(fields, expected):
    classify = classifier(**fields)
    logits = classify.model(classify.model.tokenizer.encode("ice cream").ids).logits[0].astype(np.float64)
    scores = {"softmax": np.exp(logits) / np.exp(logits).sum(), "sigmoid": 1 / (1 + np.exp(-logits)), "none": logits}
    for function in (None, *scores):
        answers = {
            each["label"]: each["score"] for each in classify("ice cream", top_k=None, function_to_apply=function)
        }
        wanted = dict(zip(fields["labels"], scores[function or expected], strict=True))
        assert answers == pytest.approx(wanted, rel=1e-5)  # compares float32 with float64


def test_sigmoid_of_large_logits_gives_no_warning_and_no_nan():
    scores = probabilities(np.array([[-1e30, -200, 0, 200, 1e30]], np.float32), "sigmoid")
    assert scores.dtype == np.float32
    assert scores[0, [0, 2, 4]].tolist() == [0, 0.5, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 0}, "top_k: expected a whole number of at least 1, got 0"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_k": True}, "top_k"),
        ({"function_to_apply": "softmx"}, "did you mean 'softmax'"),
        ({"return_all_scores": True}, "return_all_scores: True is not supported; top_k=None gives"),
    ],
)
def test_text_classification_refuses(options, message):
    with pytest.raises(NpformerError, match=message):
        classifier()("ice cream", **options)


# --- zero-shot-classification ----------------------------------------------------------------------------------------


def zero_shot(labels=NLI, **options):
    return pipeline("zero-shot-classification", tiny.model("bert", "sequence-classification", labels=labels), **options)


def test_candidate_labels_in_any_form():
    ask = zero_shot()
    answer = ask("ice cream", ["politics", "sport"])
    assert set(answer) == {"sequence", "labels", "scores"}
    assert answer["sequence"] == "ice cream"
    assert sum(answer["scores"]) == pytest.approx(1)
    assert (
        answer
        == ask("ice cream", candidate_labels=" politics , sport,")
        == ask(["ice cream"], ("politics", "sport"))[0]
    )
    assert answer == zero_shot(candidate_labels=["politics", "sport"])("ice cream")


def test_a_candidate_label_s_score_is_the_pair_s_entailment():
    model = tiny.model("bert", "sequence-classification", labels=NLI)
    answer = pipeline("zero-shot-classification", model)("ice cream", "politics", hypothesis_template="{} it is")
    logits = pipeline("text-classification", model, top_k=None, function_to_apply="none")(
        Pair("ice cream", "politics it is")
    )
    by_label = {each["label"]: each["score"] for each in logits}
    odds = np.exp(by_label["entailment"] - by_label["contradiction"])
    assert answer["scores"] == [pytest.approx(odds / (1 + odds), rel=1e-5)]


def test_without_an_entailment_label_the_last_one_is_taken():
    with pytest.warns(UserWarning, match="expected a label that begins with 'entail'"):
        ask = zero_shot(("no", "maybe", "yes"))
    assert (ask.entailment, ask.contradiction) == (2, 0)
    assert (zero_shot(("Entailment", "x")).entailment, zero_shot(("Entailment", "x")).contradiction) == (0, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidate_labels": []}, "candidate_labels: expected at least one label"),
        ({"candidate_labels": ","}, "candidate_labels: expected at least one label"),
        ({}, "candidate_labels: expected at least one label"),
        ({"candidate_labels": 3}, "candidate_labels: expected a list"),
        ({"candidate_labels": [3]}, "candidate_labels: expected a text, got int"),
        ({"candidate_labels": "a", "hypothesis_template": "none"}, r"expected a \{\} for the label in 'none'"),
        ({"candidate_labels": "a", "multi_label": 1}, "multi_label: expected true or false"),
        ({"candidate_label": "a"}, "did you mean 'candidate_labels'"),
    ],
)
def test_zero_shot_refuses(options, message):
    with pytest.raises(NpformerError, match=message):
        zero_shot()("ice cream", **options)


def test_zero_shot_needs_two_labels_of_the_model():
    with pytest.raises(NpformerError, match="labels for entailment and contradiction"):
        zero_shot(("entailment",))


def test_sequences_is_transformers_name_of_the_inputs():
    assert zero_shot()(sequences="ice", candidate_labels="a, b") == zero_shot()("ice", ["a", "b"])
    with pytest.raises(NpformerError, match="expected a text, got None"):
        zero_shot()(candidate_labels="a, b")


def test_a_hypothesis_template_is_no_format_string():
    assert zero_shot()("ice", "a{0.__class__}b", hypothesis_template="{} {0!r} %s")["labels"] == ["a{0.__class__}b"]


# --- token-classification --------------------------------------------------------------------------------------------

TEXT = "Anna loved the Naïve 😀 people of 京都 (Paris)."


def tagger(**fields):
    model = tiny.model("bert", "token-classification", seed=4, **fields)  # with this seed, many labels occur
    return pipeline("token-classification", model, ignore_labels=[])


def test_an_entity_s_characters_are_the_text_s():
    for token in tagger()(TEXT):
        assert 0 <= token["start"] < token["end"] <= len(TEXT)
        piece = token["word"].removeprefix("##")
        there = TEXT[token["start"] : token["end"]]
        assert piece == there or piece == there.lower() or piece == there.lower().replace("ï", "i")


@pytest.mark.parametrize("strategy", ["simple", "first", "average", "max"])
def test_entities_cover_the_text_in_order(strategy):
    entities = tagger()(TEXT, aggregation_strategy=strategy)
    assert all(before["end"] <= after["start"] for before, after in pairwise(entities))
    covered = "".join(TEXT[each["start"] : each["end"]].replace(" ", "") for each in entities)
    assert covered == TEXT.replace(" ", "")
    assert all(set(each) == {"entity_group", "score", "word", "start", "end"} for each in entities)


@pytest.mark.parametrize("strategy", ["first", "average", "max"])
def test_entities_by_a_strategy_for_words_are_whole_words(strategy):
    ends = {each[edge] for each in tagger()(TEXT, aggregation_strategy=strategy) for edge in ("start", "end")}
    inside = {TEXT.index("loved") + 1, TEXT.index("loved") + 4, TEXT.index("Anna") + 2}
    assert not ends & inside


def test_ignored_labels_are_left_out():
    everything = tagger()(TEXT)
    labels = {each["entity"] for each in everything}
    assert len(labels) > 1
    for label in labels:
        assert tagger()(TEXT, ignore_labels=[label]) == [each for each in everything if each["entity"] != label]


def test_entities_in_windows_match_the_text():
    tag = tagger(max_length=16)
    tokens = tag(TEXT, long="window", stride=4)
    assert [each["index"] for each in tokens] == list(range(1, len(tokens) + 1))
    whole = tagger()(TEXT)
    assert [(each["word"], each["start"], each["end"]) for each in tokens] == [
        (each["word"], each["start"], each["end"]) for each in whole
    ]


UNIGRAM_TEXT = "ice aﬁb <mask> ice"


def unigram_tagger(**options):
    """Returns a tagger with a tokenizer like XLM-RoBERTa's: continued words are unmarked; a mask includes its space."""
    pieces = [("<unk>", 0.0), ("▁", -2.0), ("▁ice", -1.0), ("a", -2.0), ("b", -2.0)]
    made = Tokenizer(models.Unigram(pieces, 0, False))
    made.normalizer, made.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.add_tokens([AddedToken("<mask>", lstrip=True)])
    model = tiny.model("xlm-roberta", "token-classification", seed=4)
    model.tokenizer = made
    return pipeline("token-classification", model, ignore_labels=[], **options)


def test_tokens_of_a_unigram_tokenizer_are_the_vocabulary_s_and_an_unknown_one_is_the_text_s():
    words = [each["word"] for each in unigram_tagger()(UNIGRAM_TEXT)]
    assert words == ["▁ice", "▁", "a", "ﬁ", "b", "<mask>", "▁ice"]


@pytest.mark.parametrize("strategy", ["first", "average", "max"])
def test_an_unknown_token_of_a_unigram_tokenizer_begins_a_word_as_in_transformers(strategy):
    words = [each["word"] for each in unigram_tagger(aggregation_strategy=strategy)(UNIGRAM_TEXT)]
    assert words == ["ice", "", "a", "ﬁb", "<mask>", "ice"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aggregation_strategy": "averge"}, "did you mean 'average'"),
        ({"ignore_labels": "O"}, "ignore_labels: expected a list of texts"),
        ({"ignore_labels": [3]}, "ignore_labels"),
        ({"agregation_strategy": "max"}, "did you mean 'aggregation_strategy'"),
    ],
)
def test_token_classification_refuses(options, message):
    with pytest.raises(NpformerError, match=message):
        tagger()(TEXT, **options)
