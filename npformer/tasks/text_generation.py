"""text-generation: the continuation of a prompt by a causal language model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from npformer.common.checks import boolean, one_of, shown
from npformer.common.errors import NpformerError, warn
from npformer.common.progress import part
from npformer.engine.runtime.packing import Text
from npformer.engine.runtime.steps import Steps
from npformer.generation import Stream, generating, joined
from npformer.generation.logits import Best
from npformer.generation.settings import Settings, resolve
from npformer.tasks.declaration import Form
from npformer.tasks.results import Written
from npformer.tasks.task import InputError, Request
from npformer.tasks.writing import Writing, WritingOptions, pieces
from npformer.text.chat import Chat, as_messages, is_chat
from npformer.text.encoding import Encoded, was_cut
from npformer.text.inputs import as_text, as_texts, check_nested
from npformer.text.stop_strings import StopStrings

NEW_TOKENS, CHAT_TOKENS = 256, 1024  # default maximum of new tokens, for a prompt and for a chat

#: Aliases of options, from transformers.pipeline and OpenAI.
ALIASES = {
    "stop_sequence": "stop_strings", "stop": "stop_strings", "tokenizer_encode_kwargs": "chat_template_kwargs",
}  # fmt: skip


@dataclass(frozen=True)
class TextGenerationOptions(WritingOptions):
    """Options of `TextGeneration`."""

    return_full_text: bool = True
    stop_strings: Sequence[str] | str = ()
    chat: bool = False
    system: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    windows = "prompts are not read in windows; long='truncate' keeps the last tokens"

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.stop_strings
        strings = as_texts([given] if isinstance(given, str) else given, "stop_strings")
        if not all(strings):
            raise NpformerError("stop_strings: expected non-empty texts")
        object.__setattr__(self, "stop_strings", tuple(strings))
        if not isinstance(self.chat_template_kwargs, Mapping):
            got = shown(self.chat_template_kwargs)
            raise NpformerError(f"chat_template_kwargs: expected a dict of the template's variables, got {got}")
        check_nested("chat_template_kwargs", self.chat_template_kwargs)
        for name in ("messages", "add_generation_prompt"):
            if name in self.chat_template_kwargs:
                raise NpformerError(f"chat_template_kwargs: {name!r} follows from the conversation; leave it out")
        if self.system is not None and not boolean("chat", self.chat):
            raise NpformerError("system: needs chat=True (--chat); in a list of messages, add one with the role system")


class TextGeneration(Writing):
    """Returns for each prompt a list of num_return_sequences dicts with "generated_text".

    A prompt may be a conversation, which is a list of messages {"role": ..., "content": ...}. The folder's chat
    template turns it into text, which needs the extra `chat`. The "generated_text" of a conversation is the list of
    messages with the assistant's answer added. If the last message is from the assistant, generation continues this
    message.

    The defaults are the same as in transformers.pipeline: sampling at temperature 0.7, and at most 256 new tokens, or
    as many as fit. The model's generation_config.json overrides these defaults. do_sample=False means greedy decoding,
    and num_beams=4 means beam search. In a call, num_beams above 1 turns off sampling that was set for the pipeline,
    and do_sample=True turns off beam search that was set for the pipeline.

    A prompt includes the tokenizer's special tokens, as in Transformers. A BERT therefore continues after [SEP]. For a
    prompt without tokens, the model reads the start token.

    Parameters
    ----------
    model : Model with a causal-lm head
    return_full_text : bool
        Include the prompt in the text, or the earlier messages of a conversation.
    chat : bool
        Each text is a user's message, and "generated_text" is only the answer unless return_full_text=True. An answer
        has at most 1024 new tokens by default.
    system : str
        With chat=True, the system message before each text, and before each conversation without a system message.
    chat_template_kwargs : dict, also under the name tokenizer_encode_kwargs
        Additional variables for the chat template, such as {"enable_thinking": False} for Qwen3.
    stop_strings : str or list of str, also under the names stop_sequence and stop
        Generation stops after any of these strings. The string stays in the text, and may begin in the prompt, as in
        Transformers.
    long : "error" or "truncate"
        How to handle a prompt that leaves no room for max_new_tokens: raise an error, or keep the last tokens of the
        prompt (handle_long_generation="hole" in Transformers).
    progress : bool
        Show a progress bar on stderr.
    **options : generation settings: max_new_tokens, do_sample, temperature, top_k, top_p, seed, num_beams, ...

    Examples
    --------
    With a model from the hub::

        write = npformer.pipeline("text-generation", "openai-community/gpt2", seed=0)
        write("Once upon a time", max_new_tokens=20)[0]["generated_text"]
        for piece in write.stream("Once upon a time", max_new_tokens=20):
            print(piece, end="", flush=True)
    """

    name = "text-generation"
    options_type = TextGenerationOptions
    other_names = dict.fromkeys(("stop_sequence", "stop"), "Sequence[str] | str") | {
        "tokenizer_encode_kwargs": "Mapping[str, Any]", "handle_long_generation": "str | None",
    }  # fmt: skip
    key = column = "generated_text"
    form = Form(several="generated_texts", layout="whole")
    usual: ClassVar[Mapping[str, Any]] = {"do_sample": True, "temperature": 0.7}  # as in transformers.pipeline

    @cached_property
    def chat(self) -> Chat:
        """The chat template of the model's folder."""
        return Chat(self.model)

    def is_one(self, inputs: Any) -> bool:
        return is_chat(inputs) or super().is_one(inputs)

    def defaults(self) -> Any:
        """Returns the default options, including the stop strings of generation_config.json."""
        options, strings = super().defaults(), self.stored.get("stop_strings")
        return options if strings is None else replace(options, stop_strings=strings)

    def gives_lists(self) -> bool:
        return self.resolved(self.options).num_return_sequences > 1

    def settle(self, options: TextGenerationOptions, given: Mapping[str, Any]) -> Any:
        """Returns the options, including generation settings, updated with the given ones. Ignores None."""
        given = {name: value for name, value in given.items() if value is not None}
        for alias, name in ALIASES.items():
            if alias in given:
                if name in given:
                    raise NpformerError(f"{alias}: conflicts with {name} or another alias of it; pass only one")
                given[name] = given.pop(alias)
        if one_of("handle_long_generation", given.pop("handle_long_generation", None), (None, "hole")):
            given["long"] = "truncate"
        if given.get("chat"):
            given.setdefault("return_full_text", False)
        settled: TextGenerationOptions = super().settle(options, given)
        self.resolved(settled)
        return settled

    def resolved(self, options: TextGenerationOptions, n_tokens: int | None = None) -> Settings:
        """Returns the generation settings for a prompt of `n_tokens` tokens, or of unknown length if None.

        Raises NpformerError for impossible settings.
        """
        return resolve(self.model.folder, self.model.config, self._settings(options, n_tokens or 1), n_tokens)

    def _settings(self, options: TextGenerationOptions, n_tokens: int) -> dict[str, Any]:
        """Returns the unchecked settings for a prompt of `n_tokens` tokens."""
        settings = dict(options.settings)
        if "stop_strings" in self.stored:  # `defaults` has moved stop_strings to the options
            settings["stop_strings"] = ""
        usual = self.stored.get("max_new_tokens", CHAT_TOKENS if options.chat else NEW_TOKENS)
        if not {"max_new_tokens", "max_length"} & settings.keys() and "max_length" not in self.stored:
            room = max(1, self.encoder.limit + 1 - max(1, n_tokens))
            settings["max_new_tokens"] = min(usual, room) if isinstance(usual, int) else usual
        return settings

    def values(self, answer: Any) -> dict[str, Any]:
        return {self.form.several: [each[self.key] for each in answer]}

    def tokens(self, text: Any, **options: Any) -> Iterator[str]:
        """As in `Writing`. Together, the pieces are the text that return_full_text=False gives with the same seed."""
        return iter(self.writing(text, **options))

    def writing(self, text: Any, **options: Any) -> Writer:
        """Returns an iterator over the pieces of `tokens`, with the ids and the reason for the end as attributes."""
        settled: TextGenerationOptions = self.settle(self.options, {"num_beams": 1, **options})
        [request] = self.prepare([text], 0, settled)
        if isinstance(request, InputError):
            raise NpformerError(request.reason)
        [prompt] = request.encoded
        if prompt.truncated:
            warn(was_cut("input 0", prompt.n_tokens, len(prompt.texts[0])))
        return Writer(self, prompt.texts[0], settled)

    def _stopping(self, options: TextGenerationOptions) -> StopStrings | None:
        return StopStrings(self.model.tokenizer, options.stop_strings) if options.stop_strings else None

    def limit(self, options: TextGenerationOptions) -> int:
        """Returns the number of tokens to which prompts are truncated."""
        return self.encoder.limit - self._wanted(options, self.encoder.limit)

    # --- from an input to its answer -----------------------------------------------------------------------------

    def prepare(self, window: Sequence[Any], first: int, options: TextGenerationOptions) -> list[Request | InputError]:
        """Encodes each prompt. The chat template renders all conversations together."""
        items = [_asked(item, options) for item in window]
        chats = [item for item in items if is_chat(item)]
        of_chats = iter(self.chat.encoded(chats, options.chat_template_kwargs) if chats else [])
        prepared: list[Request | InputError] = []
        for index, item in enumerate(items, first):
            try:
                ids = next(of_chats) if is_chat(item) else self._ids(item)
                if isinstance(ids, NpformerError):
                    raise ids
                prepared.append(Request(item, [self._fitted(ids, options, is_chat(item))]))
            except NpformerError as error:
                prepared.append(InputError(index, error))
        return prepared

    def _ids(self, item: Any) -> np.ndarray:
        """Returns the tokens of a prompt that is a text."""
        if isinstance(item, Mapping) and "role" in item:
            raise NpformerError("expected a text or a conversation, a list of messages, got a single message")
        text = as_text(item["text"] if isinstance(item, Mapping) and set(item) == {"text"} else item)
        self.encoder.limits.check("characters", len(text), "characters of a text")
        return self.encoder.ids(text)

    def _fitted(self, ids: np.ndarray, options: TextGenerationOptions, is_chat: bool) -> Encoded:
        """Returns a prompt of these tokens, or with long="truncate" a prompt of the last tokens that fit.

        Raises NpformerError for a prompt that does not fit. A conversation is never truncated.
        """
        count, limit, new = len(ids), self.encoder.limit, self._wanted(options, len(ids))
        refuses = options.long == "error" or is_chat
        # The last token needs no position. As in Transformers, truncation reserves a position for it anyway.
        if count + new <= limit + refuses:
            self.resolved(options, max(1, count))
            return Encoded([Text(ids)], count)
        kept = limit - new
        if is_chat:
            raise NpformerError(
                f"the conversation has {count} tokens, which with {new} new tokens exceed the model's {limit}; "
                "start a new conversation, or leave out earlier messages"
            )
        if refuses or kept < 1:
            raise NpformerError(
                f"expected at most {limit} tokens, got {count} and {new} new ones; long='truncate' keeps the end"
            )
        self.resolved(options, kept)
        return Encoded([Text(ids[-kept:])], count, truncated=True)

    def _wanted(self, options: TextGenerationOptions, n_tokens: int) -> int:
        """Returns the number of new tokens that must fit: the requested number, or 1 by default."""
        if "max_new_tokens" in options.settings:
            return int(options.settings["max_new_tokens"])
        length = options.settings.get("max_length", self.stored.get("max_length", 0))
        return max(1, int(length) - n_tokens)

    def in_steps(self, requests: list[Request], options: TextGenerationOptions) -> Steps[list[Any]]:
        prompts = [request.encoded[0].texts[0] for request in requests]
        settings = [self._settings(options, len(prompt)) for prompt in prompts]
        stopping, ends = self._stopping(options), self.resolved(options).end_ids
        answers: list[Any] = [None] * len(requests)
        for length in dict.fromkeys(each.get("max_new_tokens") for each in settings):
            some = [i for i, each in enumerate(settings) if each.get("max_new_tokens") == length]
            with part(len(some) / len(prompts), 1):
                found = yield from generating(
                    self.model, [prompts[i] for i in some], stopping=stopping, **settings[some[0]]
                )
            for i, hypotheses in zip(some, found, strict=True):
                answers[i] = []
                for each in hypotheses:
                    text = self.model.tokenizer.decode(each.ids.tolist())
                    shown = _after(requests[i].item, text) if options.return_full_text else text
                    ended = _ended(prompts[i], each.ids, ends, stopping)
                    answers[i].append(Written(shown, len(each.ids), ended, each.likely))
        return answers


