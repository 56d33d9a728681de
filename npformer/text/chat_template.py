"""Reads and renders the chat template in a folder. `PairTemplate` is a reranker's template for a query and a text.

A template is an untrusted program. jinja2's sandbox renders it in a separate process with limits on time and memory. In
case a template escapes the sandbox, this process has an almost empty environment and no open files, and cannot open
files. For pairs, the template is rendered once with placeholders, and `PairTemplate` inserts the texts of each pair.
`chat.py` renders conversations.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from npformer.common.errors import NpformerError
from npformer.common.extras import lacks
from npformer.common.files import read_text
from npformer.text.special_tokens import template_tokens
from npformer.text.tokenizer_class import SETTINGS, read_settings

FILE = "chat_template.jinja"
ROLES = ("system", "query", "document")
SECONDS, MEMORY = 20, 2**30  # maximum time for rendering, and maximum bytes of memory on Unix
MOST = 2**20  # maximum characters of a template, and of the rendered texts
JINJA2 = (3, 1, 6)  # in older versions, templates can escape the sandbox (CVE-2025-27516)
PACKAGES = ("jinja2", "markupsafe")  # packages that the process imports
#: Environment variables that the process receives. Python may need them to start, and the date depends on TZ.
KEPT = ("SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME", "TZ")
#: Texts that a template must insert without changes. Their spaces reveal a template that strips texts.
PLACEHOLDERS = {role: f" <<{role} 7d1>> \n" for role in ROLES}

#: A program that renders a template for each conversation, with the jinja2 settings of Transformers. The arguments are
#: the folders of `PACKAGES`. Modules that jinja2 would import later are imported at the start, because the program
#: cannot open files later.
PROGRAM = f"""
import datetime, json, pprint, random, sys, textwrap
sys.path += sys.argv[1:]
def limit(name, most):
    try:
        import resource
        resource.setrlimit(getattr(resource, name), (most, most))
    except (ImportError, AttributeError, ValueError, OSError):
        pass
limit("RLIMIT_AS", {MEMORY})
limit("RLIMIT_CPU", {SECONDS})
import jinja2.debug
from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
class Generation(Extension):  # marks the assistant's texts for training, and changes no text
    tags = {{"generation"}}
    def parse(self, parser):
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(["name:endgeneration"], drop_needle=True), lineno=line)
def refuse(message): raise TemplateError(message)
def explain(kind, error, _): print(f"{{kind.__name__}}:", *str(error)[:200].split(), file=sys.stderr)
sys.excepthook = explain  # the message may be a text of a gigabyte
extensions = ["jinja2.ext.loopcontrols", Generation]
made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
made.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
made.globals["raise_exception"] = refuse
made.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
made.from_string("{{{{ 'a' | wordwrap }}}}").render()  # imports codecs
datetime.datetime.now().astimezone()  # reads the file of the time zone
limit("RLIMIT_NOFILE", 3)  # standard input, output and error
given = json.load(sys.stdin)
template = made.from_string(given["template"])
texts = [template.render(messages=each, **given["variables"]) for each in given["conversations"]]
if sum(map(len, texts)) > {MOST}: raise TemplateError("the text is too long")
json.dump(texts, sys.stdout)
"""

WAITING: deque[subprocess.Popen[str]] = deque()  # processes for later renderings
STARTING = threading.Lock()


@dataclass(frozen=True)
class PairTemplate:
    """A rendered template: fixed texts, which alternate with the roles of the texts to insert."""

    parts: tuple[str, ...]

    def __call__(self, **texts: str) -> str:
        """Inserts the text of each role."""
        return "".join(texts[part] if i % 2 else part for i, part in enumerate(self.parts))

    @property
    def end(self) -> str:
        """The text after the last inserted text."""
        return self.parts[-1]


def pair_template(
    folder: Path, with_system: bool, variables: Mapping[str, Any], structured: bool = False
) -> PairTemplate:
    """Renders the chat template in a folder for a query and a document. with_system: include a system message.

    variables: further variables for the template, such as add_generation_prompt. structured: the content of a message
    is a list of parts. Raises NpformerError if the folder has no template, or if the template fails, or changes, drops
    or repeats a text.
    """
    where, template = read_template(folder)
    roles = ROLES if with_system else ROLES[1:]
    empty = dict.fromkeys(roles, "")
    placed = {role: PLACEHOLDERS[role] for role in roles}
    conversations = [_messages(each, structured) for each in (placed, empty)]
    rendered, of_empty = render(where, template, conversations, {**template_tokens(folder), **variables})
    changed = [role for role, each in placed.items() if rendered.count(each) != 1]
    if changed:
        raise NpformerError(
            f"{where}: expected a template that inserts each message ({', '.join(roles)}) unchanged and exactly once; "
            f"it changes, drops or repeats {', '.join(changed)}"
        )
    parts, rest = [], rendered
    for role in sorted(roles, key=lambda role: rendered.index(placed[role])):
        before, rest = rest.split(placed[role])
        parts += [before, role]
    made = PairTemplate((*parts, rest))
    if made(**empty) != of_empty:
        raise NpformerError(f"{where}: the template depends on the content of the texts, which is not supported")
    return made


def render(
    where: str, template: str, conversations: Sequence[Sequence[Mapping[str, Any]]], variables: Mapping[str, Any]
) -> list[str]:
    """Renders a template for each conversation, in a process with limits. where: the template's path, for errors."""
    _check_jinja2(where)
    try:
        given = json.dumps({"template": template, "conversations": conversations, "variables": variables})
    except (TypeError, ValueError) as error:
        raise NpformerError(f"{where}: messages and variables: {error}") from None
    with _waiting_process() or _started() as process:
        try:
            output, errors = process.communicate(given, timeout=SECONDS)
            texts: list[str] = json.loads(output)
        except subprocess.TimeoutExpired:
            raise NpformerError(f"{where}: expected a template that renders within {SECONDS} seconds") from None
        except ValueError:
            reason = (errors.strip().splitlines() or ["no output"])[-1]
            raise NpformerError(f"{where}: the template failed: {reason:.200}") from None
        finally:
            process.kill()
    return texts


