"""Whether a prompt makes video with a VAE, read from the prompt that ComfyUI runs.

A VAE's name is what it is for, and the VAEs that image models share with video models do not tell. The prompt
often does: nodes that make a latent say how many frames it has, and the frames of a film come from video nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from .links import is_link, upstream

_COUNTS = ("length", "video_frames", "num_frames", "frames", "frame_count")
"""Inputs that hold a number of frames, in a node that also has a width and a height."""


class VaeUse(NamedTuple):
    """What a prompt says about what a VAE is used for.

    Attributes:
        frames: the largest number of frames that is named; None when nobody names one.
        video: whether something else speaks of video; None when nobody uses the VAE.
    """

    frames: int | None = None
    video: bool | None = None


NOT_SAID = VaeUse()
"""What is known without a prompt."""


def vae_use(prompt: Mapping[str, Any], node_id: str, output: int) -> VaeUse:
    """Tell what a prompt does with a VAE.

    Everything counts that the nodes depend on which take the VAE: both its latents and its images come from there.

    Args:
        prompt: node id → node, as in an API prompt.
        node_id: the node that hands out the VAE.
        output: the number of its output.
    """
    users = _users(prompt, node_id, output)
    before = {name: prompt[name] for user in users for name in upstream(prompt, [user, 0])}
    counts = {name: _count(prompt, node.get("inputs", {})) for name, node in before.items()}
    video = any(_speaks_of_video(node, counts[name]) for name, node in before.items())
    frames = max((count for count in counts.values() if count), default=None)
    if video and frames == 1:
        frames = None  # one frame here, and a film there
    return VaeUse(frames, video if users else None)


def _speaks_of_video(node: Mapping[str, Any], count: int | None) -> bool:
    """Tell whether a node that names no number of frames, or one that is only known later, belongs to video."""
    if count is None:
        return "video" in str(node.get("class_type")).lower()
    return not count


def _count(prompt: Mapping[str, Any], inputs: Mapping[str, Any]) -> int | None:
    """Return how many frames a node makes: None when it does not say, 0 when another node works it out."""
    if not {"width", "height"} <= inputs.keys():
        return None
    value = next((inputs[name] for name in _COUNTS if name in inputs), None)
    if value is not None and is_link(value):
        primitive = prompt.get(str(value[0]), {}).get("inputs", {})
        return _number(primitive.get("value")) or 0
    return _number(value)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _users(prompt: Mapping[str, Any], node_id: str, output: int) -> list[str]:
    """Return the nodes that use a VAE: not loaders and nodes without another link, which hand it on."""
    kind, waiting = prompt.get(node_id, {}).get("class_type"), [(node_id, output)]
    users: dict[str, None] = {}
    seen = set(waiting)
    for source in waiting:  # grows while it is walked
        for name in _fed_by(prompt, [source]):
            links = [value for value in prompt[name].get("inputs", {}).values() if is_link(value)]
            handed_on = (name, output if prompt[name].get("class_type") == kind else 0)
            hands_on = handed_on[1] == output or len(links) == 1
            if not hands_on or not any(_fed_by(prompt, [handed_on])):
                users[name] = None
            elif handed_on not in seen:
                seen.add(handed_on)
                waiting.append(handed_on)
    return list(users)


def _fed_by(prompt: Mapping[str, Any], sources: Iterable[tuple[str, int]]) -> Iterator[str]:
    for name, node in prompt.items():
        inputs = node.get("inputs", {}).values()
        if any(is_link(value) and (str(value[0]), value[1]) in sources for value in inputs):
            yield name
