"""`python -m npformer`, and the command `npformer`: see `npformer.cli`."""

import sys

from npformer.cli.process import set_up


def main() -> int:
    """Run the command of this process; its exit code. Nothing heavy is imported before the process is set up."""
    set_up()
    from npformer.cli.main import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
