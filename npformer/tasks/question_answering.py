"""question-answering: words of a context that answer a question, ranked by the probabilities of their start and end.

Devlin et al., 2019, section 4.2, and section 4.3 for questions without an answer. A long context is read in windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.common.checks import shown, unknown
from npformer.common.errors import NpformerError
from npformer.engine.functions import softmax
from npformer.tasks.declaration import Form
from npformer.tasks.options import Options
from npformer.tasks.task import Request, Task
from npformer.text.inputs import Pair, as_text


@dataclass(frozen=True)
class AnswerOptions(Options):
    """Options of `QuestionAnswering`."""

    long: str = "window"
    top_k: int = 1
    doc_stride: int | None = None
    max_answer_len: int = 15
    max_seq_len: int | None = None
    handle_impossible_answer: bool = False
    align_to_words: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_length is not None:
            raise NpformerError("max_length: use max_seq_len=, the number of tokens in a window")


class QuestionAnswering(Task):
    """Returns a dict with "score", "start", "end" and "answer" for each question, or a list of dicts for top_k > 1.

    Call the task with question= and context=, each a string or a list, or with dicts of both, or Pairs (question,
    context). "start" and "end" are character positions in the context. Answers with the same words (ignoring case) are
    merged, with the sum of their scores. A context without tokens gives the answer "" with score 0.

    Parameters
    ----------
    model : Model with a question-answering head
    top_k : int
        Number of answers.
    max_seq_len, doc_stride : int, optional
        Tokens in a window (default 384), and tokens shared by neighbouring windows (default 128).
    max_answer_len : int
        Maximum tokens in an answer.
    handle_impossible_answer : bool
        Allow the answer "", for a question without an answer in the context.
    align_to_words : bool
        Extend answers to whole words.
    **options : options common to all tasks; see `Options`

    References
    ----------
    Devlin et al., 2019, sections 4.2 and 4.3.

    Examples
    --------
    With a model from the hub::

        ask = npformer.pipeline("question-answering", "distilbert/distilbert-base-cased-distilled-squad")
        ask(question="Where do I live?", context="I live in Berlin.")["answer"]
    """

    name = "question-answering"
    options_type = AnswerOptions
    cut = "second"
    form = Form(
        {"answer": str, "score": float, "start": int, "end": int},  # a score is a float64 sum
        several="answers",
        line="{score:.4f}  {start}-{end}  {answer}",
    )

    def __call__(self, inputs: Any = None, context: Any = None, *, question: Any = None, **options: Any) -> Any:
        if question is not None or context is not None:
            inputs = _paired(inputs if question is None else question, context)
        return super().__call__(inputs, **options)

    def settle(self, options: Any, given: Mapping[str, Any]) -> Any:
        """Checks the options. `truncation` is ignored, because Transformers also reads long contexts in windows."""
        return super().settle(options, {name: value for name, value in given.items() if name != "truncation"})

    def gives_lists(self) -> bool:
        return bool(self.options.top_k != 1)

    def window_size(self, options: AnswerOptions) -> tuple[int | None, int | None]:
        limit = min(options.max_seq_len or 384, self.encoder.limit)
        stride = options.stride if options.doc_stride is None else options.doc_stride
        return limit, min(limit // 2, 128) if stride is None else stride

    def inputs(self, item: Any, options: AnswerOptions) -> list[str | Pair]:
        question, context = _question_and_context(item)
        return [Pair(as_text(question, "question"), as_text(context, "context"))]

    def answer(self, requests: list[Request], options: AnswerOptions) -> list[Any]:
        return [self._best(request, options) for request in requests]

    def _best(self, request: Request, options: AnswerOptions) -> Any:
        """Returns the best answers over all windows of a context."""
        _, context = _question_and_context(request.item)
        answers: dict[str, dict[str, Any]] = {}
        nothing = np.inf
        for piece, output in zip(request.encoded[0].pieces, request.outputs[0], strict=True):
            inside = np.array([each == 1 for each in piece.sequence_ids])
            start, end = (_over(output[name], inside) for name in ("start_logits", "end_logits"))
            nothing = min(nothing, float(start[0] * end[0]))
            for first, last, score in _spans(start, end, inside, options):
                begin, stop = _characters(piece, first, last, options.align_to_words)
                words = context[begin:stop]
                known = answers.setdefault(words.lower(), {"score": 0.0, "start": begin, "end": stop, "answer": words})
                known["score"] += score
        if options.handle_impossible_answer or not answers:
            score = nothing if options.handle_impossible_answer else 0.0
            answers[""] = {"score": score, "start": 0, "end": 0, "answer": ""}
        best = sorted(answers.values(), key=lambda each: -each["score"])[: options.top_k]
        return best[0] if options.top_k == 1 else best


def _paired(question: Any, context: Any) -> Any:
    """Pairs questions with contexts. Many questions may share one context."""
    if question is None or context is None:
        raise NpformerError(f"{'question' if question is None else 'context'}: missing; pass question= and context=")
    if isinstance(question, str) or not isinstance(question, list | tuple):
        return Pair(question, context)
    if not isinstance(context, str | list | tuple):
        raise NpformerError(
            f"context: expected a text, or one for each of {len(question)} questions, got {shown(context)}"
        )
    contexts = [context] * len(question) if isinstance(context, str) else list(context)
    if len(contexts) != len(question):
        raise NpformerError(f"context: expected one, or one for each of {len(question)} questions, got {len(contexts)}")
    return [Pair(*each) for each in zip(question, contexts, strict=True)]


def _question_and_context(item: Any) -> tuple[Any, Any]:
    if isinstance(item, Pair):
        return item.text, item.text_pair
    if not isinstance(item, Mapping):
        raise NpformerError(f'expected {{"question": ..., "context": ...}}, got {type(item).__name__}')
    for name in item:
        if name not in ("question", "context"):
            raise unknown("key of a question", name, ("question", "context"))
    return item.get("question"), item.get("context")


def _over(logits: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Returns the softmax (L,) over the context's tokens and [CLS], the token for no answer. Other tokens get 0."""
    admitted = inside.copy()
    admitted[0] = True
    probabilities = np.zeros_like(logits)
    probabilities[admitted] = softmax(logits[admitted])
    return probabilities


def _spans(
    start: np.ndarray, end: np.ndarray, inside: np.ndarray, options: AnswerOptions
) -> Iterator[tuple[int, int, float]]:
    """Yields the most likely spans of a window by p(first) p(last), best first; first <= last < first + max_answer_len.

    With align_to_words, yields more spans than top_k, because several spans may extend to the same words.
    """
    rows = np.flatnonzero(inside)
    longest = min(options.max_answer_len, len(rows))
    firsts, more = np.divmod(np.arange(len(rows) * longest), max(longest, 1))
    firsts, lasts = rows[firsts[firsts + more < len(rows)]], rows[(firsts + more)[firsts + more < len(rows)]]
    scores = start[firsts] * end[lasts]
    count = options.top_k * 2 + 10 if options.align_to_words else options.top_k
    for i in np.argsort(-scores, kind="stable")[:count]:
        yield int(firsts[i]), int(lasts[i]), float(scores[i])


def _characters(piece: Any, first: int, last: int, align_to_words: bool) -> tuple[int, int]:
    """Returns the character span of the tokens first ... last, extended to whole words with align_to_words."""
    if align_to_words:
        words = piece.token_to_word(first), piece.token_to_word(last)
        if None not in words:
            begin, stop = (piece.word_to_chars(word, sequence_index=1) for word in words)
            if begin and stop:
                return begin[0], stop[1]
    return piece.offsets[first][0], piece.offsets[last][1]
