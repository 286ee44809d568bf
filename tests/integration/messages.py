"""What tests say of messages: what one must name, not its wording."""


def mentions(text, *names):
    """Fails unless the text contains each of the names."""
    missing = [str(name) for name in names if str(name) not in text]
    if missing:
        raise AssertionError(f"without {missing}:\n{text}")
