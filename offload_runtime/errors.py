"""Every exception of the pack.

    LayerwiseOffloadError
    ├── PolicyError            what a person asked for cannot be understood
    │   └── StrictPolicyError  it is understood, cannot be had on this machine, and the policy is strict
    ├── AttachError            what they asked for cannot be attached to this model
    ├── IncompatibleError      this ComfyUI lacks what the pack cannot do without
    ├── TimelineError          there is no timeline of a run
    ├── WorkflowError          a workflow file cannot be understood
    ├── ReportError            a report that was kept cannot be read or drawn
    ├── LayerStoreError        weights cannot be written to where they could be read from again
    └── WeightFileError        a model file does not have the weights any more that are read from it

Messages are sentences for people: what was asked, where, and what is possible.
"""

from __future__ import annotations


class LayerwiseOffloadError(Exception):
    """Base of all errors raised by the pack."""


class PolicyError(LayerwiseOffloadError, ValueError):
    """A policy value, selector or file cannot be understood.

    Attributes:
        line: the line in the policy file, from 1; None for what did not come from a file.
        column: the column in that line, from 1; None as above.
    """

    def __init__(self, message: str, *, line: int | None = None, column: int | None = None) -> None:
        # What a person wrote may hold anything, and an error is one line that every log can print.
        super().__init__("".join(c if c.isprintable() else " " if c.isspace() else "�" for c in message))
        self.line = line
        self.column = column


class StrictPolicyError(PolicyError):
    """A strict policy asks for what this machine or workflow cannot do."""


class AttachError(LayerwiseOffloadError):
    """A placement cannot be attached to the model it was asked for."""


class IncompatibleError(LayerwiseOffloadError):
    """This ComfyUI lacks what the pack needs to place anything at all."""


class WeightFileError(LayerwiseOffloadError):
    """A model file has changed since it was loaded, and a weight that is read from it is not there any more."""


class LayerStoreError(LayerwiseOffloadError):
    """Weights cannot be written to where they could be read from again; the message is the end of a sentence."""


class ReportError(LayerwiseOffloadError, ValueError):
    """A report that was kept cannot be read, or its picture cannot be written."""


class WorkflowError(LayerwiseOffloadError, ValueError):
    """A workflow or a prompt cannot be understood."""


class TimelineError(LayerwiseOffloadError):
    """There is no timeline of a run."""
