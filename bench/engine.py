"""The engine beside its peers on a simulated card: `python -m bench.engine [model,…] [--profile rtx4090|h200]`

Everything here is simulated (see `tests/sim/README.md`): no number is a measurement of a GPU. Times are of the second
run, but for the row of the first use. The bound is that of `engine_bound`, for the same layers on the device and the
same host memory; in a loop, what the pass before has left in the slots is not copied again, so a run can be a little
below it. ComfyUI and diffusers also copy the token table.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence

from .engine_bound import Work
from .engine_cases import BUDGETS, HALF, MODELS, OWN, Case, bound, makes_sense, run, work_of
from .engine_peers import PEERS, can_run, figures
from .engine_placed import half_resident

PROFILES = ("rtx4090", "h200")
HEADER = ("ms", "bound", "x bound", "layers MB", "weights MB", "copied MB")


def line(name: str, host: str, cells: Sequence[float | None], source: str = "") -> str:
    """Format a row of the table; what is not known stays empty."""
    digits = (1, 1, 3, 0, 0, 0)
    numbers = [
        f"{'' if cell is None else format(cell, f'.{n}f'):>11}" for cell, n in zip(cells, digits, strict=True)
    ]
    return f"  {name:23} {host:9}{''.join(numbers)}  {source}".rstrip()


def print_ours(model: str, profile: str, work: Work) -> None:
    """Run and print the engine's rows for one model."""
    for name, budget, first in (("first use", OWN, True), *((budget, budget, False) for budget in BUDGETS)):
        for pinned in (True, False):
            case = Case(model, profile, budget, pinned, first=first)
            if not makes_sense(case):
                continue
            got, least = run(case), bound(case, work)
            cells = (got.ms, least, got.ms / least, got.layers, got.weights, got.copied)
            print(line(f"ours, {name}", "pinned" if pinned else "pageable", cells), flush=True)


def print_peers(model: str, profile: str, work: Work, *, running: bool) -> None:
    """Print the peers' rows for one model."""
    for peer in PEERS:
        found = figures(peer, model, profile, run=running)
        if found is None:
            continue
        row, source = found
        least = bound(Case(model, profile, pinned=peer.pinned), work)
        ratio = None if peer.system == "resident" else row.ms / least
        cells = (row.ms, None if ratio is None else least, ratio, None, row.weights, row.copied)
        print(line(peer.name, "pinned" if peer.pinned else "pageable", cells, source), flush=True)


def print_placed(model: str, profile: str, work: Work) -> None:
    """Run and print the row of the pack inside ComfyUI, which holds the budget and loads the model."""
    row, least = half_resident(model, profile), bound(Case(model, profile, HALF), work)
    cells = (row.ms, least, row.ms / least, None, row.weights, row.copied)
    print(line("ComfyUI with ours, half", "pinned", cells, "run here"), flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="The engine beside its peers, on a simulated card.")
    parser.add_argument("models", nargs="?", default=",".join(MODELS), help="some of %(default)s")
    parser.add_argument("--profile", choices=PROFILES, help="the card; both if not given")
    parser.add_argument(
        "--peers", choices=("run", "published", "none"), default="run",
        help="run those that can be run here, or only show published figures, or leave peers out",
    )  # fmt: skip
    given = parser.parse_args()
    unknown = set(given.models.split(",")) - set(MODELS)
    if unknown:
        parser.error(f"no model is called {', '.join(sorted(unknown))}; known: {', '.join(MODELS)}")
    warnings.simplefilter("ignore")
    for profile in (given.profile,) if given.profile else PROFILES:
        for model in given.models.split(","):
            print(f"\n{model} on the simulated {profile}")
            print(f"  {'':23} {'masters':9}{''.join(f'{title:>11}' for title in HEADER)}")
            work = work_of(model, profile)
            print_ours(model, profile, work)
            if given.peers == "run" and can_run("comfy"):
                print_placed(model, profile, work)
            if given.peers != "none":
                print_peers(model, profile, work, running=given.peers == "run")


if __name__ == "__main__":
    main()
