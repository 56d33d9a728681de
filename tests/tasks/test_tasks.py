"""Features of all tasks: inputs and outputs, long texts, options, errors, and the same bits alone, in any batch, in any
order, and on any number of threads."""

import itertools
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npformer.common.errors import NpformerError
from npformer.engine.taps import listen
from npformer.model import Model
from npformer.tasks import Pair, pipeline
from npformer.tasks.task import TOKENS, InputError
from npformer.text.encoding import Encoder
from npformer.text.inputs import as_text_or_pair
from tests.support import tiny

pytestmark = pytest.mark.numbers

NLI = ("contradiction", "neutral", "entailment")
LONG = "the people of paris had ice cream and it was good " * 12

#: Each task with a tiny model and its required options.
TASKS = {
    "text-classification": (tiny.model("bert", "sequence-classification"), {}),
    "zero-shot-classification": (
        tiny.model("bert", "sequence-classification", labels=NLI),
        {"candidate_labels": ["politics", "sport"]},
    ),
    "token-classification": (tiny.model("distilbert", "token-classification"), {"aggregation_strategy": "average"}),
    "question-answering": (tiny.model("bert", "question-answering"), {}),
    "fill-mask": (tiny.model("bert", "masked-lm"), {"top_k": 3}),
    "feature-extraction": (tiny.model("distilbert", "base"), {}),
    "sentence-embedding": (tiny.model("bert", "base"), {}),
    "sparse-embedding": (tiny.model("bert", "masked-lm"), {}),
    "text-ranking": (tiny.model("bert", "sequence-classification", labels=("SCORE",)), {}),
}
PAIR_TASKS = ("question-answering", "text-ranking")
TEXT_TASKS = [name for name in TASKS if name not in PAIR_TASKS]

SOME = "I love ice cream the people of Paris Kyoto naïve 我爱 😀 don't , . [MASK]"
words = st.sampled_from(SOME.split())
texts = st.lists(words, max_size=12).map(lambda chosen: " ".join(["[MASK]", *chosen]))


@pytest.fixture(params=TASKS)
def name(request):
    return request.param


def make(name, threads=None, **options):
    model, defaults = TASKS[name]
    return pipeline(name, model, threads, **(defaults | options))


def as_input(name, text):
    return Pair("Who had it?", text) if name in PAIR_TASKS else text


