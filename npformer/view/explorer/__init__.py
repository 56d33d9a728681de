"""The explorer: a local page on which texts are typed and a model is changed, computed by the engine.

`session.py` starts the server (`server.py`), which serves only the page that has its token. A request has a state, the
texts, changes and options (`state.py`, `changes.py`), and asks for parts of the page, which `parts.py` computes.
`latest.py` drops requests that a newer one has replaced. `program.py` writes a state as Python, and `live_page.py` the
page.
"""
