"""translation: texts in another language, by an encoder-decoder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from npformer.errors import NpformerError, warn
from npformer.generation import Hypothesis, generate, stream
from npformer.generation.settings import resolve
from npformer.model import Model, Seq2Seq
from npformer.tasks.task import WINDOW, Request
from npformer.tasks.writing import Writing, WritingOptions, pieces
from npformer.text.encoding import Encoded, SourceEncoder, was_cut
from npformer.text.inputs import as_text


@dataclass(frozen=True)
class TranslationOptions(WritingOptions):
    """Options of `Translation`."""

    to: str | None = None
    windows = "a text cannot be translated in windows; split it into sentences"


class Translation(Writing):
    """Returns a dict with "translation_text" for each text; a list of dicts if num_return_sequences is above 1.

    Parameters
    ----------
    model : Seq2Seq with a translation head
    to : str, optional
        The target's language, for a model with several. A text may also begin with a code of its own, as >>fra<<.
    long : "error" or "truncate"
        What to do with a text that is too long.
    progress : bool
        Show a progress bar on stderr.
    **options : the settings of generation: num_beams, max_new_tokens, length_penalty, ...

    Examples
    --------
    With a model from the hub::

        translate = npformer.pipeline("translation", "Helsinki-NLP/opus-mt-en-de")
        translate("The dog runs.")["translation_text"]
    """

    name = "translation"
    head = "translation"
    options_type = TranslationOptions
    model: Seq2Seq  # type: ignore[assignment]

    def __init__(self, model: Model | Seq2Seq, **options: Any) -> None:
        if not isinstance(model, Seq2Seq):
            raise NpformerError(f"{self.name} takes an encoder-decoder, this one is a {model.config.head} model")
        self.model = model
        self.sources = SourceEncoder(model)
        self.window = WINDOW
        self.options = self.settle(TranslationOptions(), options)

    def settle(self, options: TranslationOptions, given: Mapping[str, Any]) -> Any:
        """Returns the options with the given ones changed, the settings of generation among them."""
        settled: TranslationOptions = super().settle(options, given)
        resolve(self.model.folder, self.model.config, settled.settings)
        if settled.to is not None:
            self.sources.check_language(f">>{settled.to.strip('<>')}<<")
        return settled

    def tokens(self, text: str, **options: Any) -> Iterator[str]:
        """Yields the translation of one text piece by piece, as each token is chosen, greedily or by sampling."""
        settled: TranslationOptions = self.settle(self.options, {"num_beams": 1, **options})
        source = self.source(text, settled)
        if source.truncated:
            warn(was_cut("input 0", source.n_tokens, self.sources.limit))
        yield from pieces(self.tokenizer, stream(self.model, source.texts[0], **settled.settings))

    def limit(self, options: Any) -> int:
        """Returns the number of tokens that a source is cut to."""
        return self.sources.limit

    # --- from an input to its answer -----------------------------------------------------------------------------

    def source(self, item: Any, options: TranslationOptions) -> Encoded:
        text = as_text(item["text"] if isinstance(item, Mapping) and set(item) == {"text"} else item)
        return self.sources.read(text, options.long, options.to)

    def answer(self, requests: list[Request], options: TranslationOptions) -> list[Any]:
        sources = [request.encoded[0].texts[0] for request in requests]
        found = []
        for hypotheses in generate(self.model, sources, **options.settings):
            answers = [self._shown(hypothesis) for hypothesis in hypotheses]
            found.append(answers[0] if len(answers) == 1 else answers)
        return found

    def _shown(self, hypothesis: Hypothesis) -> dict[str, str]:
        return {"translation_text": self.tokenizer.decode(hypothesis.ids.tolist())}
