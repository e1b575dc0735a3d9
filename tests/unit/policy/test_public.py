"""What the policy offers by name, whether it is imported at once or when it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from offload_runtime import policy


@pytest.mark.parametrize("name", policy.__all__)
def test_every_public_name_is_there(name: str) -> None:
    found = getattr(policy, name)
    assert getattr(found, "__module__", policy.__name__).startswith((policy.__name__, "builtins", "typing"))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        policy.no_such_name  # noqa: B018


def test_the_words_come_without_what_decides() -> None:
    decides = "offload_runtime.policy.resolver"
    code = f"import sys; from offload_runtime.policy import Policy; print({decides!r} in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
