"""Habits of transformers' users: keywords, names of tasks, a pipeline with only a model, a pair without a second text,
a config without a head, and a progress bar for many texts."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from npformer import NpformerError, NpformerWarning, Pair, load, pipeline
from tests.support import tiny
from tests.support.extras import needs

MARIAN = Path(__file__).parents[1] / "golden" / "seq2seq" / "marian-files"
NLI = ("contradiction", "neutral", "entailment")
LONG = "the people of paris had ice cream and it was good " * 12
TASKS = {
    "text-classification": tiny.model("bert", "sequence-classification"),
    "token-classification": tiny.model("distilbert", "token-classification"),
    "question-answering": tiny.model("bert", "question-answering"),
    "fill-mask": tiny.model("bert", "masked-lm"),
    "feature-extraction": tiny.model("bert", "base"),
    "sentence-embedding": tiny.model("bert", "base"),
}


@pytest.fixture(params=TASKS)
def name(request):
    return request.param


def given(name, text="I [MASK] ice"):
    return Pair("Who had it?", text) if name == "question-answering" else text


# --- keywords --------------------------------------------------------------------------------------------------------


def test_keywords_that_change_nothing_are_accepted(name):
    """The keywords are accepted both when the pipeline is made and when it is called."""
    habits = {
        "batch_size": 8, "padding": "max_length", "device": -1, "device_map": "auto", "framework": "np", "num_workers": 0,
        "tokenizer": None, "token": True, "torch_dtype": "auto", "trust_remote_code": False, "use_fast": True,
        "return_all_scores": False, "config": None, "cache_dir": None, "grouped_entities": False, "model_kwargs": {},
        "feature_extractor": None, "image_processor": None, "processor": None, "tokenizer_kwargs": None,
        "use_auth_token": True, "attn_implementation": "sdpa", "low_cpu_mem_usage": True, "use_cache": True,
        "text_pair": None, "max_question_len": 64,
    }  # fmt: skip
    plain = pipeline(name, TASKS[name])(given(name))
    assert np.array_equal(pipeline(name, TASKS[name], **habits)(given(name)), plain)
    for device in ("cpu", "cpu:0"):
        assert np.array_equal(pipeline(name, TASKS[name])(given(name), truncation=True, device=device), plain)


@pytest.mark.parametrize(
    ("keyword", "value", "message"),
    [
        ("device", 0, "device: 0 is not supported; everything runs on the CPU"),
        ("device", "cuda", "device: 'cuda' is not supported; everything runs on the CPU"),
        ("device_map", {"": 0}, "device_map: .* everything runs on the CPU"),
        ("framework", "pt", "framework: 'pt' is not supported; everything runs on NumPy"),
        ("batch_size", "8", "batch_size: '8' is not supported; expected a whole number"),
        ("padding", "left", "padding: 'left' is not supported; texts are never padded"),
        ("cache_dir", "here", "cache_dir: 'here' is not supported; set HF_HUB_CACHE in the environment"),
        ("grouped_entities", True, "grouped_entities: True is not supported; pass aggregation_strategy='simple'"),
        (
            "model_kwargs",
            {"cache_dir": "models"},
            "model_kwargs: a dict is not supported; pass its entries as separate",
        ),
        ("tokenizer_kwargs", {"max_length": 9}, "tokenizer_kwargs: a dict is not supported; pass its entries as sep"),
        ("tokenize_kwargs", {"max_length": 9}, "tokenize_kwargs: a dict is not supported; pass its entries as sep"),
        ("config", "bert", "config: 'bert' is not supported; the config comes with the model; leave it out"),
        ("processor", "bert", "processor: 'bert' is not supported; models read texts only; leave it out"),
        ("token", "hf_x", "token: 'hf_x' is not supported; set HF_TOKEN in the environment, or log in with"),
        ("text_pair", "ice", r"text_pair: 'ice' is not supported; pass npformer.Pair\(text, text_pair\) as the input"),
        ("tokenizer", "bert", "tokenizer: 'bert' is not supported; the tokenizer comes with the model"),
        ("trust_remote_code", True, "trust_remote_code: True is not supported; a checkpoint's code is never run"),
        ("return_all_scores", True, "return_all_scores: True is not supported; top_k=None gives the scores of all"),
        ("truncation", "first", "truncation: expected True, False or 'longest_first', got 'first'"),
    ],
)
def test_keywords_that_would_change_something_are_refused(keyword, value, message):
    with pytest.raises(NpformerError, match=message):
        pipeline("text-classification", TASKS["text-classification"], **{keyword: value})
    with pytest.raises(NpformerError, match=message):
        pipeline("text-classification", TASKS["text-classification"])("ice", **{keyword: value})


@pytest.mark.slow
def test_the_tokenizer_and_the_config_may_name_the_model_again(tmp_path):
    """`tokenizer` and `config` may also be the loaded model's objects, as in calls of transformers.pipeline. Other
    objects are refused.
    """
    folder = tiny.folder(tmp_path / "model", "bert", "sequence-classification")
    model = load(folder)
    expected = pipeline("text-classification", folder)("ice")
    for same in (folder, str(folder), f"{folder}/"):
        for name in (folder, str(folder)):
            assert pipeline("text-classification", name, tokenizer=same, config=same)("ice") == expected
    given = {"tokenizer": model.tokenizer, "config": model.config}
    assert pipeline("text-classification", model, **given)("ice") == expected
    assert pipeline("text-classification", tokenizer="distilbert-sst2", model="distilbert-sst2")("ice")["label"]
    for name, other in given.items():
        for source in (folder, load(folder), None):
            with pytest.raises(NpformerError, match=f"{name}: a .* is not supported; the {name} comes with the model"):
                pipeline("text-classification", source, **{name: other})


def test_the_loading_of_a_model_takes_transformers_keywords(tmp_path, monkeypatch):
    folder = tiny.folder(tmp_path / "model", "bert", "sequence-classification")
    for name in ("dtype", "torch_dtype"):
        for value in ("auto", "float32", "torch.float32", np.float32):
            assert pipeline(model=folder, **{name: value}).model.dtype == np.float32
        for value in ("float64", "torch.float64", np.float64):
            assert pipeline(model=folder, **{name: value}).model.dtype == np.float64
        with pytest.raises(NpformerError, match="dtype: expected float32 or float64, got 'int8'; for smaller weights"):
            pipeline(model=folder, **{name: "int8"})
    assert pipeline(model=folder, local_files_only=True, torch_dtype=None)("ice") == pipeline(model=folder)("ice")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(NpformerError, match=r"nobody/nothing: no config.json in the cache .* and offline=True"):
        pipeline(model="nobody/nothing", local_files_only=True)
    with pytest.raises(NpformerError, match="local_files_only: expected true or false, got 'yes'"):
        pipeline(model=folder, local_files_only="yes")
    with pytest.raises(
        NpformerError, match=r"revision: only valid for a model on the hub, but .* is the folder .*; omit it"
    ):
        pipeline(model=folder, revision="main")


class TorchDtype:
    """A dtype that, like torch's, can be recognized only by its repr."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"torch.{self.name}"


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_precision_is_widened_and_the_warning_names_keep(name, tmp_path):
    """The dtype is given as in scripts for transformers, to every function that loads a model."""
    folder = tiny.folder(tmp_path / "model", "bert", "sequence-classification")
    ids = [[5, 6, 7]]
    expected = load(folder)(ids).logits
    given = [
        name,
        f"torch.{name}",
        TorchDtype(name),
        *([np.float16, np.dtype(np.float16)] if name == "float16" else []),
    ]
    calls = [
        *(lambda **more: load(folder, **more), lambda **more: pipeline(model=folder, **more).model),
        lambda **more: pipeline("text-classification", load(folder), **more).model,
    ]
    warning = f"dtype: {name} weights are widened to float32, .* keep='{name}' keeps"
    for call in calls:
        for keyword in ("dtype", "torch_dtype"):
            for value in given:
                with pytest.warns(NpformerWarning, match=warning) as issued:
                    model = call(**{keyword: value})
                assert len(issued) == 1
                assert model.dtype == np.float32
                assert np.array_equal(model(ids).logits, expected)
    with pytest.warns(NpformerWarning, match=warning):
        pipeline("text-classification", folder, model_kwargs={"torch_dtype": TorchDtype(name)}, device_map="auto")
    kept = load(folder, torch_dtype=name, keep=name)  # the remedy that the warning names, with and without dtype
    assert np.array_equal(kept(ids).logits, load(folder, keep=name)(ids).logits)
    with pytest.raises(NpformerError, match="torch_dtype: conflicts with dtype=; pass only one of the two"):
        load(folder, dtype=name, torch_dtype=name)


