"""`npformer generate --chat` on a terminal: each line is a message, and the answer is shown while it is generated."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from npformer.cli.process import complain
from npformer.cli.texts import printable
from npformer.common.errors import NpformerError
from npformer.common.progress import shown
from npformer.tasks.conversation import Conversation

if TYPE_CHECKING:
    from npformer.tasks.task import Task


class _Interrupts:
    """Handles SIGINT. At the prompt, Ctrl-C raises KeyboardInterrupt; at any other time, it is only recorded."""

    reading = pressed = False

    def __call__(self, *_: Any) -> None:
        self.pressed = True
        if self.reading:
            self.reading = False
            raise KeyboardInterrupt


def converse(task: Task) -> int:
    """Answers messages until Ctrl-D; Ctrl-C ends an answer. Returns the exit code."""
    with suppress(ImportError):  # enables line editing if Python supports it
        import readline  # noqa: F401
    given = task.options.settings
    if any(given.get(each, 1) > 1 for each in ("num_beams", "num_return_sequences")):
        raise NpformerError("--chat: a conversation has one answer, shown as it is generated; leave out -b and --best")
    conversation = Conversation(task)  # type: ignore[arg-type]
    shown()
    complain("Ctrl-C ends an answer, Ctrl-D the conversation")
    before = signal.signal(signal.SIGINT, interrupts := _Interrupts())
    try:
        while (text := _message(interrupts)) is not None:
            _answer(conversation, text, interrupts)
    finally:
        signal.signal(signal.SIGINT, before)
    return 0


def _message(interrupts: _Interrupts) -> str | None:
    """Reads the next message that is not blank. Returns None at the end of the input."""
    while True:
        try:
            try:
                interrupts.pressed, interrupts.reading = False, True
                text = input("> ")
            finally:
                interrupts.reading = False
        except (EOFError, KeyboardInterrupt) as end:
            print()
            if isinstance(end, EOFError):
                return None
        except UnicodeDecodeError as error:
            complain(f"not UTF-8 (byte {error.start})")
        else:
            if text.strip():
                return text


def _answer(conversation: Conversation, text: str, interrupts: _Interrupts) -> None:
    try:
        for piece in conversation.say(text):
            if interrupts.pressed:
                break
            print(printable(piece), end="", flush=True)
        print()
    except NpformerError as error:
        if interrupts.pressed:  # Ctrl-C also ended the process that renders the template, which caused the error
            print()
        else:
            complain(error)
        return
    writer = conversation.writer
    if writer is not None and not interrupts.pressed and writer.ended == "length":
        limit = conversation.task.encoder.limit
        full = len(writer.prompt) + len(writer.ids) >= limit
        complain(
            f"the conversation has reached the model's limit of {limit} tokens"
            if full
            else f"the answer was cut off after {len(writer.ids)} tokens; --max-new-tokens allows more"
        )
