"""`Chat`: converts conversations to tokens with the chat template in the folder of a model.

Only the template may add control tokens. If a message contains the text of a control token, such as "<|im_end|>", that
text is tokenized as ordinary text. To distinguish this text from the template's control tokens, a placeholder replaces
it while the template is rendered.
"""

from __future__ import annotations

import re
import secrets
from bisect import bisect
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from npformer.base_model import BaseModel
from npformer.common.checks import shown
from npformer.common.errors import NpformerError
from npformer.text.chat_template import read_template, render
from npformer.text.control_texts import ControlTexts
from npformer.text.inputs import as_text, check_nested
from npformer.text.special_tokens import template_tokens

BLANK = re.compile(r"[\s▁]*")  # an added token that consists of spaces is not a control token
TAG = re.compile(r"</?\w+>")  # tags such as <think>, which a template may look for in an answer

Message = Mapping[str, Any]


def is_chat(value: Any) -> bool:
    """Returns whether a value is a conversation: a list that begins with a message."""
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], Mapping) and "role" in value[0]


def as_messages(value: Sequence[Any]) -> list[dict[str, Any]]:
    """Checks a conversation, and joins the content parts of each message into a text."""
    found = []
    for i, message in enumerate(value):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise NpformerError(f'messages[{i}]: expected {{"role": ..., "content": ...}}, got {shown(message)}')
        check_nested(f"messages[{i}]", {name: each for name, each in message.items() if name != "content"})
        found.append({**message, "content": _content(f"messages[{i}].content", message.get("content"))})
    return found


def _content(where: str, value: Any) -> str:
    if not isinstance(value, list | tuple):
        return as_text(value, where)
    for part in value:
        if not isinstance(part, Mapping) or part.get("type") != "text":
            raise NpformerError(
                f'{where}: expected a text or parts {{"type": "text", "text": ...}}; other types are not supported'
            )
    return "".join(as_text(part.get("text"), where) for part in value)


class Chat:
    """The chat template and the tokenizer of a model.

    Parameters
    ----------
    model : BaseModel that was loaded from a folder with a chat template

    Raises
    ------
    NpformerError
        The folder has no chat template.
    """

    def __init__(self, model: BaseModel) -> None:
        if model.folder is None:
            raise NpformerError("chat: a model without a folder has no chat template; give the prompt as a text")
        self.where, self.template = read_template(model.folder)
        self.variables = {**template_tokens(model.folder), "tools": None, "documents": None}
        self.tokenizer, self.limits = model.tokenizer, model.limits
        added = self.tokenizer.get_added_tokens_decoder()
        added = {i: each for i, each in added.items() if not BLANK.fullmatch(each.content)}
        self.control = {i: each.content for i, each in added.items()}
        tags = {each.content for each in added.values() if not each.special and TAG.fullmatch(each.content)}
        self._control = ControlTexts(self.control.values())
        self._in_answers = ControlTexts(set(self.control.values()) - tags)

    def encoded(
        self, conversations: Sequence[Sequence[Message]], variables: Mapping[str, Any] | None = None
    ) -> list[np.ndarray | NpformerError]:
        """Returns the tokens (L,) of each conversation up to the assistant's answer, or an error for a conversation.

        If the last message is from the assistant, the tokens end within this message, and generation continues it.
        variables: further variables for the template, such as enable_thinking.
        """
        try:
            return list(self._all(conversations, variables or {}))
        except NpformerError as error:
            if len(conversations) == 1:
                return [error]
            return [self.encoded([each], variables)[0] for each in conversations]

    def _all(self, conversations: Sequence[Sequence[Message]], more: Mapping[str, Any]) -> list[np.ndarray]:
        marked = [_Marked(as_messages(each), self._control, self._in_answers) for each in conversations]
        texts: dict[int, str] = {}
        for generates in (True, False):  # whether the template adds the beginning of the assistant's message
            some = [i for i, each in enumerate(marked) if each.generates == generates]
            given = [marked[i].messages for i in some]
            variables = {**self.variables, **more, "add_generation_prompt": generates}
            texts |= zip(some, render(self.where, self.template, given, variables) if some else [], strict=True)
        return [self._ids(*each.restored(texts[i], self._control)) for i, each in enumerate(marked)]

    def _ids(self, text: str, own: Sequence[tuple[int, int]]) -> np.ndarray:
        """Tokenizes a rendered text. own: the spans of the control tokens that the template added, in order."""
        self.limits.check("characters", len(text), "characters of a conversation")
        encoding = self.tokenizer.encode(text, add_special_tokens=False)  # the template has added special tokens
        ids: list[int] = []
        spelled = cache(self._spelled)
        for i, (first, end) in zip(encoding.ids, encoding.offsets, strict=True):
            at = bisect(own, (first,))  # the next span
            if i not in self.control or (at < len(own) and own[at][1] <= end):
                ids.append(i)
            else:
                ids += spelled(text[first:end])
        return np.array(ids, np.int64)

    def _spelled(self, text: str) -> list[int]:
        """Tokenizes the text of a control token as ordinary text, by splitting until no part is a control token."""
        ids: list[int] = []
        while True:
            ids += self.tokenizer.encode(text[:1], add_special_tokens=False).ids
            text = text[1:]
            found = self.tokenizer.encode(text, add_special_tokens=False).ids
            if len(text) < 2 or not self.control.keys() & found:
                return ids + found


class _Marked:
    """A conversation with placeholders for the texts of control tokens, and for the end of an answer to continue."""

    def __init__(self, messages: list[dict[str, Any]], control: ControlTexts, in_answers: ControlTexts) -> None:
        self.name = f"@{secrets.token_hex(8)}"  # random, so that no message can contain it
        self.texts: list[str] = []
        self.generates = not messages or messages[-1]["role"] != "assistant"
        self.messages = [
            self._replaced(each, in_answers if each["role"] == "assistant" else control) for each in messages
        ]
        if not self.generates:
            self.messages[-1]["content"] += f"{self.name}end@"

    def _replaced(self, value: Any, control: ControlTexts) -> Any:
        if isinstance(value, str):
            return control.replaced(value, self._mark)
        if isinstance(value, Mapping):
            return {str(name): self._replaced(each, control) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._replaced(each, control) for each in value]
        return value

    def _mark(self, text: str) -> str:
        self.texts.append(text)
        return f"{self.name}{len(self.texts) - 1}@"

    def restored(self, rendered: str, control: ControlTexts) -> tuple[str, list[tuple[int, int]]]:
        """Restores the original texts in a rendered text. Also returns the spans of the template's control tokens."""
        if not self.generates:
            rendered = rendered.partition(f"{self.name}end@")[0]
        own, text = list[tuple[int, int]](), ""
        for i, part in enumerate(re.split(rf"{self.name}(\d+)@", rendered)):
            if i % 2:
                text += self.texts[int(part)]
            else:
                own += [(len(text) + first, len(text) + last) for first, last in control.spans(part)]
                text += part
        return text, own