@pytest.mark.slow
def test_a_loaded_model_keeps_its_own_dtype():
    models = [load("distilbert-sst2", dtype=dtype) for dtype in ("float32", "float64")]
    for model, name, other in zip(models, ("float32", "float64"), ("torch.float64", np.float32), strict=True):
        for same in ({}, {"dtype": name}, {"torch_dtype": f"torch.{name}"}, {"dtype": "auto"}, {"dtype": model.dtype}):
            assert pipeline("text-classification", model, **same).model is model
        for keyword in ("dtype", "torch_dtype"):
            with pytest.raises(NpformerError, match=f"dtype: expected {name}, the loaded model's, .* to npformer.load"):
                pipeline("text-classification", model, **{keyword: other})
    with pytest.raises(NpformerError, match=r"revision: the model is already loaded; pass revision= to npformer\.load"):
        pipeline("text-classification", models[0], revision="main")


def test_torch_s_own_dtype():
    class Float64:
        def __repr__(self):
            return "torch.float64"

    assert pipeline("text-classification", dtype=Float64()).model.dtype == np.float64


def test_a_keyword_for_one_of_several_answers_gets_a_hint():
    """For a list with one text, Transformers returns the words without the outer list, whereas npformer always returns
    a list for a list.
    """
    fill, classify = (pipeline(name, TASKS[name]) for name in ("fill-mask", "text-classification"))
    [words] = fill(["I [MASK] ice"])
    assert words == fill("I [MASK] ice")
    assert words[1:2] == [words[1]]
    with pytest.raises(
        NpformerError, match=r"an index into 5 answers, got 'token_str'; for the first answer use \[0\]\['token_str'\]"
    ):
        words["token_str"]
    with pytest.raises(NpformerError, match="even of one text, the result has one such list of answers per text"):
        classify("ice", top_k=2)["label"]
    assert classify("ice")[0] == classify("ice")


