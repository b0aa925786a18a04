"""The `penstock` command, and `python -m penstock`: ^C is one word also while the command line itself is imported."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from penstock import cli

        cli.main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
