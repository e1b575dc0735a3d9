"""The device behaves as CUDA's does: placement, mixing, dtypes, views, parameters, subclasses."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from . import Accelerator
from .tensor import SimTensor


def test_one_card_at_a_time(sim: Accelerator) -> None:
    with pytest.raises(RuntimeError, match="already switched on"), Accelerator():
        pass


def test_tensors_need_a_card_that_is_on() -> None:
    with Accelerator() as sim:
        left_over = torch.ones(2, device=sim.device)
    with pytest.raises(RuntimeError, match="No simulated accelerator"):
        left_over + 1
    with Accelerator(), pytest.raises(RuntimeError, match="was switched off"):
        left_over + 1


def test_everything_patched_is_put_back() -> None:
    before = {
        name: getattr(torch.Tensor, name) for name in ("copy_", "fill_", "pin_memory", "data", "__setitem__")
    }
    factories = (torch.empty, torch.tensor, torch.Stream, torch.Event, torch.accelerator.synchronize)
    with Accelerator():
        assert torch.Tensor.copy_ is not before["copy_"]
        assert torch.empty is not factories[0]
    assert {name: getattr(torch.Tensor, name) for name in before} == before
    now = (torch.empty, torch.tensor, torch.Stream, torch.Event, torch.accelerator.synchronize)
    assert all(a is b for a, b in zip(factories, now, strict=True))


@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.empty(3, device=d),
        lambda d: torch.zeros(2, 2, device=d),
        lambda d: torch.arange(5, device=d),
        lambda d: torch.tensor([1.0, 2.0], device=d),
        lambda d: torch.as_tensor([1, 2], device=d),
        lambda d: torch.full((2,), 3, device=d),
        lambda d: torch.linspace(0, 1, 5, device=d),
        lambda d: torch.randn(4, device=d),
        lambda d: torch.eye(3, device=d),
        lambda d: torch.ones(3).to(d),
        lambda d: torch.ones(3).to(d, torch.float16),
        lambda d: torch.empty_like(torch.ones(3), device=d),
        lambda d: torch.ones(2, device=d).new_tensor([1.0]),
        lambda d: torch.ones(2, device=d).new_zeros(4),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_factories_make_device_tensors(sim: Accelerator, make: Any, inference: bool) -> None:
    with torch.inference_mode(inference):
        tensor = make(sim.device)
        assert tensor.device == sim.device
        assert isinstance(tensor, SimTensor)
        host = tensor.cpu()
    assert type(host) is torch.Tensor
    assert host.shape == tensor.shape
    assert host.dtype == tensor.dtype


def test_arange_keeps_its_values(sim: Accelerator) -> None:
    assert torch.arange(2, 9, 3, device=sim.device).tolist() == [2, 5, 8]


@pytest.mark.parametrize(
    "mix",
    [
        lambda a, b: a + b,
        lambda a, b: b + a,
        lambda a, b: a @ b,
        lambda a, b: torch.cat([a, b]),
        lambda a, b: torch.where(b > 0, a, a),
        lambda a, b: nn.functional.linear(a, b),
        lambda a, b: nn.functional.embedding(b.long().clamp(0, 1), a),
        lambda a, b: a.add_(b),
        lambda a, b: b.add_(a),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_mixing_devices_raises(sim: Accelerator, mix: Any, inference: bool) -> None:
    with torch.inference_mode(inference):
        ours, host = torch.ones(2, 2, device=sim.device), torch.ones(2, 2)
        with pytest.raises(RuntimeError, match=r"same device.*sim:0 and cpu"):
            mix(ours, host)


def test_what_cuda_takes_from_the_host_is_taken(sim: Accelerator) -> None:
    ours = torch.arange(4.0, device=sim.device)
    assert (ours + torch.tensor(1.0)).tolist() == [1, 2, 3, 4]
    assert ours[torch.tensor([0, 2])].tolist() == [0, 2]
    assert ours[[3, 1]].tolist() == [3, 1]
    ours[1] = torch.tensor(9.0)
    ours[torch.tensor([0])] = 7.0
    assert ours.tolist() == [7, 9, 2, 3]


def test_meta_tensors_do_not_mix_in(sim: Accelerator) -> None:
    with pytest.raises(RuntimeError, match="sim:0 and meta"):
        torch.ones(2, device=sim.device) + torch.ones(2, device="meta")


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool,
     torch.float8_e4m3fn],
)  # fmt: skip
def test_dtypes_survive_the_trip(sim: Accelerator, dtype: torch.dtype) -> None:
    host = torch.tensor([0.0, 1.0, 2.0]).to(dtype)
    back = host.to(sim.device).cpu()
    assert back.dtype == dtype
    assert torch.equal(back.view(torch.uint8), host.view(torch.uint8))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_tensors_made_after_ours_go_where_they_are_told(sim: Accelerator, device: str) -> None:
    ours = torch.ones(3, device=sim.device)
    for made in (torch.empty_like(ours, device=device), ours.new_zeros(3, device=device)):
        assert type(made) is torch.Tensor
        assert made.device.type == device


def test_views_share_memory_and_in_place_writes_show(sim: Accelerator) -> None:
    base = torch.zeros(4, 6, device=sim.device)
    live = sim.memory.live
    view = base.view(torch.uint8).view(torch.float32)[1:3, ::2].transpose(0, 1)
    assert sim.memory.live == live
    view.fill_(2)
    assert base.sum().item() == 12
    assert view.untyped_storage() == base.untyped_storage()
    assert base[1].data_ptr() - base.data_ptr() == 24
    assert base.is_contiguous()
    assert not view.is_contiguous()


@pytest.mark.parametrize(("made_inside", "viewed_inside"), [(False, True), (True, False)])
def test_views_are_inference_tensors_when_their_base_is(
    sim: Accelerator, made_inside: bool, viewed_inside: bool
) -> None:
    with torch.inference_mode(made_inside):
        base = torch.ones(4, device=sim.device)
    with torch.inference_mode(viewed_inside):
        view = base[1:3].view(2, 1)
        assert view.is_inference() == base.is_inference() == made_inside
        assert (view + 1).is_inference() == viewed_inside


def test_restriding_in_place_is_followed(sim: Accelerator) -> None:
    tensor = torch.zeros(2, 3, device=sim.device)
    tensor.t_()
    assert tensor.shape == (3, 2)
    tensor.unsqueeze_(0)
    assert tensor.shape == (1, 3, 2)
    out = torch.empty(0, device=sim.device)
    torch.add(torch.ones(5, device=sim.device), 1, out=out)
    assert out.tolist() == [2] * 5


def test_numbers_are_the_cpu_numbers(sim: Accelerator) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(8 * 16, 5),
        nn.LayerNorm(5),
    )
    picture = torch.randn(2, 3, 4, 4)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            expected = net.cpu()(picture)
            got = net.to(sim.device)(picture.to(sim.device))
            assert got.device == sim.device
            assert torch.equal(got.cpu(), expected)


@pytest.mark.parametrize("inference", [False, True])
def test_attention_is_one_kernel_with_cpu_numbers(sim: Accelerator, inference: bool) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 16, 8)
    with torch.inference_mode(inference):
        expected = nn.functional.scaled_dot_product_attention(q, k, v)
        ours = [t.clone().to(sim.device) for t in (q, k, v)]
        kernels = sim.timeline.kernels()
        got = nn.functional.scaled_dot_product_attention(*ours)
        assert sim.timeline.kernels() - kernels == 1
        assert torch.equal(got.cpu(), expected)


def test_module_to_keeps_parameters_as_objects(sim: Accelerator) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    net[0].weight.mark = "kept"
    before = {name: id(p) for name, p in net.named_parameters()}
    values = {name: p.detach().clone() for name, p in net.state_dict().items()}
    for device in (sim.device, torch.device("cpu"), sim.device):
        net.to(device)
        assert {name: id(p) for name, p in net.named_parameters()} == before
        assert all(isinstance(p, nn.Parameter) and p.device == device for p in net.parameters())
        assert all(p.requires_grad for p in net.parameters())
        assert all(buffer.device == device for buffer in net.buffers())
        assert net[0].weight.mark == "kept"
        assert all(torch.equal(net.state_dict()[name].cpu(), value) for name, value in values.items())
    net.cpu()
    assert all(type(p) is nn.Parameter for p in net.parameters())
    assert sim.memory.live == 0


def test_half_and_device_in_one_call(sim: Accelerator) -> None:
    layer = nn.Linear(4, 4)
    weight = layer.weight
    layer.to(sim.device, torch.float16)
    assert layer.weight is weight
    assert layer.weight.dtype == torch.float16


def test_state_dict_loads_across_devices(sim: Accelerator) -> None:
    source, target = nn.Linear(3, 3), nn.Linear(3, 3).to(sim.device)
    target.load_state_dict(source.state_dict())
    assert torch.equal(target.weight.cpu(), source.weight)
    assigned = nn.Linear(3, 3)
    assigned.load_state_dict(target.state_dict(), assign=True)
    assert assigned.weight.device == sim.device
    assert isinstance(assigned.weight, nn.Parameter)


def test_parameters_made_on_the_device(sim: Accelerator) -> None:
    parameter = nn.Parameter(torch.ones(2, device=sim.device), requires_grad=False)
    assert isinstance(parameter, nn.Parameter)
    module = nn.Module()
    module.register_parameter("p", parameter)
    assert module.p is parameter
    twin = copy.deepcopy(module)
    assert twin.p.device == sim.device
    assert isinstance(twin.p, nn.Parameter)
    assert twin.p.untyped_storage() != parameter.untyped_storage()


def test_swapping_parameter_entries_runs_on_the_device(sim: Accelerator) -> None:
    layer = nn.Linear(4, 4)
    with torch.inference_mode():
        given = torch.randn(2, 4)
        expected = layer(given)
        host = dict(layer._parameters)
        for name, p in host.items():
            layer._parameters[name] = nn.Parameter(p.to(sim.device), requires_grad=False)
        got = layer(given.to(sim.device))
        layer._parameters.update(host)
    assert torch.equal(got.cpu(), expected)
    assert all(layer._parameters[name] is p for name, p in host.items())


@pytest.mark.parametrize("inference", [False, True])
def test_copies_in_bulk_are_copies(sim: Accelerator, inference: bool) -> None:
    with torch.inference_mode(inference):
        host = [torch.full((4,), float(i)).pin_memory() for i in range(3)]
        ours = [torch.empty(4, device=sim.device) for _ in host]
        torch._foreach_copy_(ours, host, non_blocking=True)
        assert [t.tolist() for t in ours] == [[0] * 4, [1] * 4, [2] * 4]
    assert sim.timeline.moved("to_device") == 48


def test_pinned_memory_can_be_made_in_every_way(sim: Accelerator) -> None:
    like = torch.zeros(3)
    for made in (
        torch.empty(3, pin_memory=True),
        torch.zeros(3, pin_memory=True),
        torch.empty_like(like, pin_memory=True),
        torch.tensor([1.0], pin_memory=True),
        like.new_empty(3, pin_memory=True),
        like.pin_memory(),
    ):
        assert made.is_pinned()
        assert type(made) is torch.Tensor
    assert not like.is_pinned()
    with pytest.raises(RuntimeError, match="only dense CPU tensors"):
        torch.ones(1, device=sim.device).pin_memory()


class Tagged(torch.Tensor):
    """A subclass without a dispatch of its own, as GGUF loaders use."""


def test_plain_subclasses_stay_what_they_are(sim: Accelerator) -> None:
    tagged = torch.arange(3.0).as_subclass(Tagged)
    ours = tagged.to(sim.device)
    assert isinstance(ours, Tagged)
    assert isinstance(ours, SimTensor)
    assert (ours + 1).tolist() == [1, 2, 3]
    assert isinstance(ours.cpu(), Tagged)
    assert not isinstance(ours.cpu(), SimTensor)


class Packed(torch.Tensor):
    """A wrapper with a dispatch of its own around the data, as quantised tensors are."""

    @staticmethod
    def __new__(cls, data: torch.Tensor, scale: torch.Tensor) -> Packed:
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=torch.float32, device=data.device)

    def __init__(self, data: torch.Tensor, scale: torch.Tensor) -> None:
        self.packed, self.scale = data, scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default:
            device = kwargs["device"]
            return cls(args[0].packed.to(device), args[0].scale.to(device))
        if func is torch.ops.aten.detach.default:
            return cls(args[0].packed, args[0].scale)
        plain = [a.packed.float() * a.scale if isinstance(a, cls) else a for a in args]
        return func(*plain, **(kwargs or {}))


def test_quantised_wrappers_move_and_compute(sim: Accelerator) -> None:
    packed = Packed(torch.tensor([[1, 2], [3, 4]], dtype=torch.int8), torch.tensor(0.5))
    ours = packed.to(sim.device)
    assert type(ours) is Packed
    assert ours.device == sim.device
    assert isinstance(ours.packed, SimTensor)
    result = torch.mm(torch.ones(1, 2, device=sim.device), ours)
    assert result.tolist() == [[2.0, 3.0]]
    with pytest.raises(RuntimeError, match="same device"):
        torch.mm(torch.ones(1, 2, device=sim.device), packed)


def test_host_only_views_of_device_memory_are_refused(sim: Accelerator) -> None:
    with pytest.raises(TypeError, match="to numpy"):
        torch.ones(2, device=sim.device).numpy()
    assert torch.ones(2, device=sim.device).numpy(force=True).tolist() == [1, 1]
    assert "sim:0" in repr(torch.ones(2, device=sim.device))
    assert f"{torch.tensor(1.5, device=sim.device):.2f}" == "1.50"


def test_generic_code_finds_the_device(sim: Accelerator) -> None:
    assert torch.accelerator.current_accelerator() == torch.device("sim")
    module = torch.get_device_module(sim.device)
    assert module.is_available()
    assert module.mem_get_info() == (sim.cap, sim.cap)
    assert torch.ones(1, device=sim.device).is_sim
    with torch.device("meta"):
        assert torch.empty(2).is_meta
    with torch.device("sim"):
        assert torch.empty(2).device == sim.device


@pytest.mark.card(shapes=True)
def test_shapes_cost_nothing(sim: Accelerator) -> None:
    """Eight gibibytes of weights in a process that could not hold twice that."""
    weight = torch.empty(65536, 65536, dtype=torch.float16)
    given = torch.ones(1, 65536, dtype=torch.float16).to(sim.device)
    with torch.inference_mode():
        result = nn.functional.linear(given, weight.to(sim.device))
    assert result.shape == (1, 65536)
    assert sim.memory.peak > 8 << 30
    assert result.cpu().sum() == 0
    assert result[0, 0].item() == 0
    with pytest.raises(NotImplementedError, match="depends on data"):
        result.nonzero()