def _asked(item: Any, options: TextGenerationOptions) -> Any:
    """Returns the prompt of an item. With the option `chat`, a text is a user's message.

    The option `system` becomes the first message, unless a conversation begins with its own system message.
    """
    system = [] if options.system is None else [{"role": "system", "content": options.system}]
    if is_chat(item):
        return item if not system or item[0]["role"] == "system" else [*system, *item]
    if not options.chat:
        return item
    return [*system, {"role": "user", "content": item["text"] if isinstance(item, Mapping) else item}]


def _ended(prompt: Text, ids: np.ndarray, ends: Sequence[int], stopping: StopStrings | None) -> str:
    """Returns why a text ended: an end token ("end"), a stop string ("stop"), or its maximum length ("length")."""
    if ids[-1] in ends:
        return "end"
    return "stop" if stopping and stopping(np.concatenate([prompt.ids, ids])[None])[0] else "length"


def _after(item: Any, text: str) -> Any:
    """Returns a prompt followed by the text, or the messages of a conversation followed by the assistant's answer."""
    if not is_chat(item):
        return f"{item['text'] if isinstance(item, Mapping) else item}{text}"
    *before, last = item
    if last["role"] != "assistant":
        return [*item, {"role": "assistant", "content": text}]
    return [*before, {**last, "content": as_messages([last])[0]["content"] + text}]


