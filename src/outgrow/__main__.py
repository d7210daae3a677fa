"""`python -m outgrow` is the command `outgrow`."""

from outgrow.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
