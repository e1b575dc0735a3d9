"""Print the cross-check table: ``python -m tests.sim.crosscheck [system,…] [model,…]`` from the repository
root.

Needs COMFYUI_PATH for core's rows, and diffusers and accelerate for diffusers' rows.
"""

from __future__ import annotations

import sys
import warnings

from . import systems
from .published import MODELS, PUBLISHED, expected
from .systems import Row, simulate


def _line(system: str, model: str, want: Row, got: Row) -> str:
    return (
        f"{system:29} {model:9} {got.ms:9.2f} {want.ms:9.2f} {got.ms / want.ms - 1:+7.1%}"
        f" {got.weights:10.1f} {want.weights:9.1f} {got.weights / want.weights - 1:+7.1%}\n"
    )


def main(arguments: list[str]) -> None:
    chosen = arguments[0].split(",") if arguments else list(dict.fromkeys(system for system, _ in PUBLISHED))
    models = arguments[1].split(",") if len(arguments) > 1 else list(MODELS)
    sys.stdout.write(f"{'system':29} {'model':9} {'ms':>9} {'was':>9} {'':7} {'weight MB':>10} {'was':>9}\n")
    for system in chosen:
        for model in models:
            got = simulate(system, model)
            sys.stdout.write(_line(system, model, expected(system, model, systems.core_gathers()), got))
            sys.stdout.flush()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1:])
