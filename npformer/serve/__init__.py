"""An HTTP service: `app` makes an ASGI app, and `npformer serve` runs a server. Both need the extra `serve`.

Requests from different clients share batches (`batching.py`) and take turns (`turns.py`), and each answer has the same
bits as if it were computed alone. `declared.py` collects the routes, `fields.py` validates requests, and `asgi.py` has
the code shared by all routes. `bodies.py` reads request bodies and `answers.py` sends answers, both within memory
limits. `watch.py` counts and logs requests, `quiet.py` limits warnings, `docs_page.py` makes the page /docs, and
`supervisor.py` runs servers and workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from npformer.common.extras import lacks
from npformer.serve.request_limits import ServiceLimits

if TYPE_CHECKING:
    from npformer.serve.models import Given

__all__ = ["ServiceLimits", "app"]

PACKAGES = ("starlette", "uvicorn", "prometheus_client")


def app(
    models: Given | Sequence[Given] | Mapping[str, Given],
    *,
    limits: ServiceLimits | None = None,
    api_key: str | None = None,
    threads: int | None = None,
    revision: str | None = None,
    offline: bool = False,
) -> Any:
    """Makes an ASGI app that serves models, for uvicorn or another server.

    Parameters
    ----------
    models : a model, a list of models, or a dict of models by name
        A model is a bundled name, a folder, a hub id or a loaded model. A request without a model's name uses the first
        model that has the route's task.
    limits : ServiceLimits, the limits of requests, batches and the queue
    api_key : str, the key that requests must send as `Authorization: Bearer KEY`; /health needs no key
    threads, revision, offline : as in `npformer.pipeline`

    Returns
    -------
    starlette.applications.Starlette

    Raises
    ------
    NpformerError
        If a package of the extra is missing, a model cannot be loaded, two models share a name, or the key is empty.

    Examples
    --------
    In a file service.py, for `uvicorn service:app`::

        app = npformer.serve.app(["distilbert-sst2", "sentence-transformers/all-MiniLM-L6-v2"])
    """
    need_extra()
    from npformer.serve.asgi import make
    from npformer.serve.models import serve_all

    loaded = serve_all(models, threads=threads, revision=revision, offline=offline)
    return make(loaded, limits or ServiceLimits(), api_key)


def need_extra() -> None:
    """Raises NpformerError, with the command to install the extra `serve`, if one of its packages is missing."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise lacks("serve", ", ".join(missing), "serve")
