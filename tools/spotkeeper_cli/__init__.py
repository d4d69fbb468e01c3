"""The command line of Spotkeeper."""


def run() -> None:
    """Run the command; Ctrl-C ends it without a traceback, while it still loads, too."""
    try:
        from spotkeeper_cli.main import main

        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
