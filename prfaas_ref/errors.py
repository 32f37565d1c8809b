"""The one exception that a user of the command line meets: a clear line, with the remedy, and no traceback."""


class UserError(ValueError):
    """Something the user can mend: a missing file, an option out of range, a port in use. The CLI prints it and exits
    2.
    """
