"""The command `npformer`: `process.py` sets up the process, then `main.py` finds the subcommand."""
