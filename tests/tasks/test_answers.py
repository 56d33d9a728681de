"""question-answering and fill-mask: the options that the golden answers do not cover."""

import numpy as np
import pytest

from npformer.common.errors import NpformerError
from npformer.engine.functions import softmax
from npformer.tasks import Pair, pipeline
from tests.support import tiny

pytestmark = pytest.mark.numbers

QUESTION, CONTEXT = "Where do I live?", "My name is Anna and I live in Paris, not in Kyoto."


def asker(**options):
    return pipeline("question-answering", tiny.model("bert", "question-answering"), **options)


# --- question-answering ----------------------------------------------------------------------------------------------


def test_a_question_and_its_context_in_any_form():
    ask = asker()
    answer = ask(question=QUESTION, context=CONTEXT)
    assert set(answer) == {"score", "start", "end", "answer"}
    assert CONTEXT[answer["start"] : answer["end"]] == answer["answer"]
    assert answer == ask({"question": QUESTION, "context": CONTEXT}) == ask(Pair(QUESTION, CONTEXT))
    assert answer == ask(QUESTION, CONTEXT)
    assert ask([Pair(QUESTION, CONTEXT)]) == [answer]
    assert ask(question=[QUESTION, "who"], context=CONTEXT) == ask(question=[QUESTION, "who"], context=[CONTEXT] * 2)
    assert list(ask(Pair(QUESTION, CONTEXT) for _ in range(2))) == [answer, answer]


def test_an_answer_s_score_is_the_product_of_its_ends_probabilities():
    model = tiny.model("bert", "question-answering")
    encoding = model.tokenizer.encode(QUESTION, CONTEXT)
    output = model([encoding.ids], token_type_ids=[encoding.type_ids])
    admitted = np.array([i == 0 or each == 1 for i, each in enumerate(encoding.sequence_ids)])
    ends = [softmax(np.where(admitted, logits[0].astype(np.float64), -np.inf)) for logits in output.values()]
    scores = np.triu(np.outer(*ends)) * np.outer(admitted, admitted)
    scores[0] = scores[:, 0] = 0
    first, last = np.unravel_index(scores.argmax(), scores.shape)
    answer = pipeline("question-answering", model)(
        question=QUESTION, context=CONTEXT, max_answer_len=99, align_to_words=False, handle_impossible_answer=False
    )
    assert (answer["start"], answer["end"]) == (encoding.offsets[first][0], encoding.offsets[last][1])
    assert answer["score"] == pytest.approx(scores.max(), rel=1e-5)


def test_top_k_answers_are_a_list_best_first():
    answers = asker()(question=QUESTION, context=CONTEXT, top_k=4)
    assert len(answers) == 4
    assert [each["score"] for each in answers] == sorted((each["score"] for each in answers), reverse=True)
    assert len({each["answer"].lower() for each in answers}) == 4


def test_an_answer_is_not_longer_than_asked():
    for answer in asker()(question=QUESTION, context=CONTEXT, top_k=20, max_answer_len=1, align_to_words=False):
        assert answer["end"] - answer["start"] <= 5


def test_no_answer_competes_with_the_answers():
    answers = asker(top_k=100, handle_impossible_answer=True)(question=QUESTION, context=CONTEXT)
    assert {"start": 0, "end": 0, "answer": ""}.items() <= min(answers, key=lambda each: len(each["answer"])).items()


@pytest.mark.parametrize("context", ["", "  \n "])
def test_a_context_without_words_gives_an_empty_answer(context):
    assert asker()(question=QUESTION, context=context) == {"score": 0.0, "start": 0, "end": 0, "answer": ""}
    impossible = asker(handle_impossible_answer=True)(question=QUESTION, context=context)
    assert impossible == {"score": 1.0, "start": 0, "end": 0, "answer": ""}


def test_top_k_gives_at_most_the_existing_answers():
    answers = asker()(question=QUESTION, context="Anna", top_k=50)
    assert 1 <= len(answers) < 50
    assert all(each["answer"] for each in answers)


def test_a_long_context_is_read_to_its_end():
    filler = "the people of paris had ice cream . " * 20
    answer = asker(top_k=300, max_answer_len=2)(question=QUESTION, context=f"{filler}Kyoto")
    assert "Kyoto" in {each["answer"] for each in answer}
    assert not answer.truncated


