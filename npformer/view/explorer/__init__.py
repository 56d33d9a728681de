"""The explorer: a local page for typing texts and changing a model, computed by the engine.

`session.py` starts the server (`server.py`), which answers only requests with its secret token. A request contains a
state (texts, changes and options: `state.py`, `changes.py`) and names parts of the page, which `parts.py` computes.
`latest.py` drops requests that a newer one has replaced. `program.py` writes a state as Python, and `live_page.py`
writes the page.
"""
