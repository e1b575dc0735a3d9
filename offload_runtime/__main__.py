"""The command line of the runtime, which needs neither ComfyUI nor torch; `check` needs torch.

`python -m offload_runtime explain policy.offload.yaml --vram 12GB --components …` prints what a policy comes to.
`python -m offload_runtime place workflow.json --policy policy.offload.yaml -o placed.json` puts our Loaders into it.
`python -m offload_runtime report report.json -o report.svg` draws a report that ComfyUI has kept.
`python -m offload_runtime check` measures what this machine can do, on ComfyUI's device where ComfyUI is.
`python -m offload_runtime schema > web/policy.schema.json` exports the JSON Schema of policy files.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from .check_command import add_check
from .errors import LayerwiseOffloadError, PolicyError
from .policy import Policy, Source, SourceKind
from .policy.described import RAM, VRAM, described_components, described_machine, read_flags
from .policy.explain import explain
from .policy.files import parse_policy
from .policy.files.schema import json_schema
from .policy.report_command import add_report
from .workflow.command import add_place


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, or 1 with one sentence when something cannot be understood."""
    options = _parser().parse_args(arguments)
    try:
        text = options.run(options)
    except LayerwiseOffloadError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("stopped; nothing was kept\n")
        return 130
    sys.stdout.write(f"{text}\n")
    return 0


def _explain(options: argparse.Namespace) -> str:
    policy = _read(options.policy) if options.policy is not None else Policy()
    machine = described_machine(
        vram=options.vram,
        ram=options.ram,
        reserve=options.reserve,
        vram_used=options.vram_used,
        ram_used=options.ram_used,
        accelerators=options.accelerators,
        flags=read_flags(options.flags),
        dynamic=options.dynamic_vram,
        shared=options.shared_memory,
    )
    return explain(policy, machine, described_components(options.components, machine))


def _schema(options: argparse.Namespace) -> str:
    return json.dumps(json_schema(), indent=2, ensure_ascii=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m offload_runtime", description="Layerwise Offload", allow_abbrev=False
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_explain(commands)
    add_place(commands)
    add_report(commands)
    add_check(commands)
    schema = commands.add_parser("schema", allow_abbrev=False, help="print the JSON Schema of policy files")
    schema.set_defaults(run=_schema)
    return parser


def _add_explain(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "explain", allow_abbrev=False, help="print what a policy decides on a machine, and why"
    )
    command.add_argument(
        "policy", nargs="?", type=Path, help="a policy file; without one everything is automatic"
    )
    command.add_argument("--vram", help=f"device memory, 0B for none (default: {VRAM})")
    command.add_argument("--vram-used", help="device memory that other programs hold (default: none)")
    command.add_argument("--ram", default=RAM, help="host memory (default: %(default)s)")
    command.add_argument(
        "--ram-used", default="0B", help="host memory that other programs hold (default: none)"
    )
    command.add_argument(
        "--shared-memory", action="store_true", help="the GPU uses the host's memory, as on a Mac"
    )
    command.add_argument(
        "--dynamic-vram", action="store_true", help="ComfyUI has dynamic VRAM, as newer versions do"
    )
    command.add_argument("--reserve", help="device memory for activations (default: what ComfyUI keeps)")
    command.add_argument("--accelerators", default="1", help="how many there are (default: %(default)s)")
    command.add_argument("--flags", default="", help="ComfyUI's flags, such as --flags='--cpu-vae --novram'")
    command.add_argument(
        "--components",
        default="text_encoder=9.5GB,diffusion_model=12GB,vae=0.3GB",
        help="NAME=SIZE, or NAME=SIZE:LAYERS, with commas between (default: %(default)s)",
    )
    command.set_defaults(run=_explain)


def _read(path: Path) -> Policy:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PolicyError(f"{path} cannot be read: {error.strerror}") from None
    return parse_policy(data, Source(SourceKind.FILE, str(path)))


if __name__ == "__main__":
    sys.exit(main())