class Writer:
    """Iterates once over the pieces of a text while it is generated. The prompt is read with the first piece.

    Set `stopped` to end the text before its next token. `stream` is None until the prompt is read.
    """

    def __init__(self, task: TextGeneration, prompt: Text, options: TextGenerationOptions) -> None:
        self.task, self.prompt, self.options = task, prompt, options
        self.stopped = False
        self.stream: Stream | None = None
        count = len(prompt) or 1  # an empty prompt is read as the start token
        self.settings = task.resolved(options, count)
        self._stopping = task._stopping(options)
        self._tokens = self._noted(task._settings(options, count))

    def __iter__(self) -> Iterator[str]:
        return pieces(self.task.model.tokenizer, self._tokens)

    def _noted(self, given: Mapping[str, Any]) -> Iterator[int]:
        if self.stopped:
            return
        self.stream = Stream(self.task.model, self.prompt, stopping=self._stopping, **given)
        for token in self.stream:
            yield token
            if self.stopped:
                return

    @property
    def ids(self) -> list[int]:
        """The tokens so far."""
        return [] if self.stream is None else self.stream.ids

    @property
    def likely(self) -> Best | None:
        """With logprobs, the tokens generated so far, each with the most likely tokens at its position; else None."""
        return None if self.stream is None else joined(self.stream.likely)

    @property
    def ended(self) -> str:
        """The reason why the text ended, which is known after the last piece."""
        return _ended(self.prompt, np.array(self.ids), self.settings.end_ids, self._stopping)
