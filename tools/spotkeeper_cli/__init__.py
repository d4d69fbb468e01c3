"""The command line of Spotkeeper."""

import signal


def run() -> None:
    """Run the command; Ctrl-C ends it without a traceback, while it loads or ends, too."""
    try:
        from spotkeeper_cli.main import main

        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:
        # A second Ctrl-C would interrupt what Python still closes.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
