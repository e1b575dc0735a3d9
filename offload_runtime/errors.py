"""Every exception of the pack.

    LayerwiseOffloadError
    ├── PolicyError     what a person asked for cannot be understood
    └── AttachError     what they asked for cannot be attached to this model

Messages are sentences for people: what was asked, where, and what is possible.
"""

from __future__ import annotations


class LayerwiseOffloadError(Exception):
    """Base of all errors raised by the pack."""


class PolicyError(LayerwiseOffloadError, ValueError):
    """A policy value, selector or file cannot be understood."""


class AttachError(LayerwiseOffloadError):
    """A placement cannot be attached to the model it was asked for."""