def test_an_unknown_argument_lists_the_task_s_own_options():
    with pytest.raises(NpformerError) as error:
        pipeline("text-classification", TASKS["text-classification"], topk=2)
    assert str(error.value) == (
        "argument of text-classification: 'topk' is not known; did you mean 'top_k'? Its options: long, stride, "
        "max_length, progress, top_k, function_to_apply, truncation"
    )
    with pytest.raises(NpformerError, match="'btach_size' is not known; did you mean 'batch_size'"):
        pipeline("text-classification", TASKS["text-classification"], btach_size=2)


def test_truncation_cuts_a_text_to_max_length():
    """A text is truncated to N tokens, including [CLS] and [SEP]. The shorter text gives the same answer."""
    task = pipeline("text-classification", TASKS["text-classification"])
    with pytest.warns(UserWarning, match="input 0: 6 tokens, cut to 4"):
        cut = task("I love ice cream", truncation=True, max_length=4)
    assert cut == task("I love")
    assert (cut.truncated, cut.n_tokens) == (True, 6)
    with pytest.warns(UserWarning, match="cut to 64"):
        assert task(LONG, truncation=True, max_length=1000).truncated
    with pytest.raises(NpformerError, match="expected at most 4 tokens, got 6"):
        task("I love ice cream", truncation=False, max_length=4)
    with pytest.raises(NpformerError, match="truncation: conflicts with long="):
        task("ice", truncation=True, long="window")
    with pytest.raises(NpformerError, match="max_length: use max_seq_len="):
        pipeline("question-answering", TASKS["question-answering"], max_length=20)


def test_truncation_leaves_the_windows_of_a_question():
    """Transformers reads a long context in windows and never truncates it."""
    task = pipeline("question-answering", TASKS["question-answering"])
    assert task(given("question-answering", LONG), truncation=True) == task(given("question-answering", LONG))


@needs("translate", "sentencepiece")
def test_truncation_cuts_a_source_that_would_be_refused():
    """A source is truncated to the model's length, because max_length limits the translation, as in Transformers."""
    task = pipeline("translation_en_to_deu", MARIAN, max_length=4)
    with pytest.raises(NpformerError, match="expected at most 64 tokens, got 1802"):
        task("dog " * 900)
    with pytest.warns(UserWarning, match="tokens, cut to"):
        assert task("dog " * 900, truncation=True).truncated


