"""How far the machine could follow: the sentences of a decision that say what was asked for in vain."""

from __future__ import annotations

from .arguments import Argument, ExplicitArguments
from .components import Placement
from .decision import Plan
from .facts import ComponentFacts, MachineFacts
from .quantities import Budget, format_bytes
from .settings import Setting
from .situation import Situation


def shortfall(placement: Placement, planned: int, wanted: int, now: Situation) -> str:
    """Say that a component gets less device memory than its placement takes; "" when it gets it all."""
    if planned >= wanted:
        return ""
    has, takes = format_bytes(planned), format_bytes(wanted)
    if placement is Placement.LAYERWISE:
        return (
            f"two of its layers take {takes} and {has} are left of {now.room.text}, so layers move in parts"
        )
    return f"only {has} of its {takes} fit in {now.room.text}"


def budget_limits(
    budget: Argument | None,
    component: ComponentFacts,
    placement: Placement,
    planned: int,
    machine: MachineFacts,
) -> list[str]:
    """Say what is in the way of a component's own VRAM budget; what computes on the CPU keeps any."""
    if budget is None or not isinstance(budget.value, Budget) or placement is Placement.CPU:
        return []
    if not machine.accelerator or component.on_cpu:
        return [f"a VRAM budget ({budget.value} from {budget.asked_by}) has no meaning on the CPU"]
    if exceeds_card(budget.value, machine):
        total = format_bytes(machine.vram_total)
        return [f"{budget.asked_by} asks for {budget.value} of VRAM, and the card has {total}"]
    wanted = min(budget.value.resolve(machine.vram_total), component.device_bytes)
    if planned < wanted:
        return [f"{format_bytes(planned)} of that budget are left beside the other components"]
    return []


def least_limits(component: ComponentFacts, allowed: int) -> list[str]:
    """Say that a component takes more than its budget, because what is there at a time does."""
    if allowed >= component.least_bytes:
        return []
    least = format_bytes(component.least_bytes)
    if component.can.budget_when_whole:
        what = "what ComfyUI always loads of it, and the buffers that the rest passes through, take"
        return [f"{what} {least} of VRAM, which is more than its budget"]
    return [f"its largest layer, moved in parts, takes {least} of VRAM, which is more than its budget"]


def device_limits(device: Argument | None, machine: MachineFacts) -> list[str]:
    """Say why a component is not computed by the accelerator that was asked for."""
    if device is None or machine.device.partition(":")[2] == str(device.value):
        return []
    asked = f"gpu:{device.value} from {device.asked_by}"
    count = machine.accelerators if machine.accelerator else 0
    if int(device.value) < count:  # type: ignore[arg-type]
        return [f"{asked} is left alone: components are placed on ComfyUI's own device, {machine.device}"]
    have = "no accelerator" if not count else f"{count} accelerator{'s' if count > 1 else ''}"
    return [f"{asked} is not there: this machine has {have} and computes on {machine.device}"]


_EVERYTHING = ("all", "default")


def host_limits(host: Argument | None, component: ComponentFacts, placement: Placement) -> list[str]:
    """Say why nothing of a component waits where it was asked to; which tier a streamed one gets is said with it.

    What was asked for everything is for what streams, whatever that is.
    """
    keeper = component.can.keeper if placement is not Placement.CPU else ""
    if host is None or (not keeper and (placement is Placement.LAYERWISE or host.selector in _EVERYTHING)):
        return []
    why = f"{keeper} keeps the weights on the host" if keeper else "it is not streamed"
    return [f"host {host.value} from {host.asked_by} has no effect: {why}"]


def workflow_notes(explicit: ExplicitArguments, machine: MachineFacts) -> tuple[str, ...]:
    """Say what is in the way of the settings that hold for the workflow as a whole."""
    won = explicit.winner(Setting.TOTAL_BUDGET)
    if won is None or not isinstance(won.value, Budget):
        return ()
    if not machine.accelerator:
        return (f"The VRAM budget of {won.value} from {won.asked_by} has no meaning on the CPU.",)
    if exceeds_card(won.value, machine):
        total = format_bytes(machine.vram_total)
        return (f"{won.asked_by} asks for a VRAM budget of {won.value}, and the card has {total}.",)
    return ()


def exceeds_card(budget: Budget, machine: MachineFacts) -> bool:
    """Tell whether a budget is an amount that the card does not have."""
    return budget.bytes is not None and budget.bytes > machine.vram_total


def refusal(plan: Plan, strict: Argument | None) -> str:
    """Return why a strict policy refuses a plan; "" when all that was asked is done."""
    wrong = [f"{decision.component}: {limit}" for decision in plan for limit in decision.limits]
    wrong += [note.rstrip(".") for note in plan.notes]
    if not wrong:
        return ""
    by = f" ({strict.asked_by})" if strict is not None else ""
    return (
        f"the policy is strict{by}, and this machine cannot do all of it: {'; '.join(wrong)}. Change these "
        "values, or switch strict off to get as close to them as possible"
    )
