"""Foreign text in a table's cell: no control characters, and nothing that a spreadsheet would run as a formula."""

from __future__ import annotations

_STARTS_A_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")


def cell(text: str) -> str:
    """The text with a ' before it where a spreadsheet would calculate it; what cannot be printed as escapes."""
    plain = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return f"'{plain}" if plain.startswith(_STARTS_A_FORMULA) else plain
