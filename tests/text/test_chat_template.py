"""Chat templates for pairs: the positions of the two texts in a template, and templates that are refused."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

from npformer import NpformerError
from npformer.text import chat_template
from npformer.text.chat_template import end_waiting, pair_template, render, start_ahead

pytest.importorskip("jinja2", reason="needs the extra `chat`: jinja2")
pytestmark = pytest.mark.extra
BOTH = "{{ bos_token }}{% for each in messages %}[{{ each.role }}]{{ each.content }}\n{% endfor %}{{ tail }}"


@pytest.fixture
def folder(tmp_path):
    settings = {"bos_token": {"content": "<s>"}, "chat_template": BOTH}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path


def test_texts_are_inserted_where_the_template_has_them(folder):
    plain = pair_template(folder, False, {"tail": "answer:"})
    assert plain(query=" {{ a }}", document="b") == "<s>[query] {{ a }}\n[document]b\nanswer:"
    assert plain.end == "\nanswer:"
    with_system = pair_template(folder, True, {})
    assert with_system(system="s", query="", document="<<query 7d1>>") == (
        "<s>[system]s\n[query]\n[document]<<query 7d1>>\n"
    )
    (folder / "chat_template.jinja").write_text("{{ messages[1].content[0].text }}|{{ messages[0].content[0].text }}")
    assert pair_template(folder, False, {}, structured=True)(query="q", document="d") == "d|q"  # overrides the settings


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ messages[0].content }}", "unchanged and exactly once; it changes, drops or repeats document"),
        ("{{ messages[0].content | trim }}{{ messages[1].content }}", "it changes, drops or repeats query"),
        ("{{ messages[0].content * 2 }}{{ messages[1].content }}", "it changes, drops or repeats query"),
        (
            "{% for m in messages %}{% if m.content %}{{ m.role }}{% endif %}{{ m.content }}{% endfor %}",
            "depends on the",
        ),
        ("{{ raise_exception('no roles') }}", "the template failed: .*no roles"),
        ("{{ raise_exception('a\nb' ~ 'c' * 9999) }}", "the template failed: TemplateError: a bc{182}$"),
        ("{{ messages", "the template failed: "),
        ("{{ messages.__class__.__mro__ }}", "the template failed: .*unsafe"),
        ("{{ messages.append(1) }}", "the template failed: .*unsafe"),
    ],
)
def test_a_template_that_is_refused(template, message, folder):
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(NpformerError, match=rf"chat_template\.jinja: .*{message}"):
        pair_template(folder, False, {})


def test_a_template_has_limits_on_time_and_length(folder, monkeypatch):
    monkeypatch.setattr(chat_template, "SECONDS", 0.5)
    endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"
    with pytest.raises(NpformerError, match=r"here: expected a template that renders within 0\.5 seconds"):
        render("here", endless, [[]], {})
    monkeypatch.undo()
    with pytest.raises(NpformerError, match=r"here: the template failed: .*the text is too long"):
        render("here", "{{ 'ab' * 600000 }}", [[]], {})
    (folder / "chat_template.jinja").write_text(" " * (chat_template.MOST + 1))
    with pytest.raises(NpformerError, match="expected a chat template of at most 1048576 characters, got 1048577"):
        pair_template(folder, False, {})


def test_processes_that_are_started_ahead_render_once_and_have_the_limits(monkeypatch):
    try:
        start_ahead(2)
        first, second = chat_template.WAITING
        monkeypatch.setattr(chat_template, "_started", None)  # from now on, only a waiting process can render
        assert render("here", "a{{ 1 + 1 }}", [[]], {}) == ["a2"]
        assert (first.returncode, list(chat_template.WAITING)) == (0, [second])
        monkeypatch.setattr(chat_template, "SECONDS", 0.5)
        with pytest.raises(NpformerError, match=r"renders within 0\.5 seconds"):
            render("here", "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", [[]], {})
        assert (second.returncode, len(chat_template.WAITING)) == (-signal.SIGKILL, 0)
        monkeypatch.undo()
        start_ahead(1)
        (dead,) = chat_template.WAITING
        dead.kill()
        dead.wait()
        assert render("here", "b", [[]], {}) == ["b"]
        start_ahead(1)
        (waiting,) = chat_template.WAITING
        assert waiting is not dead
    finally:
        end_waiting()
    assert (waiting.returncode, len(chat_template.WAITING)) == (-signal.SIGKILL, 0)


def test_a_folder_without_a_template_and_an_environment_without_jinja2(folder, monkeypatch):
    monkeypatch.setattr(chat_template, "find_spec", lambda name: None)
    with pytest.raises(NpformerError, match=r'a chat template needs jinja2: pip install "npformer\[chat\] @ git'):
        pair_template(folder, False, {})
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(NpformerError, match=r"no chat template; looked for chat_template\.jinja and a text"):
        pair_template(folder, False, {})


# --- a template that leaves the sandbox ------------------------------------------------------------------------------

OS = "cycler.__init__.__globals__['os']"
BUILT_IN = "cycler.__init__.__globals__['__builtins__']"


@pytest.fixture
def without_a_sandbox(monkeypatch):
    """Runs jinja2 without its sandbox, as if a template had escaped from it."""
    own = chat_template.PROGRAM.replace("jinja2.sandbox import Imm", "jinja2 import Environment as Imm")
    assert own != chat_template.PROGRAM
    monkeypatch.setattr(chat_template, "PROGRAM", own)


def test_the_process_has_no_variable_of_the_environment(without_a_sandbox, monkeypatch):
    monkeypatch.setenv("KEY", "secret 7d1")
    monkeypatch.setenv("PYTHONPATH", "/secret 7d1")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    [text] = render("here", f"{{{{ {OS}.environ | list | tojson }}}}", [[]], {})
    assert set(json.loads(text)) <= {*chat_template.KEPT, "LC_CTYPE"}  # Python sets LC_CTYPE itself
    assert render("here", f"{{{{ {OS}.environ.TZ }}}} {{{{ strftime_now('%Z') }}}}", [[]], {}) == ["Asia/Tokyo "]


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of the operating system")
@pytest.mark.parametrize(
    "attempt",
    [
        "{{ built_in.open('/proc/self/environ').read() }}",
        "{{ built_in.open('/proc/' ~ os.getppid() ~ '/environ').read() }}",  # reads the environment of the parent
        "{{ built_in.open('FOLDER/secret').read() }}",
        "{{ os.listdir('/proc/self/fd') }}",
        "{{ os.read(NUMBER, 99) }}",
        "{{ os.popen('cat FOLDER/secret').read() }}",
    ],
)
def test_the_process_can_open_no_file(attempt, without_a_sandbox, tmp_path, monkeypatch):
    monkeypatch.setenv("KEY", "secret 7d1")
    (tmp_path / "secret").write_text("secret 7d1")
    with open(tmp_path / "secret", "rb") as file:
        os.set_inheritable(file.fileno(), True)
        for old, new in (("built_in", BUILT_IN), ("os.", f"{OS}."), ("FOLDER", tmp_path), ("NUMBER", file.fileno())):
            attempt = attempt.replace(old, str(new))
        with pytest.raises(NpformerError, match=r"here: the template failed: (OSError|FileNotFoundError)"):
            render("here", attempt, [[]], {})


def test_late_imports_of_jinja2_work_in_the_sandbox(folder):
    """After its imports, the process cannot open any file."""
    template = (
        "{{ {'b': 1} | pprint }} {{ 'a b' | wordwrap(1) }} {{ [3] | random }} {{ 'é' | urlencode }} {{ 'a' | indent }}"
        " {{ '<' | e }} {{ {'a': 'é'} | tojson }} {{ 'http://example.com' | urlize }} {{ strftime_now('%Y') | length }}"
    )
    expected = '{\'b\': 1} a\nb 3 %C3%A9 a &lt; {"a": "é"} <a href="http://example.com" rel="noopener">http://example.com</a> 4'
    assert render("here", template, [[]], {}) == [expected]
    with pytest.raises(NpformerError, match=r"here: the template failed: UndefinedError: 'b' is undefined"):
        render("here", "{{ b.c }}", [[]], {})


def test_a_hole_of_older_versions_is_closed(monkeypatch):
    """CVE-2025-27516: up to jinja2 3.1.5, the filter `attr` gives a template the `format` method of a text."""
    monkeypatch.setenv("KEY", "secret 7d1")
    hole = "{{ ('{0.__init__.__globals__[os].environ}'|attr('format'))(cycler) }}"
    with pytest.raises(NpformerError, match="the template failed: SecurityError"):
        render("here", hole, [[]], {})


@pytest.mark.parametrize(("found", "is_refused"), [("3.1.5", True), ("3.0", True), ("3.1.6", False), ("4.0rc1", False)])
def test_older_versions_of_jinja2_are_refused(found, is_refused, monkeypatch):
    monkeypatch.setattr(chat_template, "_version", lambda package: found)
    if is_refused:
        said = rf"here: a chat template needs jinja2 3\.1\.6 or newer, .* got {found}: pip install"
        with pytest.raises(NpformerError, match=said):
            render("here", "a", [[]], {})
    else:
        assert render("here", "a", [[]], {}) == ["a"]
