"""Amounts of memory as people write them: `6GB`, `512 MB`, `50%`, and back."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from ..errors import PolicyError

_UNITS = {"B": 1, "KB": 1024, "MB": 1024**2, "GB": 1024**3, "TB": 1024**4}
BUDGET_PATTERN = r"^\s*([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*(%|[KMGTkmgt]?[iI]?[bB])\s*$"
"""The grammar of a budget, for JSON Schema too. Letters in both cases: ignoring it, K would be the Kelvin sign."""
_QUANTITY = re.compile(BUDGET_PATTERN)
_ALMOST = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9}|,[0-9]{1,2})?)(?:\s*([KMGTkmgt])[A-Za-z]*)?")


@dataclass(frozen=True)
class Budget:
    """Device memory that may be used: an amount, or a share of the card.

    Attributes:
        bytes: the amount in bytes, or None for a share.
        percent: the share of total device memory, 0–100, or None for an amount.
    """

    bytes: int | None = None
    percent: float | None = None

    def resolve(self, total: int) -> int:
        """Return the budget in bytes on a device with `total` bytes, never more than the device has."""
        wanted = self.bytes if self.bytes is not None else int(total * (self.percent or 0.0) / 100)
        return min(wanted, total)

    def spelled(self) -> str:
        """Return the budget so that `parse_budget` reads the very same one."""
        if self.bytes is None:
            return f"{self.percent:.9f}".rstrip("0").rstrip(".") + "%"
        unit = next(u for u in ("TB", "GB", "MB", "KB", "B") if self.bytes % _UNITS[u] == 0)
        return f"{self.bytes // _UNITS[unit]}{unit}"

    def __str__(self) -> str:
        return format_bytes(self.bytes) if self.bytes is not None else f"{self.percent:g}%"


def parse_budget(text: str, where: str) -> Budget:
    """Read a budget. `1GB` is 1024³ bytes, as ComfyUI and the drivers count.

    Raises:
        PolicyError: the text is not an amount with a unit, nor a share from 0 to 100 %.
    """
    match = _QUANTITY.match(text)
    if match is None:
        raise PolicyError(
            f"{where}: “{text[:60]}” is not a budget; "
            + (_meant(text) or "write auto, an amount such as 6GB, or a share such as 50%")
        )
    number, unit = match.groups()
    if unit == "%":
        if float(number) > 100:
            raise PolicyError(f"{where}: “{text[:60]}” is more than the whole card; a share is 0% to 100%")
        return Budget(percent=float(number))
    return Budget(bytes=_bytes(number, unit))


def parse_size(text: str, where: str) -> int:
    """Read an amount of memory and return it in bytes.

    Raises:
        PolicyError: the text is not an amount with a unit.
    """
    match = _QUANTITY.match(text)
    if match is None or match[2] == "%":
        raise PolicyError(
            f"{where}: “{text[:60]}” is not an amount of memory; {_meant(text) or 'write it as 12GB or 800MB'}"
        )
    return _bytes(*match.groups())


def format_bytes(count: int) -> str:
    """Return a short reading of a byte count in binary units: `1.5 GB`, `246 MB`, `12 KB`."""
    for unit in ("TB", "GB"):
        if count >= _UNITS[unit]:
            return f"{count / _UNITS[unit]:.2f} {unit}"
    for unit in ("MB", "KB"):
        if count >= _UNITS[unit]:
            return f"{count / _UNITS[unit]:.0f} {unit}"
    return f"{count} B"


def _bytes(number: str, unit: str) -> int:
    # Fractions, because a float would lose the last bytes of a large amount.
    return int(Fraction(number) * _UNITS[unit.upper().replace("I", "")])


def _meant(text: str) -> str:
    """Return “did you mean …” for an amount with half a unit, or with none: then the unit that its size is usual in."""
    match = _ALMOST.fullmatch(text.strip())
    if match is None:
        return ""
    number = match[1].replace(",", ".")
    usual = "G" if float(number) < 1000 else "M" if float(number) < 10_000_000 else ""
    return f"did you mean {number}{(match[2] or usual).upper()}B?"
