"""The threads that tokenize and make JSON work for requests in turn, one portion at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

import npformer
from npformer.serve import asgi, models, replies, routes
from npformer.serve.models import portions
from tests.support import tiny

SMALL, LARGE = "music", "ice cream"


def test_portions_have_some_characters_and_at_least_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "PORTION", 5)
    pair = npformer.Pair("aa", "bb")
    assert list(portions(["a", "b", "ccccccc", pair, "d", "e"])) == [
        (0, ["a", "b"]),
        (2, ["ccccccc"]),
        (3, [pair, "d"]),
        (5, ["e"]),
    ]
    assert list(portions([])) == []


@pytest.mark.parametrize("path", ["/embed", "/tokenize"])
def test_a_small_request_is_tokenized_between_two_portions_of_a_large_one(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both requests arrive before the only thread computes their first portions. An error gives the index of a text in
    the whole request, not in its portion."""
    order: list[str] = []
    name = "prepare" if path == "/embed" else "tokenized"
    function = getattr(routes, name)

    def noting(of: Any, items: Any, *more: Any) -> Any:
        order.append(items[0])
        return function(of, items, *more)

    monkeypatch.setattr(routes, name, noting)
    monkeypatch.setattr(models, "PORTION", 1)
    monkeypatch.setattr(asgi, "TOKENIZERS", 1)
    app = npformer.serve.app({"mine": tiny.model()})

    async def run() -> None:
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here", timeout=300) as client,
        ):
            large = asyncio.ensure_future(client.post(path, json={"inputs": [LARGE] * 200}))
            small = asyncio.ensure_future(client.post(path, json={"inputs": [SMALL]}))
            found, one = await asyncio.gather(large, small)
            assert (len(found.json()), len(one.json())) == (200, 1)
            assert found.json()[150] == found.json()[0]
            refused = await client.post(path, json={"inputs": ["a", "b", "c" * 1_000_001]})
            assert refused.json()["error"].startswith("inputs[2]: ")

    asyncio.run(run())
    assert order.index(SMALL) < 100


def test_json_is_made_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "PORTION", 10)
    parts = replies.in_parts(iter([[1, 2, 3]] * 9))
    found = list(iter(lambda: replies.some_parts(parts), b""))
    assert b"".join(found) == b"[" + b",".join([b"[1,2,3]"] * 9) + b"]"
    assert len(found) > 4