# --- names and models ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [each for each in TASKS if each != "sentence-embedding"])
def test_a_pipeline_infers_its_task_from_the_model(name, tmp_path):
    """The task follows from the architecture in config.json, for a folder and for a loaded model."""
    model = TASKS[name]
    folder = tiny.folder(tmp_path / "model", model.config.model_type, model.config.head)
    assert pipeline(model=folder).name == pipeline(model=load(folder)).name == name
    assert np.array_equal(pipeline(model=folder)(given(name)), pipeline(name, folder)(given(name)))


def test_a_pipeline_infers_its_task_from_a_folder_or_explains_why_not(tmp_path):
    folder = tiny.folder(tmp_path / "model", "bert", "base")
    (folder / "modules.json").write_text(
        json.dumps(
            [
                {"type": "sentence_transformers.models.Transformer", "path": ""},
                {"type": "sentence_transformers.models.Pooling", "path": ""},
            ]
        )
    )
    assert pipeline(model=folder).name == "sentence-embedding"
    with pytest.raises(NpformerError, match="task: no task for a next-sentence model"):
        pipeline(model=tiny.model("bert", "next-sentence"))
    with pytest.raises(NpformerError, match="expected a task or a model"):
        pipeline()


def test_other_names_of_tasks():
    """A cross-encoder's task has no default model: the bundled sentiment model cannot rank texts."""
    assert pipeline("sentiment-analysis", TASKS["text-classification"]).name == "text-classification"
    assert pipeline("rerank", tiny.model(labels=("SCORE",))).name == "text-ranking"
    assert pipeline("ner", TASKS["token-classification"]).name == "token-classification"
    assert pipeline("sentiment-analysis")("I love ice cream")["label"] == "POSITIVE"
    with pytest.raises(NpformerError, match=r"text-ranking: no default model; .* a cross-encoder"):
        pipeline("text-ranking")


@needs("translate", "sentencepiece")
def test_the_language_in_a_task_s_name():
    """For a multilingual model, the target language in the task's name becomes the option `to`. It is an error if the
    model lacks that language.
    """
    assert pipeline(model=MARIAN).name == "translation"
    asked = pipeline("translation_en_to_fra", MARIAN, max_length=8)("dog")
    assert asked == pipeline("translation", MARIAN, max_length=8, to="fra")("dog")
    with pytest.raises(NpformerError, match="language: '>>eng<<' is not known"):
        pipeline("translation_de_to_eng", MARIAN)


def test_a_config_without_architectures_takes_the_task_s_head(tmp_path):
    """A pipeline loads the task's head, and `load` loads the head that is given. The head is never guessed."""
    folder = tiny.folder(tmp_path / "model", "bert", "masked-lm")
    expected = pipeline("fill-mask", folder)("I [MASK] ice")
    described = json.loads((folder / "config.json").read_text())
    del described["architectures"]
    (folder / "config.json").write_text(json.dumps(described))
    assert pipeline("fill-mask", folder)("I [MASK] ice") == expected
    assert load(folder, head="masked-lm").config.head == "masked-lm"
    assert load(folder).config.head == "base"
    with pytest.raises(NpformerError, match=r"config.json: cannot infer the task without architectures; pass the task"):
        pipeline(model=folder)
    with pytest.raises(NpformerError, match=r"missing: head.output.weight"):
        pipeline("token-classification", folder)
    with pytest.raises(NpformerError, match=r"head: expected one of base, .*got 'masked'"):
        load(folder, head="masked")


@pytest.mark.parametrize("name", ["MyModel", 3, {"a": 1}])
@pytest.mark.parametrize(
    ("family", "head", "task"),
    [
        ("bert", "masked-lm", "fill-mask"),
        ("llama", "causal-lm", "text-generation"),
        ("t5", "base", "feature-extraction"),
    ],
)
def test_an_unknown_class_takes_the_head_that_the_caller_names(family, head, task, name, tmp_path):
    folder = tiny.folder(tmp_path / "model", family, head)
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**described, "architectures": [name]}))
    assert pipeline(task, folder).model.config.head == load(folder, head=head).config.head == head
    got = {"MyModel": "'MyModel'", 3: "3"}.get(name if isinstance(name, str | int) else "", "a dict")
    with pytest.raises(
        NpformerError, match=rf"config.json: architectures: expected .*, got {got}; name the task, pipeline"
    ):
        load(folder)
    with pytest.raises(NpformerError, match=f"config.json: cannot infer the task from the class {got}; pass the task"):
        pipeline(model=folder)


