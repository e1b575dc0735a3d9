"""The file of a check: written whole or not at all, and read by its sentence if it cannot be."""

from __future__ import annotations

from pathlib import Path

from ..errors import PolicyError
from ..policy.machine_check import FILE_NAME, MAX_BYTES, MachineCheck, parse_machine_check
from ..whole_file import replace_file


def save(file: Path, check: MachineCheck) -> None:
    """Write a check, in place of an earlier one.

    Raises:
        OSError: it cannot be written; an earlier one is as it was.
    """
    replace_file(file, check.to_json())


def load(file: Path) -> MachineCheck | None:
    """Read a check, or return None where there is none.

    Raises:
        PolicyError: there is a file, and it cannot be used.
    """
    try:
        with file.open("rb") as there:
            data = there.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PolicyError(f"{FILE_NAME} cannot be read: {error.strerror}") from None
    return parse_machine_check(data)