def start_ahead(count: int) -> None:
    """Starts processes for later renderings until `count` are idle.

    With an idle process, rendering takes less than half the time. Each process renders only once.
    """
    with STARTING:
        while len(WAITING) < count:
            WAITING.append(_started())


def end_waiting() -> None:
    """Ends the idle processes."""
    while WAITING:
        with WAITING.pop() as process:
            process.kill()


def _waiting_process() -> subprocess.Popen[str] | None:
    """Returns an idle process, or None if no process is idle. Drops processes that have ended."""
    with suppress(IndexError):
        while True:
            process = WAITING.popleft()
            if process.poll() is None:
                return process
            process.communicate()
    return None


def _started() -> subprocess.Popen[str]:
    """Starts a process without the parent's environment and open files. Only `PACKAGES` and Python are importable."""
    found = [find_spec(each) for each in PACKAGES]
    folders = [str(Path(each.origin).parents[1]) for each in found if each and each.origin]
    command = [sys.executable, "-P", "-s", "-S", "-X", "utf8", "-c", PROGRAM, *dict.fromkeys(folders)]
    kept = {name: value for name, value in os.environ.items() if name in KEPT}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, encoding="utf-8", env=kept, close_fds=True)


def _check_jinja2(where: str) -> None:
    """Raises NpformerError if jinja2 is not installed, or if templates can escape from the installed version."""
    if find_spec("jinja2") is None:
        raise lacks(f"{where}: a chat template", "jinja2", "chat")
    found = _version("jinja2")
    if tuple(map(int, re.findall(r"\d+", found)[:3])) < JINJA2:
        newer = (
            f"jinja2 {'.'.join(map(str, JINJA2))} or newer, because templates can escape the sandbox of older versions"
        )
        raise lacks(f"{where}: a chat template", f"{newer}; got {found}", "chat")


@lru_cache(maxsize=1)
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "an unknown version"


def read_template(folder: Path) -> tuple[str, str]:
    """The path and text of a folder's chat template. If `tokenizer_config.json` has several, "default" is used."""
    path = folder / FILE
    if path.exists():
        template: Any = read_text(path)
    else:
        path, template = folder / SETTINGS, read_settings(folder).get("chat_template")
        if isinstance(template, list):
            named = {each.get("name"): each.get("template") for each in template if isinstance(each, Mapping)}
            template = named.get("default")
    if not isinstance(template, str):
        raise NpformerError(f"{folder}: no chat template; looked for {FILE} and a text `chat_template` in {SETTINGS}")
    if len(template) > MOST:
        raise NpformerError(f"{path}: expected a chat template of at most {MOST} characters, got {len(template)}")
    return str(path), template


def _messages(texts: Mapping[str, str], structured: bool) -> list[dict[str, Any]]:
    return [
        {"role": role, "content": [{"type": "text", "text": text}] if structured else text}
        for role, text in texts.items()
    ]
