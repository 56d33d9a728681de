"""Makes the golden answers of the tasks or, with --check, makes them again and compares them.

    python tests/golden/make_tasks.py [--check]

It needs the `oracle` group (torch, transformers). It makes `tasks/<task>.json`: for each case the settings of a tiny
model (which `tiny.py` makes, so that no weights are stored), the arguments of the pipeline, and the answer of
transformers.pipeline. Some pipelines exist only in transformers 4 (4.57 made their files); with transformers 5 these
files are not changed. The vectors of sentence-embedding come from the sentence-transformers package.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.support import tiny, writers

OLD = ("question-answering", "summarization", "text2text-generation")  # pipelines that exist only in transformers 4
HERE = Path(__file__).parent
DATA = HERE / "tasks"

TOKENIZER = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "eos_token": "[SEP]"}

TEXTS = [
    "I love ice cream",
    "",
    "Paris is great, and the people are not bad at all!",
    "naïve Ünïcode 我爱冰激凌 😀 e\u0301",
    "loving kindness - the politics of sport",
]
PAIRS = [
    {"text": "I love ice cream", "text_pair": "it is cold"},
    {"text": "", "text_pair": "what?"},
    {"text": "who are you", "text_pair": " "},
]
CONTEXT = "My name is Anna and I live in Paris. Before that, I was in Kyoto; there I had ice cream for all my friends."
LONG = " ".join(f"In {year} the people of Paris had ice cream, and it was good." for year in range(1990, 1998))


def of(family: str, head: str, **overrides: Any) -> dict[str, Any]:
    """Describes a tiny model: the arguments of `tiny.folder`."""
    return {"model_type": family, "head": head, **overrides}


def text_classification() -> Iterator[dict[str, Any]]:
    three = ("NEGATIVE", "NEUTRAL", "POSITIVE")
    for model in (
        of("distilbert", "sequence-classification"),
        of("bert", "sequence-classification", labels=three, activation="relu"),
        of("bert", "sequence-classification", labels=three, problem_type="multi_label_classification"),
        of("bert", "sequence-classification", labels=("SCORE",), problem_type="regression"),
        of("distilbert", "sequence-classification", labels=("SCORE",)),
    ):
        yield case(model, TEXTS)
        yield case(model, TEXTS, top_k=None)
        yield case(model, PAIRS, top_k=2)
    for function in ("softmax", "sigmoid", "none"):
        yield case(of("bert", "sequence-classification", labels=three), TEXTS[:2], function_to_apply=function)
    yield case(of("bert", "sequence-classification"), [LONG], truncation=True)
    for second in (LONG[:150], LONG):
        yield case(of("bert", "sequence-classification"), [{"text": LONG, "text_pair": second}], truncation=True)


def zero_shot_classification() -> Iterator[dict[str, Any]]:
    labels = ["politics", "ice cream", "sport"]
    for names in (
        ("contradiction", "neutral", "entailment"),
        ("ENTAILMENT", "NEUTRAL", "CONTRADICTION"),
        ("LABEL_0", "LABEL_1"),
    ):
        model = of("bert", "sequence-classification", labels=names)
        for multi_label in (False, True):
            yield case(model, [TEXTS[0], *TEXTS[2:]], candidate_labels=labels, multi_label=multi_label)
        yield case(model, TEXTS[0], candidate_labels="politics, sport", hypothesis_template="It was {}.")
        yield case(model, TEXTS[0], candidate_labels=["one"])
    yield case(
        of("distilbert", "sequence-classification", labels=("entailment", "not")), [LONG], candidate_labels=labels
    )


def token_classification() -> Iterator[dict[str, Any]]:
    """With these seeds, the models predict many labels, so that some entities are joined and others are kept apart."""
    for seed in (1, 4, 6):
        model = of("bert", "token-classification", seed=seed)
        for strategy in ("simple", "first", "average", "max"):
            yield case(model, [*TEXTS, LONG[:100]], aggregation_strategy=strategy)
    yield case(of("bert", "token-classification", seed=4), TEXTS)
    cased = of("distilbert", "token-classification", seed=2, lowercase=False, labels=("X", "B-Y", "I-Y"))
    yield case(cased, TEXTS[2], aggregation_strategy="simple", ignore_labels=["Y"])
    yield case(cased, TEXTS[2], aggregation_strategy="none", ignore_labels=["X", "I-Y"])
    for strategy in ("simple", "average"):
        for seed in (3, 4, 6):
            yield case(of("bert", "token-classification", seed=seed), LONG, aggregation_strategy=strategy, stride=8)


def fill_mask() -> Iterator[dict[str, Any]]:
    for model in (of("distilbert", "masked-lm"), of("bert", "masked-lm"), of("bert", "masked-lm", tied=False)):
        yield case(model, "I love [MASK] cream.")
        yield case(model, ["The [MASK] of Paris", "[MASK] [MASK], they don't say", "我爱[MASK]"], top_k=2)
        yield case(model, "I love [MASK]", targets=["paris", "cream", "Kyoto"])
        yield case(model, "I [MASK] it", targets="love", top_k=3)


def feature_extraction() -> Iterator[dict[str, Any]]:
    for model in (of("distilbert", "base"), of("bert", "base"), of("distilbert", "masked-lm")):
        yield case({**model, "d_model": 8, "n_heads": 2}, [TEXTS[0], TEXTS[1]])


def question_answering() -> Iterator[dict[str, Any]]:
    question = {"question": "Where do I live?", "context": CONTEXT}
    for model in (of("distilbert", "question-answering"), of("bert", "question-answering", seed=3)):
        yield case(model, question)
        yield case(model, question, top_k=5)
        yield case(model, question, top_k=4, align_to_words=False, max_answer_len=3)
        yield case(model, question, top_k=3, handle_impossible_answer=True)
        yield case(model, question, top_k=4, max_seq_len=32, doc_stride=6)
        yield case(model, [question, {"question": "Who?", "context": "Anna and I"}])
        yield case(model, {"question": "what was good", "context": LONG}, top_k=3, handle_impossible_answer=True)
        yield case(model, {"question": "who?", "context": "naïve Ünïcode 我爱冰激凌 😀 e\u0301 Anna"}, top_k=2)


def sentence_embedding() -> Iterator[dict[str, Any]]:
    model = of("bert", "base", d_model=8, n_heads=2)
    for mode in ("mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", ["cls", "mean"]):
        yield case(model, TEXTS, pooling=mode, normalize=mode in ("mean", "max"))
    yield case(model, [*TEXTS, LONG], pooling="mean", normalize=True, max_seq_length=20)
    yield case(
        of("distilbert", "base", d_model=8, n_heads=2, lowercase=False),
        TEXTS,
        pooling="mean",
        normalize=False,
        do_lower_case=True,
        prompt="news: ",
    )


def text_generation() -> Iterator[dict[str, Any]]:
    model, prompts = {"model_type": "gpt2", "seed": 4}, ["The other", "", "naïve 😀 京", "a" * 20 + "<|endoftext|>b"]
    yield case(model, prompts, do_sample=False, max_new_tokens=24)
    yield case(model, prompts[0], do_sample=False, max_new_tokens=24, return_full_text=False)
    yield case(model, prompts, do_sample=False, max_new_tokens=12, num_beams=3, num_return_sequences=2)
    yield case(model, prompts[:2], do_sample=False, max_new_tokens=24, stop_sequence=["$", "the"])
    yield case(model, prompts, do_sample=False, max_length=30, repetition_penalty=1.3)


def written_by_bart(task: str) -> Iterator[dict[str, Any]]:
    """Cases with settings in the folder, settings for the task, which include a prefix, and lengths from the caller.

    The folder sets 4 beams, because transformers 4.57 ignores any other number, contrary to its documentation, and uses
    the pipeline's own 4.
    """
    texts = ["I love ice cream", LONG[:60], "the people of Paris are not bad at all!"]
    usual = {
        "decoder_start_token_id": 3, "eos_token_id": 3, "pad_token_id": 0, "forced_eos_token_id": 3,
        "no_repeat_ngram_size": 2, "max_length": 18,
    }  # fmt: skip
    stored = {**usual, "min_length": 5, "num_beams": 4, "length_penalty": 2.0}
    own = {"prefix": "paris: ", "min_length": 9, "max_length": 14, "num_beams": 2, "early_stopping": True}
    for more in (
        {"generation": usual},
        {"generation": stored},
        {"generation": stored, "config": {"prefix": "the ", "task_specific_params": {"other": own}}},
        {"generation": stored, "config": {"prefix": "the ", "task_specific_params": {task: own}}},
    ):
        model = of("bart", "translation", seed=3, **more)
        yield case(model, texts)
        yield case(model, texts, max_length=8)
        yield case(model, texts, min_new_tokens=10, max_new_tokens=12, num_beams=1)
        yield case(model, texts[:2], num_return_sequences=2)


def case(model: dict[str, Any], inputs: Any, **arguments: Any) -> dict[str, Any]:
    return {"model": model, "inputs": inputs, "arguments": arguments}


CASES = {
    "text-classification": text_classification,
    "zero-shot-classification": zero_shot_classification,
    "token-classification": token_classification,
    "fill-mask": fill_mask,
    "feature-extraction": feature_extraction,
    "question-answering": question_answering,
    "sentence-embedding": sentence_embedding,
    "text-generation": text_generation,
    "summarization": partial(written_by_bart, "summarization"),
    "text2text-generation": partial(written_by_bart, "text2text-generation"),
}


def write_folder(path: Path, case: dict[str, Any]) -> Path:
    """Writes the case's checkpoint folder, which for sentence-embedding is a sentence-transformers folder."""
    model = {name: tuple(value) if isinstance(value, list) else value for name, value in case["model"].items()}
    if model["model_type"] == "gpt2":
        return writers.folder(path, seed=model["seed"])
    generation, described = model.pop("generation", None), model.pop("config", {})
    folder = tiny.folder(path, **model)
    if generation is not None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **described}))
        (folder / "generation_config.json").write_text(json.dumps(generation))
        (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER))
    if "pooling" in case["arguments"]:
        write_sentence_folder(folder, case["model"]["d_model"], **case["arguments"])
    return folder


