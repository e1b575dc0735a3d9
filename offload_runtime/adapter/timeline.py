"""The timeline of the last run: what was loaded, copied and computed when, as a Chrome trace."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from ..engine.chrome_trace import chrome_trace
from ..errors import TimelineError
from .runs import current_run

NOTHING = "the last run loaded and computed no placed component, so there is no timeline of it"
OVER = (
    "another run has begun since, and only the timeline of the last one is kept; "
    "run the workflow again and save it then"
)


class Timeline(NamedTuple):
    """A trace, and a name for its file."""

    name: str
    trace: dict[str, Any]


def timeline(began: float | None = None) -> Timeline:
    """Return what the last run did, as far as it is over; waits for nothing.

    Args:
        began: when the run began that is asked for, as its report says; None for the last one.

    Raises:
        TimelineError: it did nothing, or another one has begun since.
    """
    run = current_run()
    if began is not None and began != run.began:
        raise TimelineError(OVER)
    spans, unfinished = run.spans.read()
    if not spans:
        raise TimelineError(NOTHING)
    when = time.localtime(run.began)
    about = {"prompt": run.prompt or "", "began": time.strftime("%Y-%m-%dT%H:%M:%S", when)}
    trace = chrome_trace(spans, dropped=run.spans.dropped, unfinished=unfinished, about=about)
    return Timeline(time.strftime("layerwise-offload-timeline-%Y%m%d-%H%M%S.json", when), trace)
