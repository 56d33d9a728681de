"""The command `npformer`. `process.py` sets up the process, and `main.py` finds the subcommand."""
