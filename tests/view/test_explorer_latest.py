"""The explorer drops work that a newer state has replaced, so that the next picture does not wait for it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import npformer
from npformer import Model, view
from npformer.interpret import attribution
from tests.support import tiny
from tests.support.explorer_client import Client, state

TEXT = "the news is good and I love ice cream"


@pytest.mark.parametrize("part", ["reasons", "attribution", "ablation"])
def test_a_picture_does_not_wait_for_work_that_nobody_wants(
    part: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third of many runs is blocked until a newer state has arrived. No run for the old state follows."""
    model = npformer.load(tiny.folder(tmp_path / "model", "bert"))
    begun, go_on, runs = threading.Event(), threading.Event(), []
    usual = Model.run

    def run(*args: Any, **how: Any) -> Any:
        runs.append(threading.get_ident())
        if len(runs) == 3:
            begun.set()
            assert go_on.wait(30)
        return usual(*args, **how)

    monkeypatch.setattr(Model, "run", run)
    monkeypatch.setattr(attribution, "TOKENS", 16)  # so that each text is a batch
    monkeypatch.setattr(attribution, "BATCH", 16)
    with view.explore({"m": model}, TEXT) as explorer:
        client, replies = Client(explorer), dict[str, Any]()
        old, new = client.request(state(TEXT), part), client.request(state(f"{TEXT} you"), "answer", "heads")
        threads = [
            threading.Thread(target=lambda name=name, body=body: replies.update({name: client.post(body)}))
            for name, body in (("old", old), ("new", new))
        ]
        threads[0].start()
        assert begun.wait(30)
        threads[1].start()
        while explorer._server.latest._newest["test"] < new["number"]:
            threading.Event().wait(0.01)
        go_on.set()
        for thread in threads:
            thread.join()
    assert replies["old"][0] == 409
    assert replies["new"][0] == 200
    assert runs.count(runs[2]) == 3
    assert runs[3:]
    assert runs[2] not in runs[3:]
