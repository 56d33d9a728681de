"""text-generation: the continuation of a prompt by a causal language model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from npformer.common.checks import one_of
from npformer.common.errors import NpformerError, warn
from npformer.generation import generate, stream
from npformer.generation.settings import Settings, resolve
from npformer.runtime.packing import Text
from npformer.tasks.declaration import Form
from npformer.tasks.results import Written
from npformer.tasks.task import Request
from npformer.tasks.writing import Writing, WritingOptions, pieces
from npformer.text.encoding import Encoded, was_cut
from npformer.text.inputs import as_text, as_texts
from npformer.text.stop_strings import StopStrings

NEW_TOKENS = 256  # default number of new tokens, if the model has room for them

#: Aliases of options: transformers.pipeline's and OpenAI's.
ALIASES = {"stop_sequence": "stop_strings", "stop": "stop_strings"}


@dataclass(frozen=True)
class TextGenerationOptions(WritingOptions):
    """Options of `TextGeneration`."""

    return_full_text: bool = True
    stop_strings: Sequence[str] | str = ()
    windows = "prompts are not read in windows; long='truncate' keeps the last tokens"

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.stop_strings
        strings = as_texts([given] if isinstance(given, str) else given, "stop_strings")
        if not all(strings):
            raise NpformerError("stop_strings: expected non-empty texts")
        object.__setattr__(self, "stop_strings", tuple(strings))


class TextGeneration(Writing):
    """Returns a list of dicts with "generated_text" for each prompt, one for each of num_return_sequences.

    The defaults are those of transformers.pipeline: sampling at temperature 0.7, and at most 256 new tokens or as many
    as fit. The model's generation_config.json overrides them. do_sample=False is greedy, num_beams=4 a beam search; a
    call that sets one of them resets the pipeline's value of the other.

    A prompt includes the tokenizer's special tokens, as in Transformers: a BERT continues after [SEP]. A prompt without
    tokens means the start token.

    Parameters
    ----------
    model : Model with a causal-lm head
    return_full_text : bool
        Include the prompt in the text.
    stop_strings : str or list of str, also under the names stop_sequence and stop
        Generation stops after one of these, which stays in the text; it may begin in the prompt, as in Transformers.
    long : "error" or "truncate"
        How to handle a prompt without room for max_new_tokens more tokens: refuse it, or keep its last tokens
        (handle_long_generation="hole" in Transformers).
    progress : bool
        Show a progress bar on stderr.
    **options : the settings of generation: max_new_tokens, do_sample, temperature, top_k, top_p, seed, num_beams, ...

    Examples
    --------
    With a model from the hub::

        write = npformer.pipeline("text-generation", "openai-community/gpt2", seed=0)
        write("Once upon a time", max_new_tokens=20)[0]["generated_text"]
    """

    name = "text-generation"
    options_type = TextGenerationOptions
    other_names = dict.fromkeys(ALIASES, "Sequence[str] | str") | {"handle_long_generation": "str | None"}
    key = column = "generated_text"
    form = Form(several="generated_texts", layout="whole")
    usual: ClassVar[Mapping[str, Any]] = {"do_sample": True, "temperature": 0.7}  # as in transformers.pipeline

    def settle(self, options: TextGenerationOptions, given: Mapping[str, Any]) -> Any:
        """Returns the options with the given ones changed, generation settings included. None: not given."""
        given = {name: value for name, value in given.items() if value is not None}
        for alias, name in ALIASES.items():
            if alias in given:
                if name in given:
                    raise NpformerError(f"{alias}: conflicts with {name} or another alias of it; give only one")
                given[name] = given.pop(alias)
        if one_of("handle_long_generation", given.pop("handle_long_generation", None), (None, "hole")):
            given["long"] = "truncate"
        settled: TextGenerationOptions = super().settle(options, given)
        self.resolved(settled)
        return settled

    def resolved(self, options: TextGenerationOptions, n_tokens: int = 1) -> Settings:
        """The generation settings for a prompt of `count` tokens. Raises NpformerError if they are impossible."""
        return resolve(self.model.folder, self.model.config, self._settings(options, n_tokens), n_tokens)

    def _settings(self, options: TextGenerationOptions, n_tokens: int) -> dict[str, Any]:
        """The settings for a prompt with this many tokens."""
        settings = dict(options.settings)
        usual = self.stored.get("max_new_tokens", NEW_TOKENS)
        if not {"max_new_tokens", "max_length"} & settings.keys() and "max_length" not in self.stored:
            room = max(1, self.encoder.limit + 1 - max(1, n_tokens))
            settings["max_new_tokens"] = min(usual, room) if isinstance(usual, int) else usual
        return settings

    def values(self, answer: Any) -> dict[str, Any]:
        return {self.form.several: [each[self.key] for each in answer]}

    def tokens(self, text: str, **options: Any) -> Iterator[str]:
        """Yields the continuation of one prompt piece by piece, as each token is chosen, greedily or by sampling.

        The pieces join to the text that `return_full_text=False` gives for the same seed.
        """
        yield from self.writing(text, **options)

    def writing(self, text: str, **options: Any) -> Writer:
        """The same, with the number of tokens so far, and finally the reason for the end."""
        settled: TextGenerationOptions = self.settle(self.options, {"num_beams": 1, **options})
        prompt = self.source(text, settled)
        if prompt.truncated:
            warn(was_cut("input 0", prompt.n_tokens, len(prompt.texts[0])))
        return Writer(self, prompt.texts[0], settled)

    def _stopping(self, options: TextGenerationOptions) -> StopStrings | None:
        return StopStrings(self.model.tokenizer, options.stop_strings) if options.stop_strings else None

    def limit(self, options: TextGenerationOptions) -> int:
        """Returns the number of tokens to which prompts are truncated."""
        return self.encoder.limit - self._wanted(options, self.encoder.limit)

    # --- from an input to its answer -----------------------------------------------------------------------------

    def source(self, item: Any, options: TextGenerationOptions) -> Encoded:
        """The tokens of a prompt; with long="truncate" the last ones that fit."""
        if isinstance(item, list | tuple) or (isinstance(item, Mapping) and "role" in item):
            raise NpformerError("a chat (messages with role and content) is not supported; give the prompt as a text")
        text = as_text(item["text"] if isinstance(item, Mapping) and set(item) == {"text"} else item)
        self.encoder.limits.check("characters", len(text), "characters of a text")
        ids = self.encoder.ids(text)
        count, limit, new = len(ids), self.encoder.limit, self._wanted(options, len(ids))
        refuses = options.long == "error"
        if count + new <= limit + refuses:  # the last token needs no position, but Transformers leaves room for it
            self.resolved(options, max(1, count))
            return Encoded([Text(ids)], count)
        kept = limit - new
        if refuses or kept < 1:
            raise NpformerError(
                f"{count} tokens and {new} new tokens, but the model takes {limit}; long='truncate' keeps the end"
            )
        return Encoded([Text(ids[-kept:])], count, truncated=True)

    def _wanted(self, options: TextGenerationOptions, n_tokens: int) -> int:
        """New tokens that must fit: the requested number, else one."""
        if "max_new_tokens" in options.settings:
            return int(options.settings["max_new_tokens"])
        length = options.settings.get("max_length", self.stored.get("max_length", 0))
        return max(1, int(length) - n_tokens)

    def answer(self, requests: list[Request], options: TextGenerationOptions) -> list[Any]:
        prompts = [request.encoded[0].texts[0] for request in requests]
        settings = [self._settings(options, len(prompt)) for prompt in prompts]
        stopping, ends = self._stopping(options), self.resolved(options).end_ids
        answers: list[Any] = [None] * len(requests)
        for length in dict.fromkeys(each.get("max_new_tokens") for each in settings):
            some = [i for i, each in enumerate(settings) if each.get("max_new_tokens") == length]
            found = generate(self.model, [prompts[i] for i in some], stopping=stopping, **settings[some[0]])
            for i, hypotheses in zip(some, found, strict=True):
                before = _prompt(requests[i].item) if options.return_full_text else ""
                answers[i] = [
                    Written(
                        before + self.model.tokenizer.decode(each.ids.tolist()),
                        len(each.ids),
                        _ended(prompts[i], each.ids, ends, stopping),
                    )
                    for each in hypotheses
                ]
        return answers


def _ended(prompt: Text, ids: np.ndarray, ends: Sequence[int], stopping: StopStrings | None) -> str:
    """Why a text ended: an end token ("end"), a stop string ("stop"), or its maximum length ("length")."""
    if ids[-1] in ends:
        return "end"
    return "stop" if stopping and stopping(np.concatenate([prompt.ids, ids])[None])[0] else "length"


def _prompt(item: Any) -> str:
    return str(item["text"] if isinstance(item, Mapping) else item)


class Writer:
    """The pieces of a text as they are generated, once. The prompt is read with the first."""

    def __init__(self, task: TextGeneration, prompt: Text, options: TextGenerationOptions) -> None:
        self.task, self.prompt = task, prompt
        self.ids: list[int] = []
        count = len(prompt) or 1  # an empty prompt means the start token
        self.settings = task.resolved(options, count)
        self._stopping = task._stopping(options)
        self._tokens = self._noted(task._settings(options, count))

    def __iter__(self) -> Iterator[str]:
        return pieces(self.task.model.tokenizer, self._tokens)

    def _noted(self, given: Mapping[str, Any]) -> Iterator[int]:
        for token in stream(self.task.model, self.prompt, stopping=self._stopping, **given):
            self.ids.append(token)
            yield token

    @property
    def ended(self) -> str:
        """Why it ended, after its last piece."""
        return _ended(self.prompt, np.array(self.ids), self.settings.end_ids, self._stopping)