def equal(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    return np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b


# --- inputs and outputs --------------------------------------------------------------------------------------


def test_one_gives_one_a_list_a_list_a_generator_a_generator(name):
    task = make(name)
    inputs = [as_input(name, text) for text in ("I [MASK] ice cream", "[MASK]")]
    together = task(inputs)
    assert len(together) == 2
    assert isinstance(together, list) or name == "sentence-embedding"
    for one, many in zip(inputs, together, strict=True):
        assert equal(task(one), many)
    generated = task(each for each in inputs)
    assert iter(generated) is generated
    assert all(equal(a, b) for a, b in zip(generated, together, strict=True))
    assert list(task(iter([]))) == []
    assert len(task([])) == 0
    assert equal(task(tuple(inputs))[1], together[1])


@settings(max_examples=20, deadline=None)
@given(chosen=st.lists(texts, min_size=1, max_size=5), shuffle=st.randoms(use_true_random=False), data=st.data())
def test_an_answer_has_the_same_bits_in_any_batch(chosen, shuffle, data):
    name = data.draw(st.sampled_from(sorted(TASKS)))
    inputs = [as_input(name, text) for text in chosen]
    alone = [make(name, threads=1)(each) for each in inputs]
    order = list(range(len(inputs)))
    shuffle.shuffle(order)
    for threads in (1, 2):
        task = make(name, threads)
        together = task([inputs[i] for i in order])
        assert all(equal(alone[i], each) for i, each in zip(order, together, strict=True))
        assert all(equal(a, b) for a, b in zip(alone, task(iter(inputs)), strict=True))


@settings(max_examples=40, deadline=None)
@given(text=st.text(max_size=80), data=st.data())
def test_any_text_is_answered(text, data):
    name = data.draw(st.sampled_from(sorted(TASKS)))
    text = f"[MASK] {text}"
    answer = make(name, threads=1, long="window")(as_input(name, text))
    assert answer.truncated is False
    for entity in answer if name == "token-classification" else []:
        assert 0 <= entity["start"] <= entity["end"] <= len(text)


def test_the_tap_changes_nothing_and_ends_in_probabilities(name):
    task = make(name)
    inputs = [as_input(name, text) for text in ("I [MASK] ice cream", "[MASK] it, [MASK]")]
    heard = []

    def hear(stage, array):
        heard.append(stage)
        return array

    quiet = task(inputs)
    with listen(hear):
        loud = task(inputs)
    assert all(equal(a, b) for a, b in zip(quiet, loud, strict=True))
    if name in ("text-classification", "zero-shot-classification", "token-classification", "fill-mask"):
        assert heard[-1] == "probabilities"


def test_inputs_by_index_like_a_torch_dataset_are_a_list():
    class Dataset:
        """A dataset with a length and an item for every index, even beyond the length."""

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> str:
            return ["I love ice cream", "not my music"][index % 2]

    task = pipeline("text-classification", tiny.model())
    assert task(Dataset()) == task(Dataset(), progress=True) == task([Dataset()[0], Dataset()[1]])


def test_memory_does_not_grow_with_a_generator_s_length():
    task = make("text-classification")
    taken = 0

    def endless():
        nonlocal taken
        for taken in itertools.count(1):  # noqa: B007
            yield "ice cream"

    answers = task(endless())
    first = list(itertools.islice(answers, 2500))
    assert taken <= 2500 + task.window
    assert all(each == first[0] for each in first)


@pytest.mark.slow
def test_the_tokens_in_memory_at_once_are_limited(monkeypatch):
    sizes = []
    run = Model.run
    monkeypatch.setattr(Model, "run", lambda self, texts: sizes.append(sum(map(len, texts))) or run(self, texts))
    make("sentence-embedding")(["the people of paris " * 15] * 900)
    assert len(sizes) > 1
    assert max(sizes) <= TOKENS


def test_every_result_reports_how_much_was_read(name):
    task = make(name)
    result = task(as_input(name, "I [MASK] ice cream"))
    assert result.n_tokens >= 6
    assert result.truncated is False
    if name not in (*PAIR_TASKS, "fill-mask"):
        assert task("").n_tokens >= 2
        task(" \t\n")


def test_a_list_of_embeddings_is_an_array():
    task = make("sentence-embedding")
    array = task(["ice", "ice cream", LONG], long="window")
    assert array.shape == (3, 32)
    assert array.dtype == np.float32
    assert array.n_tokens.tolist() == [3, 4, 134]
    assert array.truncated.tolist() == [False, False, False]
    assert task([]).shape == (0, 32)


def test_a_pair_is_never_guessed():
    task = make("text-classification")
    pair = task(Pair("ice", "cream"))
    assert pair == task({"text": "ice", "text_pair": "cream"}) == task([Pair("ice", "cream")])[0]
    assert pair.n_tokens == 5
    assert task({"text": "ice"}) == task({"text": "ice", "text_pair": None}) == task("ice")
    assert task(["ice", "cream"]) == [task("ice"), task("cream")]
    with pytest.raises(NpformerError, match=r"npformer\.Pair"):
        task([["ice", "cream"]])


# --- long texts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TEXT_TASKS)
def test_a_long_text_is_cut_with_one_warning(name):
    task, text = make(name), f"[MASK] {LONG}"
    with pytest.warns(
        UserWarning, match=r"input 1: \d+ tokens, cut to 64\. Later texts of this call give no warning"
    ) as caught:
        short, long, again = task(["[MASK] ice", text, text])
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert equal(long, again)
    if name != "sentence-embedding":
        assert (short.truncated, long.truncated) == (False, True)
        assert long.n_tokens > 64


@pytest.mark.parametrize("name", TEXT_TASKS)
def test_a_long_text_is_refused(name):
    task = make(name, long="error")
    with pytest.raises(NpformerError, match=r"^expected at most 64 tokens, got \d+; long='truncate'"):
        task(f"[MASK] {LONG}")
    with pytest.raises(NpformerError, match=r"^input 1: "):
        task(["[MASK]", f"[MASK] {LONG}"])


def test_a_long_text_is_read_in_windows(name):
    task, text = make(name), as_input(name, f"{LONG} the [MASK] of Kyoto")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = task(text, long="window")
        other = task(text, stride=30)
    assert whole.truncated is False
    assert whole.n_tokens > 100
    assert not equal(whole, other) or name in ("fill-mask", "question-answering")


@settings(max_examples=60, deadline=None)
@given(chosen=st.lists(words, min_size=1, max_size=40), limit=st.integers(4, 20), data=st.data())
def test_windows_cover_a_text_and_their_own_rows_are_each_token_once(chosen, limit, data):
    encoder = Encoder(tiny.model("bert", "base"))
    stride = data.draw(st.integers(0, limit - 3))
    text = " ".join(["[CLS]", *chosen])
    whole = encoder.tokenizer.encode(text)
    [encoded] = encoder.read([text], "window", limit=limit, stride=stride)
    assert all(len(piece) <= limit for piece in encoded.pieces)
    ids = [piece.ids[rows] for piece, rows in zip(encoded.pieces, encoded.rows(), strict=True)]
    assert list(itertools.chain(*ids)) == whole.ids
    for piece, start in zip(encoded.pieces, encoded.starts, strict=True):
        assert piece.ids[1:-1] == whole.ids[start + 1 : start + len(piece) - 1]


@pytest.mark.parametrize("stride", [62, 1000])
def test_windows_that_would_not_move_on_are_refused(stride):
    with pytest.raises(NpformerError, match="stride: expected 0 to 61 for windows of 62 tokens, got"):
        make("text-classification")(LONG, stride=stride)


def test_windows_of_a_pair_move_over_the_longer_text():
    task = make("text-classification")
    question = "who had ice cream"
    assert task(Pair(question, LONG), long="window").n_tokens == task(Pair(LONG, question), long="window").n_tokens
    with pytest.raises(NpformerError, match="leave no room"):
        task(Pair(LONG, LONG), long="window")


def test_a_question_longer_than_the_model_is_refused():
    with pytest.raises(NpformerError, match="leave no room for the other"):
        make("question-answering")(Pair(LONG, "ice cream"))


@pytest.mark.parametrize(("words", "doc_stride"), [(20, None), (28, None), (28, 30), (59, 1), (60, 0)])
def test_windows_advance_even_with_a_long_question(words, doc_stride, monkeypatch):
    """Windows advance by at least an eighth of their width."""
    ask, question, context = make("question-answering"), " ".join(["who"] * words), " ".join(["ice"] * 300)
    run, read = ask.model.run, []
    monkeypatch.setattr(ask.model, "run", lambda texts: read.extend(texts) or run(texts))
    assert ask(question=question, context=context, doc_stride=doc_stride)["answer"]
    width = 64 - 3 - words
    assert max(map(len, read)) == 64
    step = max(width - (32 if doc_stride is None else doc_stride), -(-width // 8))
    assert len(read) == 1 + -(-(300 - width) // step)


def test_the_windows_logits_are_averaged_by_their_tokens():
    model = tiny.model("bert", "sequence-classification")
    task = pipeline("text-classification", model, function_to_apply="none", top_k=None)
    whole = {each["label"]: each["score"] for each in task(LONG, long="window", stride=0)}
    pieces = [LONG.split()[i : i + 62] for i in range(0, len(LONG.split()), 62)]
    parts = [{each["label"]: each["score"] for each in task(" ".join(piece))} for piece in pieces]
    weights = [len(piece) + 2 for piece in pieces]
    for label in whole:
        mean = np.average([part[label] for part in parts], weights=weights)
        assert whole[label] == pytest.approx(mean, rel=1e-5)


def test_a_text_is_cut_to_the_tokenizer_s_own_limit(tmp_path):
    folder = tiny.folder(tmp_path / "model", max_length=64)
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 10, "do_lower_case": true}')
    with pytest.warns(UserWarning, match="cut to 10"):
        assert pipeline("text-classification", folder)("ice cream " * 6).truncated
    assert not pipeline("text-classification", folder)("ice cream " * 4).truncated


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [None, 3, 2.5, b"ice", ["ice"], object(), {"txt": "ice"}, {"text": 3}, "\ud83d"])
def test_inputs_other_than_texts_are_refused(name, bad):
    task = make(name)
    good = as_input(name, "[MASK]")
    with pytest.raises(NpformerError, match="input 1: "):
        task([good, bad])
    if not isinstance(bad, list):
        with pytest.raises(NpformerError) as caught:
            task(bad)
        assert "input" not in str(caught.value)


def test_a_quiet_stream_answers_bad_inputs_with_their_errors(name):
    task = make(name)
    good = as_input(name, "[MASK]")
    answers = list(task.answers(iter([3, good, None, good]), task.options, quiet=True))
    assert [each.index if isinstance(each, InputError) else None for each in answers] == [0, None, 2, None]
    assert equal(answers[1], task(good))


def test_half_of_a_surrogate_pair_is_named():
    with pytest.raises(NpformerError, match="character 2 is a lone surrogate"):
        as_text_or_pair("ok\udc80")


def test_options_are_checked_before_any_text_is_read(name):
    task = make(name)
    with pytest.raises(NpformerError, match=rf"argument of {name}: 'strid' is not known; did you mean 'stride'\?"):
        task(iter([]), strid=3)
    with pytest.raises(
        NpformerError, match=r"long: expected one of truncate, window, error, got 'truncated'; did you mean 'truncate'"
    ):
        task(iter([]), long="truncated")
    with pytest.raises(NpformerError, match="stride: expected a whole number of at least 0"):
        task(iter([]), stride=-1)
    with pytest.raises(
        NpformerError, match=r"max_length: expected a whole number of at least 1|max_length: give max_seq"
    ):
        make(name, max_length=0)
    with pytest.raises(NpformerError, match="stride"):
        make(name, stride="1")


def test_unknown_tasks_have_their_nearest_name():
    with pytest.raises(NpformerError, match=r"'text-clasification' is not known; did you mean 'text-classification'\?"):
        pipeline("text-clasification")
    with pytest.raises(
        NpformerError, match=r"Known: text-classification, .*sentiment-analysis, ner, rerank, translation_XX_to_YY"
    ):
        pipeline("speech-recognition")


@pytest.mark.parametrize("name", ["distilbert-sst2", "openai-community/gpt2"])
def test_a_model_given_as_the_task_is_refused_with_the_line_to_write(name):
    with pytest.raises(NpformerError, match=rf"'{name}' is not a task; .* use pipeline\(model='{name}'\)"):
        pipeline(name)
    with pytest.raises(NpformerError, match=r"task: expected a task's name, got a Model; pass a model as model="):
        pipeline(tiny.model())


@pytest.mark.parametrize("name", [name for name in TASKS if name != "text-classification"])
def test_a_task_without_a_model_asks_for_one(name):
    with pytest.raises(NpformerError, match=f"{name}: no default model; pass model=, the folder"):
        pipeline(name)


def test_a_model_of_another_head_is_refused():
    model = tiny.model("bert", "masked-lm")
    for name in ("text-classification", "zero-shot-classification", "token-classification", *PAIR_TASKS):
        with pytest.raises(NpformerError, match=rf"{name}: expected a \S+ model, got a masked-lm model"):
            pipeline(name, model)
    for name in ("feature-extraction", "sentence-embedding"):
        assert pipeline(name, model).model.config.head == "base"


def test_a_task_has_transformers_other_names():
    assert pipeline("sentiment-analysis", TASKS["text-classification"][0]).name == "text-classification"
    assert pipeline("ner", TASKS["token-classification"][0]).name == "token-classification"


def test_a_pipeline_runs_on_the_caller_s_threads():
    model = tiny.model(threads=1)
    assert pipeline("text-classification", model).model is model
    assert pipeline("text-classification", model, threads=2).model.threads == 2