def test_a_long_question_leaves_narrow_windows():
    """By default, windows share 32 of their 64 tokens, but the question leaves only 16 tokens for the context."""
    answer = asker()(question="paris " * 45, context="ice cream " * 40)
    assert answer["answer"]
    assert not answer.truncated


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"question": QUESTION}, "context: missing"),
        ({"context": CONTEXT}, "question: missing"),
        ({"question": [QUESTION], "context": [CONTEXT] * 2}, "expected one, or one for each of 1 questions, got 2"),
        ({"inputs": {"question": QUESTION}}, "context: expected a text, got None"),
        ({"inputs": {"question": QUESTION, "contxt": CONTEXT}}, "did you mean 'context'"),
        ({"inputs": "only a text"}, 'expected {"question": ..., "context": ...}, got str'),
        ({"inputs": [QUESTION, CONTEXT]}, "input 0: expected"),
        ({"question": QUESTION, "context": CONTEXT, "top_k": 0}, "top_k"),
        ({"question": QUESTION, "context": CONTEXT, "topk": 3}, "did you mean 'top_k'"),
        ({"question": QUESTION, "context": CONTEXT, "max_answer_len": 0}, "max_answer_len"),
        ({"question": QUESTION, "context": CONTEXT, "doc_stride": -1}, "doc_stride"),
        ({"question": QUESTION, "context": CONTEXT, "max_seq_len": 10}, "leave no room"),
        ({"question": QUESTION, "context": CONTEXT, "max_seq_len": 24, "doc_stride": 23}, "windows of"),
        ({"question": QUESTION, "context": CONTEXT, "handle_impossible_answer": "no"}, "handle_impossible_answer"),
    ],
)
def test_question_answering_refuses(arguments, message):
    with pytest.raises(NpformerError) as caught:
        asker()(**arguments)
    assert message in str(caught.value)


# --- fill-mask -------------------------------------------------------------------------------------------------------


def filler(family="bert", **fields):
    return pipeline("fill-mask", tiny.model(family, "masked-lm", **fields))


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_fill_mask_gives_the_words_of_the_whole_model(family):
    fill = filler(family)
    encoding = fill.model.tokenizer.encode("I love [MASK] cream")
    place = encoding.ids.index(fill.mask_id)
    logits = fill.model(encoding.ids).logits[0, place]
    words = fill("I love [MASK] cream", top_k=10)
    assert [each["token"] for each in words] == np.argsort(-logits, kind="stable")[:10].tolist()
    assert [each["score"] for each in words] == softmax(logits)[[each["token"] for each in words]].tolist()
    for each in words:
        assert set(each) == {"score", "token", "token_str", "sequence"}
        assert each["token_str"] == fill.model.tokenizer.id_to_token(each["token"])


def test_several_masks_give_a_list_each():
    one, two = filler()(["I [MASK] it", "[MASK] love [MASK]"], top_k=2)
    assert isinstance(one[0], dict)
    assert [len(each) for each in two] == [2, 2]
    assert "[MASK]" in two[0][0]["sequence"]
    assert "[MASK]" not in one[0]["sequence"]


def test_fill_mask_gives_at_most_the_whole_vocabulary():
    fill = filler()
    assert len(fill("[MASK]", top_k=10_000)) == fill.model.config.vocab_size
    assert len(fill("[MASK]", targets=["ice", "cream"])) == 2


def test_targets_keep_their_probability_among_all_words():
    fill = filler()
    everything = {each["token_str"]: each["score"] for each in fill("I love [MASK]", top_k=1000)}
    for each in fill("I love [MASK]", targets=["ice", "paris", "ice"]):
        assert each["score"] == everything[each["token_str"]]


def test_a_target_of_several_tokens_means_its_first_piece():
    fill = filler()
    with pytest.warns(
        UserWarning, match="'Kyoto' is not a token of the vocabulary; using its first token 'k'"
    ) as caught:
        first = fill("I love [MASK]", targets="Kyoto")
    assert caught[0].filename == __file__
    assert fill("I love [MASK]", targets="Kyoto") == first == fill("I love [MASK]", targets="k")
    with pytest.raises(NpformerError, match="targets: ' ' has no token"):
        fill("I love [MASK]", targets=" ")


def test_a_mask_in_any_window_is_filled():
    text = "the people of paris had ice cream " * 20 + "[MASK] " + "and it was good " * 20
    word = filler()(text, long="window", targets="love")[0]
    assert word["sequence"].startswith("the people of paris")
    assert word["sequence"].endswith("it was good")
    assert len(word["sequence"].split()) == 221


def test_a_text_without_a_mask_is_refused():
    fill = filler()
    with pytest.raises(NpformerError, match=r"^no \[MASK\] in the part of the text that the model read"):
        fill("ice cream")
    with pytest.raises(NpformerError, match="input 1: no "):
        fill(["[MASK]", "ice cream"])
    with pytest.raises(NpformerError, match=r"no \[MASK\] in the part of the text that the model read"):
        fill("ice cream " * 60 + "[MASK]")


def test_fill_mask_refuses_a_tokenizer_without_a_mask_token(tmp_path):
    folder = tiny.folder(tmp_path / "model", "bert", "masked-lm")
    (folder / "tokenizer_config.json").write_text('{"mask_token": "<mask>"}')
    with pytest.raises(NpformerError, match="no mask token <mask>"):
        pipeline("fill-mask", folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 0}, "top_k"),
        ({"targets": []}, "targets: expected at least one word"),
        ({"targets": 3}, "targets"),
        ({"targets": [3]}, "targets: expected a text, got int"),
        ({"target": "ice"}, "did you mean 'targets'"),
    ],
)
def test_fill_mask_refuses(options, message):
    with pytest.raises(NpformerError, match=message):
        filler()("[MASK]", **options)
