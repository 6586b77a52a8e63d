"""The one exception that a user is meant to read."""


class PliantError(Exception):
    """A user's mistake, or something that cannot be had here.

    The message is one clear line: it names the file or option, says what was wrong and what to do. The command
    line prints it without a traceback and exits with code 2.
    """
