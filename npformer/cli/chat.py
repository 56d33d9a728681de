"""`npformer generate --chat` on a terminal: each line is a message, and its answer is shown as it is generated."""

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


def converse(task: Task) -> int:
    """Answers messages until Ctrl-D; Ctrl-C ends an answer. Returns the exit code."""
    with suppress(ImportError):  # line editing, if Python supports it
        import readline  # noqa: F401
    conversation = Conversation(task)  # type: ignore[arg-type]
    shown()
    complain("Ctrl-C ends an answer, Ctrl-D the conversation")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        while (text := _message()) is not None:
            _answer(conversation, text)
    finally:
        signal.signal(signal.SIGINT, before)
    return 0


def _message() -> str | None:
    """Reads the next message that is not blank. Returns None at the end of the input."""
    while True:
        try:
            text = input("> ")
        except (EOFError, KeyboardInterrupt) as end:
            print()
            if isinstance(end, EOFError):
                return None
        except UnicodeDecodeError as error:
            complain(f"not UTF-8 (byte {error.start})")
        else:
            if text.strip():
                return text


def _answer(conversation: Conversation, text: str) -> None:
    interrupted = False

    def interrupt(*_: Any) -> None:
        nonlocal interrupted
        interrupted = True

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        for piece in conversation.say(text):
            if interrupted:
                break
            print(printable(piece), end="", flush=True)
        print()
    except NpformerError as error:
        if not interrupted:  # Ctrl-C also ends the process that renders the template, which causes this error
            complain(error)
        return
    finally:
        signal.signal(signal.SIGINT, before)
    writer = conversation.writer
    if writer is not None and not interrupted and writer.ended == "length":
        limit = conversation.task.encoder.limit
        full = len(writer.prompt) + len(writer.ids) >= limit
        complain(
            f"the conversation has reached the model's limit of {limit} tokens"
            if full
            else f"the answer was cut off after {len(writer.ids)} tokens; --max-new-tokens allows more"
        )
