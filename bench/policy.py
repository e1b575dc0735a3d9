"""How long it takes to resolve a policy, and to read one from a file. `python -m bench.policy`

The target of the design: 12 components in under a millisecond.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from offload_runtime.policy import ComponentFacts, MachineFacts, Policy, Source, SourceKind, resolve
from offload_runtime.policy.files import dump_policy, parse_policy

GB = 1024**3
NAMES = (
    *(
        "text_encoder",
        "text_encoder_2",
        "text_encoder_3",
        "image_encoder",
        "image_encoder_2",
        "diffusion_model",
    ),
    *("diffusion_model_2", "vae", "video_vae", "condition_image_encoder", "audio_vae", "vocoder"),
)
MACHINE = MachineFacts("cuda:0", True, 24 * GB, 23 * GB, 64 * GB, 60 * GB, inference_reserve=GB)
FILE = """
version: 1
vram_budget: 20GB
components:
  default: layerwise
  text_encoder_2, vae: resident
  image_encoder: {placement: offload, vram_budget: 1GB, host: staged}
"""


def policies() -> dict[str, Policy]:
    """Return the cases: nothing asked, a file, and a chain of nodes behind that file."""
    file = parse_policy(FILE, Source(SourceKind.FILE, "bench.offload.yaml"))
    node = Policy.from_widgets(Source(SourceKind.NODE, "node 1"), mode="memory", placements={"vae": "cpu"})
    overrides = [
        Policy.for_component(
            Source(SourceKind.OVERRIDE, f"node {i}"), name, placement="resident", host="pinned"
        )
        for i, name in enumerate(NAMES)
    ]
    return {
        "automatic": Policy(),
        "a file": file,
        "file, node, 12 overrides": file.extended(node, *overrides),
    }


def median_ms(call: Callable[[], object], runs: int = 300) -> tuple[float, float]:
    """Return the median and the 95th percentile of a call, in milliseconds."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times), sorted(times)[int(runs * 0.95)]


def main() -> None:
    """Print the table."""
    workflow = [
        ComponentFacts(name, "Model", (i + 1) * GB, 24, (i + 1) * GB * 19 // 20)
        for i, name in enumerate(NAMES)
    ]
    print(f"{'resolve 12 components':<34} {'median ms':>10} {'p95 ms':>10}")
    for name, policy in policies().items():
        median, p95 = median_ms(lambda policy=policy: resolve(policy, MACHINE, workflow))
        print(f"{name:<34} {median:>10.3f} {p95:>10.3f}")
    source = Source(SourceKind.FILE, "bench.offload.yaml")
    chain = policies()["file, node, 12 overrides"]
    for name, call in {
        "read a file": lambda: parse_policy(FILE, source),
        "write a file": lambda: dump_policy(chain),
    }.items():
        median, p95 = median_ms(call)
        print(f"{name:<34} {median:>10.3f} {p95:>10.3f}")


if __name__ == "__main__":
    main()