def write_sentence_folder(
    folder: Path,
    width: int,
    pooling: Any,
    normalize: bool,
    max_seq_length: int | None = None,
    do_lower_case: bool = False,
    prompt: str = "",
) -> None:
    kinds = ["models.Transformer", "models.Pooling", "models.Normalize"][: 2 + normalize]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": paths[i], "type": f"sentence_transformers.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": width, "pooling_mode": pooling})
    )
    settings = {"max_seq_length": max_seq_length, "do_lower_case": do_lower_case}
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    described = {"prompts": {"news": prompt}, "default_prompt_name": "news"} if prompt else {"prompts": {}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(described))


def answer(task: str, case: dict[str, Any], folder: Path) -> Any:
    if task == "sentence-embedding":
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(str(folder), device="cpu").encode(case["inputs"]).tolist()
    from transformers import pipeline

    pipe = pipeline(task, model=str(folder), device="cpu")
    if task == "question-answering":
        inputs = case["inputs"]
        together = inputs if isinstance(inputs, dict) else {key: [each[key] for each in inputs] for key in inputs[0]}
        return pipe(**together, **case["arguments"])
    return pipe(case["inputs"], **case["arguments"])


def make(task: str) -> str:
    lines = []
    with tempfile.TemporaryDirectory() as temporary:
        for i, each in enumerate(CASES[task]()):
            result = answer(task, each, write_folder(Path(temporary) / str(i), each))
            lines.append(json.dumps({**each, "result": result}, default=float, separators=(",", ":")))
    return "[\n" + ",\n".join(lines) + "\n]\n"


def same(a: Any, b: Any) -> bool:
    """Whether two answers are equal except for the last digits of numbers."""
    if isinstance(a, float) and isinstance(b, float | int):
        return abs(a - b) <= 1e-6 + 1e-5 * abs(b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def main() -> int:
    import transformers

    wrong = 0
    for task in CASES:
        if task in OLD and not transformers.__version__.startswith("4."):
            print(f"{task}: not made, this is transformers {transformers.__version__}")
            continue
        made, path = make(task), DATA / f"{task}.json"
        if "--check" in sys.argv[1:]:
            equal = same(json.loads(made), json.loads(path.read_text()))
            wrong += not equal
            print(f"{task}: {'as committed' if equal else 'differs from what transformers gives'}")
        else:
            path.write_text(made)
            print(f"{task}: {len(made)} bytes")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
