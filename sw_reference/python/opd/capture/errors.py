"""What a capture says when it is used wrongly."""


class CaptureError(Exception):
    """A capture that cannot do what is asked. The text names the argument or file, what is wrong, and the remedy."""
