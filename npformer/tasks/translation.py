"""translation: texts in another language, by a model with an encoder and a decoder.

How targets are searched for is told by the settings of `generation.Settings`; the model's generation_config.json
says what the caller does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from npformer.errors import NpformerError, warn
from npformer.generation import Hypothesis, generate, stream
from npformer.generation.settings import NAMES, resolve
from npformer.model import Model
from npformer.runtime.batch import Text
from npformer.seq2seq import Seq2Seq
from npformer.tasks.habits import translated
from npformer.tasks.options import Options
from npformer.tasks.results import carrying
from npformer.tasks.task import WINDOW, InputError, Task
from npformer.text.inputs import as_text, unknown
from npformer.text.tokenizer import longest_text
from npformer.text.translation_tokenizer import LANGUAGE


@dataclass(frozen=True)
class TranslationOptions(Options):
    """to: the target's language, for a model with several; a text may begin with its own >>code<<. settings: how
    targets are searched for. long: by default "error", as half a translation is easily taken for a whole one."""

    to: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.long:
            object.__setattr__(self, "long", "error")
        super().__post_init__()
        if self.long == "window" or self.stride is not None:
            raise NpformerError("long: a text cannot be translated in windows; split it into sentences")


@dataclass
class Source:
    """An input on its way: its ids, as far as the model takes them."""

    ids: list[int]
    n_tokens: int
    truncated: bool


class Translation(Task):
    """{"translation_text"} of each text; a list of them, best first, where num_return_sequences asks for several.

    Settings of generation (num_beams, max_new_tokens, length_penalty, ...) are given like other options.
    """

    name = "translation"
    head = "translation"
    options_type = TranslationOptions
    has_windows = False
    model: Seq2Seq

    def __init__(self, model: Model, **options: Any) -> None:
        if not isinstance(model, Seq2Seq):
            raise NpformerError(f"{self.name} takes an encoder-decoder, this one is a {model.config.head} model")
        self.model = model
        self.tokenizer = model.tokenizer
        self.limit = longest_text(model.folder, model.config)
        self.window = WINDOW
        self.options = self.settle(TranslationOptions(), options)

    def settle(self, options: TranslationOptions, given: Mapping[str, Any]) -> Any:
        """The options with those that were given in place, settings of generation among them."""
        given = translated(given, self.cut)
        own = ("long", "to", "progress")
        for name in given.keys() - {*own, *NAMES}:
            raise unknown(f"argument of {self.name}", name, (*own, *NAMES))
        settings = {**options.settings, **{name: value for name, value in given.items() if name in NAMES}}
        others = {name: given[name] for name in own if name in given}
        settled: TranslationOptions = super().settle(options, {**others, "settings": settings})
        resolve(self.model.folder, self.model.config, settings)
        if settled.to is not None:
            self._code(f">>{settled.to.strip('<>')}<<")
        return settled

    def tokens(self, text: str, **options: Any) -> Iterator[str]:
        """One text's translation as it grows, greedily or by sampling: what each token adds to it."""
        settled: TranslationOptions = self.settle(self.options, {"num_beams": 1, **options})
        source = self._source(text, settled)
        if source.truncated:
            warn(f"{source.n_tokens} tokens, cut to the {self.limit} that the model takes")
        ids: list[int] = []
        shown = text = ""
        for token in stream(self.model, Text(np.array(source.ids)), **settled.settings):
            ids.append(token)
            text = self.tokenizer.decode(ids)
            if text.startswith(shown) and not text.endswith("\ufffd"):  # half of a letter waits for the rest of it
                yield text[len(shown) :]
                shown = text
        if text != shown and text.startswith(shown):
            yield text[len(shown) :]

    # --- the way of an input -------------------------------------------------------------------------------------

    def _prepare(self, window: Sequence[Any], first: int, options: TranslationOptions) -> list[Any]:
        prepared: list[Source | InputError] = []
        for index, item in enumerate(window, first):
            try:
                prepared.append(self._source(item, options))
            except NpformerError as error:
                prepared.append(InputError(index, error))
        return prepared

    def _source(self, item: Any, options: TranslationOptions) -> Source:
        """An input's ids."""
        text = as_text(item["text"] if isinstance(item, Mapping) and set(item) == {"text"} else item)
        code = LANGUAGE.match(text)
        if not text[code.end() if code else 0 :].strip():
            raise NpformerError("an empty text; there is nothing to translate")
        if code:
            self._code(code[0])
        elif options.to is not None:
            text = f">>{options.to.strip('<>')}<< {text}"
        ids = self.tokenizer.encode(text)
        if len(ids) <= self.limit:
            return Source(ids, len(ids), False)
        if options.long == "error":
            raise NpformerError(
                f"{len(ids)} tokens, and the model takes {self.limit}; split it into sentences, or long='truncate' "
                "translates the first of it"
            )
        return Source([*ids[: self.limit - 1], ids[-1]], len(ids), True)

    def _code(self, code: str) -> None:
        """Raises NpformerError for a language code that the model does not have."""
        known = self.tokenizer.languages
        if code not in known:
            raise unknown("language", code, known, "" if known else "This model has one, and no codes.")

    def _run(self, requests: list[Any]) -> None:
        """Nothing yet: a group is translated as a whole in `_finish`."""

    def _finish(self, group: list[Any], first: int, options: TranslationOptions) -> Iterator[Any]:
        texts = [Text(np.array(each.ids)) for each in group if isinstance(each, Source)]
        found = iter(generate(self.model, texts, **options.settings))
        for each in group:
            if isinstance(each, InputError):
                yield each
                continue
            answers = [self._shown(hypothesis) for hypothesis in next(found)]
            yield carrying(answers[0] if len(answers) == 1 else answers, each.n_tokens, each.truncated)

    def _shown(self, hypothesis: Hypothesis) -> dict[str, str]:
        return {"translation_text": self.tokenizer.decode(hypothesis.ids.tolist())}
