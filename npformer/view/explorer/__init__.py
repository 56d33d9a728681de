"""The explorer: a local page where users type texts and change a model; the engine computes the results.

`session.py` starts the server (`server.py`), which answers only requests with its secret token. A request contains a
state (texts, changes and options: `state.py`, `changes.py`) and names parts of the page, which `parts.py` computes.
`latest.py` drops a request as soon as the page sends a newer one. `program.py` writes a state as Python, and
`live_page.py` writes the page.
"""
