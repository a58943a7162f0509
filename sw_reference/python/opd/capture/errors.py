"""What a capture says when it is used wrongly."""


from opd.texts import printable


class CaptureError(Exception):
    """A capture that cannot do what is asked. The text names the argument or file, what is wrong, and the remedy; it is printable."""

    def __init__(self, text: str):
        super().__init__(printable(text))


class PatternError(CaptureError):
    """A pattern of probes that matches nothing in the model."""


class BusyError(CaptureError):
    """A journal that a running capture writes."""

    def __init__(self, journal):
        super().__init__(f"{journal}: another running capture writes it; give another path, or let it end: opd info {journal} shows "
                         "what it holds meanwhile")
        self.journal = journal


class NoStepError(CaptureError):
    """A journal without one whole step."""
