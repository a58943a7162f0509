"""What localisation says when it is used wrongly, or a bundle is."""


class LocaliseError(ValueError):
    """A bundle or argument that does not do. The text names the file or argument, the field, and the remedy."""
