"""`Conversation`: a chat with a model, turn by turn, which computes only the new tokens of each turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from npformer.common.errors import NpformerError
from npformer.engine.runtime.packing import Text
from npformer.generation.state import Continued, PromptState
from npformer.tasks.task import InputError
from npformer.tasks.text_generation import TextGeneration, Writer


class Conversation:
    """A chat with a model that reuses the keys and values of earlier turns. The answers have the same bits as without
    reuse.

    Parameters
    ----------
    task : TextGeneration for a model with a chat template
    system : str, the system message
    **options : options of `TextGeneration`

    Attributes
    ----------
    messages : the messages so far
    writer : Writer of the last answer
    n_kept : number of tokens of the last prompt that were reused

    Examples
    --------
    With a model from the hub::

        from npformer.tasks.conversation import Conversation
        write = npformer.pipeline("text-generation", "Qwen/Qwen2.5-0.5B-Instruct")
        conversation = Conversation(write, max_new_tokens=40)
        for question in ("What is a noun?", "Name three."):
            print("".join(conversation.say(question)))
    """

    def __init__(self, task: TextGeneration, system: str | None = None, **options: Any) -> None:
        self.task = task
        self.options = task.settle(task.options, {"num_beams": 1, "num_return_sequences": 1, **options})
        system = self.options.system if system is None else system
        self.messages: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
        self.writer: Writer | None = None
        self.n_kept = 0
        self._read = np.zeros(0, np.int64)  # the tokens that have keys and values in `_state`
        self._state: PromptState | None = None

    def say(self, text: str) -> Iterator[str]:
        """Yields the pieces of the answer to a message. If the caller stops early, the pieces so far form the answer.

        If the message does not fit, raises NpformerError and leaves the conversation unchanged.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        [request] = self.task.prepare([messages], 0, self.options)
        if isinstance(request, InputError):
            raise NpformerError(request.reason)
        prompt = self._continued(request.encoded[0].texts[0].ids)
        self.writer = writer = Writer(self.task, prompt, self.options)
        answer = ""
        try:
            for piece in writer:
                answer += piece
                yield piece
        finally:
            if writer.stream is not None:
                self.messages = [*messages, {"role": "assistant", "content": answer}]
                assert isinstance(writer.stream.state, PromptState)
                self._state = writer.stream.state
                self._read = np.concatenate([prompt.ids, writer.ids])[: self._state.length]

    def _continued(self, ids: np.ndarray) -> Text:
        """Returns a prompt of these tokens, with the keys and values that earlier turns computed."""
        most = min(len(self._read), len(ids) - 1)  # the last row must be computed again, to get its logits
        same = self._read[:most] == ids[:most]
        self.n_kept = most if same.all() else int(same.argmin())
        if self._state is None or not self.n_kept:
            return Text(ids)
        prompt = self._state.continued(ids, self.n_kept)
        self.n_kept = self.n_kept if isinstance(prompt, Continued) else 0
        return prompt
