"""Entry point of the command `penstock`, also as `python -m penstock`.

Ctrl-C before the command runs, or after, ends the process at once: an exception in an import or in the interpreter's
end would be shown as a traceback.
"""

import signal


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from penstock.cli.main import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
