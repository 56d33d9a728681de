"""Text-to-text tasks of encoder-decoders: translation, summarization and text2text-generation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from npformer.common.errors import NpformerError, warn
from npformer.engine.runtime.steps import Steps
from npformer.generation import generating, stream
from npformer.generation.settings import resolve, usable
from npformer.model import Model, Seq2Seq
from npformer.tasks.declaration import Form
from npformer.tasks.task import WINDOW, Request
from npformer.tasks.task_settings import pairs_of, task_settings
from npformer.tasks.writing import Writing, WritingOptions, pieces
from npformer.text.encoding import Encoded, SourceEncoder, was_cut
from npformer.text.inputs import as_text

#: Defaults of the pipelines of Transformers 4, which the model's folder and the caller can override.
USUAL: Mapping[str, Any] = {"num_beams": 4, "max_new_tokens": 256}


@dataclass(frozen=True)
class TextToTextOptions(WritingOptions):
    """Options of `TextToText`."""

    to: str | None = None
    windows = "sources are not read in windows; split long texts"


class TextToText(Writing):
    """The base class of the tasks in this file, which differ in their names and defaults.

    Parameters
    ----------
    model : Seq2Seq, such as Marian or BART
    to : str, optional
        Target language of a multilingual model, or of a T5 with settings for the language in config.json. A text
        may also begin with the code of its target language, such as >>fra<<.
    long : "error" or "truncate"
        How to handle a text that is too long.
    progress : bool
        Show a progress bar on stderr.
    **options : generation settings: num_beams, max_new_tokens, min_length, length_penalty, do_sample, ...
    """

    options_type = TextToTextOptions
    model: Seq2Seq  # type: ignore[assignment]
    to: str | None = None  # target language

    def __init__(self, model: Model | Seq2Seq, **options: Any) -> None:
        if not isinstance(model, Seq2Seq):
            raise NpformerError(f"{self.name}: expected an encoder-decoder, got a {model.config.head} model")
        self.model = model
        self.encoder: Any = SourceEncoder(model)
        self.window = WINDOW
        self.to = options.get("to")
        self.prefixes: dict[str | None, str] = {}
        self.options = self.settle(self.defaults(), options)

    @property
    def own_settings(self) -> Mapping[str, Any]:
        return usable(task_settings(self.model, self.name, self.to).settings, self.model.config)[0]

    @cached_property
    def pairs(self) -> dict[str, str]:
        """The target languages that have their own settings, as in T5."""
        return pairs_of(self.model) if self.name == "translation" else {}

    def values(self, answer: Any) -> dict[str, Any]:
        return {self.key: ""} if answer is None else super().values(answer)  # a blank line has the answer None

    def settle(self, options: TextToTextOptions, given: Mapping[str, Any]) -> Any:
        """Returns the options, including generation settings, updated with the given ones."""
        settled: TextToTextOptions = super().settle(options, given)
        if settled.settings.get("logprobs") is not None:
            raise NpformerError(f"logprobs: {self.name} does not return them; use model.generate(ids, logprobs=...)")
        resolve(self.model.folder, self.model.config, settled.settings)
        if settled.to is not None and settled.to not in self.pairs:
            self.encoder.check_language(f">>{settled.to.strip('<>')}<<", self.pairs)
        if settled.to is None and self.name == "translation" and self.pairs:
            raise NpformerError(f"to: expected a target language of this model: {', '.join(self.pairs)}")
        return settled

    def tokens(self, text: str, **options: Any) -> Iterator[str]:
        settled: TextToTextOptions = self.settle(self.options, {"num_beams": 1, **options})
        source = self.source(text, settled)
        if source.truncated:
            warn(was_cut("input 0", source.n_tokens, self.encoder.limit))
        return pieces(self.tokenizer, stream(self.model, source.texts[0], **settled.settings))

    def limit(self, options: Any) -> int:
        """Returns the number of tokens to which sources are truncated."""
        return self.encoder.limit

    # --- from an input to an answer -----------------------------------------------------------------------------

    def source(self, item: Any, options: TextToTextOptions) -> Encoded:
        text = as_text(item["text"] if isinstance(item, Mapping) and set(item) == {"text"} else item)
        to = None if options.to in self.pairs else options.to
        return self.encoder.read(text, options.long, to, self.prefix(options.to))

    def prefix(self, to: str | None) -> str:
        """Returns the text to put before every source, which depends on the target language."""
        if to not in self.prefixes:
            self.prefixes[to] = task_settings(self.model, self.name, to).prefix
        return self.prefixes[to]

    def in_steps(self, requests: list[Request], options: TextToTextOptions) -> Steps[list[Any]]:
        sources = [request.encoded[0].texts[0] for request in requests]
        found = []
        for hypotheses in (yield from generating(self.model, sources, **options.settings)):
            answers = [{self.key: self.tokenizer.decode(each.ids.tolist())} for each in hypotheses]
            found.append(answers[0] if len(answers) == 1 else answers)
        return found


class Translation(TextToText):
    """Returns a dict with "translation_text" for each text, or a list of dicts if num_return_sequences is above 1.

    Takes the same parameters as `TextToText`.

    Examples
    --------
    With a model from the hub::

        translate = npformer.pipeline("translation", "Helsinki-NLP/opus-mt-en-de")
        translate("The dog runs.")["translation_text"]
    """

    name, key, column = "translation", "translation_text", "translation"
    form = Form(several="translations", layout="alone")


class Summarization(TextToText):
    """Returns a dict with "summary_text" for each text, or a list of dicts if num_return_sequences is above 1.

    Settings come from the caller, the settings for summarization in config.json, generation_config.json, and the
    defaults of Transformers 4 (4 beams and at most 256 tokens), in this order of precedence.

    Takes the same parameters as `TextToText`.

    Examples
    --------
    With a model from the hub::

        summarize = npformer.pipeline("summarization", "facebook/bart-large-cnn")
        article = "The tower is 324 metres tall."
        summarize(article, min_length=5, max_length=30)["summary_text"]
    """

    name, key, column, usual = "summarization", "summary_text", "summary", USUAL
    form = Form(several="summaries", layout="alone")


class Text2TextGeneration(TextToText):
    """Returns a dict with "generated_text" for each text, or a list of dicts if num_return_sequences is above 1.

    For encoder-decoders that paraphrase or correct texts, or answer questions. Settings come from the same sources as
    for `Summarization`, with the settings for text2text-generation in config.json.

    Takes the same parameters as `TextToText`.

    Examples
    --------
    With a model from the hub::

        rewrite = npformer.pipeline("text2text-generation", "eugenesiow/bart-paraphrase")
        rewrite("They were there to enjoy us and they were there to pray for us.")["generated_text"]
    """

    name, key, column, usual = "text2text-generation", "generated_text", "generated_text", USUAL
    form = Form(several="generated_texts", layout="alone")
