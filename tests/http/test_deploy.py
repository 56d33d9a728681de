"""examples/deploy: the Dockerfile's steps run in new folders, and the Lambda handler in a separate process."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from npformer import pipeline
from tests.support.service import START, Server

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "deploy"
MEGABYTE = 1e6


def size(folder: Path) -> float:
    """Returns the total size of the files in a folder, in megabytes."""
    return sum(each.lstat().st_size for each in folder.rglob("*") if each.is_file()) / MEGABYTE


def steps(word: str) -> list[str]:
    """Returns the arguments of each instruction in the Dockerfile that begins with this word."""
    return re.findall(rf"^{word} (.*)$", (DEPLOY / "Dockerfile").read_text(), re.M)


def stated(name: str, pattern: str) -> float:
    return float(re.search(pattern, (DEPLOY / name).read_text())[1])


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """Maps the image's paths to temporary folders in which the Dockerfile's first stage has run."""
    home = tmp_path_factory.mktemp("image")
    names = shutil.ignore_patterns(".git", ".*_cache", "__pycache__", "en-de-multi30k")
    shutil.copytree(ROOT, home / "source", ignore=names)
    (home / "opt").mkdir()  # every base image has this folder

    def here(text: str) -> str:
        return re.sub(r"(?<![\w.}/])/(source|opt|models)\b", rf"{home}/\1", text)

    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for step in steps("RUN"):
        command = here(step).replace("python -m venv", f"{shlex.quote(sys.executable)} -m venv")
        subprocess.run(
            ["sh", "-ec", command], check=True, cwd=home, env=environment, timeout=START, stdout=subprocess.PIPE
        )
    return here


def test_the_steps_of_the_dockerfile_give_a_service(image):
    entry, arguments, check = (json.loads(image(steps(each)[-1])) for each in ("ENTRYPOINT", "CMD", "HEALTHCHECK CMD"))
    entry[entry.index("8080")] = "0"  # a free port
    with Server(program=[*entry, *arguments], PYTHONPATH="") as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        checked = [each.replace("http://127.0.0.1:8080", url) for each in check]
        assert subprocess.run(checked, timeout=START).returncode == 0
        server.url = url
        expected = pipeline("text-classification", "distilbert-sst2", top_k=None)("I love ice cream")
        assert server.post("/predict", {"inputs": "I love ice cream"})[1] == list(expected)
        server.process.terminate()
        assert server.process.wait(START) == 0
        assert subprocess.run(checked, timeout=START, stderr=subprocess.PIPE).returncode != 0


def test_the_sizes_that_the_dockerfile_states(image):
    environment, model = size(Path(image("/opt/npformer"))), size(Path(image("/models/distilbert-sst2")))
    assert stated("Dockerfile", r"environment takes (\d+) MB") == pytest.approx(environment, rel=0.2)
    assert stated("Dockerfile", r"the model (\d+) MB") == pytest.approx(model, rel=0.02)


EVENTS = """
import json, sys
sys.path.insert(0, sys.argv[1])
import lambda_handler
for method, path, body in json.load(sys.stdin):
    event = {"version": "2.0", "rawPath": path, "rawQueryString": "", "headers": {"Content-Type": "application/json"},
             "requestContext": {"http": {"method": method}}, "body": body, "isBase64Encoded": False}
    print(json.dumps(lambda_handler.handle(event, None)))
"""


def test_the_lambda_handler():
    """One instance answers two valid requests, one with a missing field, and one without a body."""
    body = json.dumps({"inputs": "I love ice cream"})
    asked = [
        ["POST", "/predict", body],
        ["POST", "/predict", body],
        ["POST", "/predict", "{}"],
        ["GET", "/health", None],
    ]
    done = subprocess.run(
        [sys.executable, "-c", EVENTS, str(DEPLOY)], input=json.dumps(asked), capture_output=True, text=True,
        timeout=START, cwd=ROOT, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    first, second, wrong, health = map(json.loads, done.stdout.splitlines())
    expected = pipeline("text-classification", "distilbert-sst2", top_k=None)("I love ice cream")
    assert json.loads(first["body"]) == json.loads(second["body"]) == list(expected)
    assert (first["statusCode"], wrong["statusCode"], health["statusCode"]) == (200, 422, 200)
    assert first["headers"]["content-type"] == "application/json"


def test_the_sizes_that_the_lambda_handler_states(image):
    """The handler's package is the Dockerfile's environment without Python, plus the bundled model in float16."""
    packages = next(Path(image("/opt/npformer")).glob("lib/python*/site-packages"))
    bundled = size(ROOT / "weights" / "distilbert-sst2")
    assert stated("lambda_handler.py", r"takes (\d+) MB of the 250") == pytest.approx(size(packages) + bundled, rel=0.2)


def test_both_are_short():
    for each in DEPLOY.iterdir():
        if each.is_file():
            assert len(each.read_text().splitlines()) < 60, each
