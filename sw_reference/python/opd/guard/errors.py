"""What a guard says when it is used wrongly."""


class GuardError(Exception):
    """A guard that cannot do what is asked. The text names the argument, what is wrong, and the remedy."""
