"""Runs Python programs in forks of one process that has imported npformer, in half the time of new processes.

`run` is like `subprocess.run([sys.executable, "-c", program, *arguments])`. Each fork has its own environment, streams
and modules. npformer itself must not import a module that reads the environment at import, such as the hub's client.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

#: Reads one request per line, runs it in a fork, and prints the wait status of the fork.
SERVER = """
import gc, json, os, signal, sys, traceback
import npformer.loading

def run(program, arguments, env, folder):
    for number, (name, flags) in enumerate((("in", os.O_RDONLY), ("out", os.O_WRONLY), ("err", os.O_WRONLY))):
        os.dup2(os.open(os.path.join(folder, name), flags), number)
    os.environ.clear()
    os.environ.update(env)
    sys.argv[1:] = arguments
    code = 0
    try:
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    gc.collect()  # warns of files that are still open
    sys.stdout.flush()
    return code

for line in sys.stdin:
    if os.fork() == 0:
        signal.alarm(300)
        try:
            code = run(**json.loads(line))
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


@cache
def _server() -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", SERVER]
    root = Path(__file__).parents[2]
    server = subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(server.communicate)
    return server


def run(
    program: str, arguments: Sequence[str], env: dict[str, str], text: str = ""
) -> subprocess.CompletedProcess[str]:
    server = _server()
    assert server.stdin
    assert server.stdout
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for stream, content in (("in", text), ("out", ""), ("err", "")):
            (folder / stream).write_text(content)
        request = {"program": program, "arguments": list(arguments), "env": env, "folder": name}
        print(json.dumps(request), file=server.stdin, flush=True)
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess(program, code, (folder / "out").read_text(), (folder / "err").read_text())