@pytest.mark.parametrize("prefix", ["TF", "Flax"])
def test_the_class_of_another_framework_has_the_same_head(prefix, tmp_path):
    for family, head in (("bert", "masked-lm"), ("bert", "base"), ("gpt2", "causal-lm"), ("marian", "translation")):
        folder = tiny.folder(tmp_path / f"{family}-{head}", family, head)
        described = json.loads((folder / "config.json").read_text())
        [name] = described["architectures"]
        (folder / "config.json").write_text(json.dumps({**described, "architectures": [prefix + name]}))
        assert load(folder).config == load(folder, head=head).config


# --- pairs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_a_pair_with_an_empty_second_text_is_its_first(family):
    """The pair is read like its first text alone, as in transformers.pipeline. An empty first text is kept."""
    task = pipeline("text-classification", tiny.model(family, "sequence-classification"))
    alone = task("ice cream")
    for pair in (Pair("ice cream", ""), {"text": "ice cream", "text_pair": ""}):
        assert task(pair) == task([pair, "ice"])[0] == alone
        assert task(pair).n_tokens == 4
    assert task(Pair("", "ice")).n_tokens == 4
    assert task(Pair("", "")) == task("")
    assert task(Pair("ice", " ")).n_tokens == 4


def test_transformers_scores_of_pairs_without_a_text():
    """The expected answers are from transformers 5.23's pipelines with the tiny models, up to float32 rounding."""
    task = pipeline("text-classification", tiny.model("bert", "sequence-classification", labels=NLI))
    expected = {("ice cream", ""): 0.64034355, ("", "ice"): 0.64316577, ("", ""): 0.73811847, ("ice", " "): 0.62277347}
    for pair, score in expected.items():
        assert task(Pair(*pair))["score"] == pytest.approx(score, rel=1e-6)
    zero_shot = pipeline("zero-shot-classification", tiny.model("bert", "sequence-classification", labels=NLI))
    answer = zero_shot("ice cream", candidate_labels=["", "sport"], hypothesis_template="{}")
    # with an empty label, the hypothesis is empty
    assert answer["scores"] == pytest.approx([0.60736233, 0.39263764], rel=1e-6)


# --- progress --------------------------------------------------------------------------------------------------------


class Known:
    """An iterator that knows how many texts are left."""

    def __init__(self, texts):
        self.texts = list(texts)

    def __iter__(self):
        return self

    def __next__(self):
        if not self.texts:
            raise StopIteration
        return self.texts.pop()

    def __length_hint__(self):
        return len(self.texts)


def test_progress_of_lists_and_generators(name, capsys):
    """Progress is set when the pipeline is made or called. It shows the number of texts, if known, and does not change
    the answers."""
    task = pipeline(name, TASKS[name])
    texts = [given(name)] * 3
    plain = list(task(texts))
    assert capsys.readouterr().err == ""
    watched = pipeline(name, TASKS[name], progress=True)
    calls = {
        "0/3 texts": [
            lambda: watched(texts),
            lambda: task(texts, progress=True),
            lambda: task(Known(texts), progress=True),
        ],
        "\r0 texts": [lambda: task((each for each in texts), progress=True)],
    }
    for shown, ways in calls.items():
        for call in ways:
            assert list(map(str, call())) == list(map(str, plain))
            said = capsys.readouterr().err
            assert shown in said
            assert "\r3 texts in " in said
    watched(texts[0])
    watched(texts, progress=False)
    assert capsys.readouterr().err == ""
    with pytest.raises(NpformerError, match="progress: expected true or false, got 'yes'"):
        task(texts, progress="yes")


@needs("translate", "sentencepiece")
def test_progress_of_translations(capsys, tmp_path):
    task = pipeline("translation", shutil.copytree(MARIAN, tmp_path / "model"), max_length=3)
    assert len(task(["dog", "dogs"], progress=True)) == 2
    assert "2 texts in " in capsys.readouterr().err
