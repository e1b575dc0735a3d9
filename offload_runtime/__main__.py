"""The command line of the runtime, which needs neither ComfyUI nor torch.

`python -m offload_runtime explain policy.offload.yaml --vram 12GB --components …` prints what a policy comes to.
`python -m offload_runtime schema > web/policy.schema.json` exports the JSON Schema of policy files.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from .errors import PolicyError
from .policy import Policy, Source, SourceKind
from .policy.explain import described_components, described_machine, explain
from .policy.files import parse_policy
from .policy.files.schema import json_schema


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, or 1 with one sentence when something cannot be understood."""
    options = _parser().parse_args(arguments)
    try:
        text = options.run(options)
    except PolicyError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{text}\n")
    return 0


def _explain(options: argparse.Namespace) -> str:
    policy = _read(options.policy) if options.policy is not None else Policy()
    flags = _flags(options.flags)
    machine = described_machine(options.vram, options.ram, options.reserve, flags, options.accelerators)
    return explain(policy, machine, described_components(options.components, machine))


def _schema(options: argparse.Namespace) -> str:
    return json.dumps(json_schema(), indent=2, ensure_ascii=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m offload_runtime", description="Layerwise Offload")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("explain", help="print what a policy decides on a machine, and why")
    command.add_argument(
        "policy", nargs="?", type=Path, help="a policy file; without one everything is automatic"
    )
    command.add_argument("--vram", default="12GB", help="device memory, 0B for none (default: %(default)s)")
    command.add_argument("--ram", default="32GB", help="host memory (default: %(default)s)")
    command.add_argument("--reserve", help="device memory for activations (default: what ComfyUI keeps)")
    command.add_argument("--accelerators", type=int, default=1, help="how many there are (default: 1)")
    command.add_argument("--flags", default="", help="ComfyUI's flags, such as --flags='--cpu-vae --novram'")
    command.add_argument(
        "--components",
        default="text_encoder=9.5GB,transformer=12GB,vae=0.3GB",
        help="NAME=SIZE, or NAME=SIZE:LAYERS, with commas between (default: %(default)s)",
    )
    command.set_defaults(run=_explain)
    schema = commands.add_parser("schema", help="print the JSON Schema of policy files")
    schema.set_defaults(run=_schema)
    return parser


def _read(path: Path) -> Policy:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PolicyError(f"{path} cannot be read: {error.strerror}") from None
    return parse_policy(data, Source(SourceKind.FILE, str(path)))


def _flags(text: str) -> tuple[str, ...]:
    """Return the flags as they were typed, each with its value behind it."""
    flags: list[str] = []
    for word in text.replace("=", " ").split():
        if word.startswith("--"):
            flags.append(word)
        elif flags:
            flags[-1] += f" {word}"
        else:
            raise PolicyError(f"--flags: “{word}” is not a flag of ComfyUI; they start with --")
    return tuple(flags)


if __name__ == "__main__":
    sys.exit(main())
