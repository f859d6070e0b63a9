"""Methods that a third party's accelerator inherits, with their default results."""

import pytest
import torch

from lightlib.accelerators import Accelerator, CPUAccelerator, CUDAAccelerator, MPSAccelerator


class Imagined(Accelerator):
    @staticmethod
    def parse_devices(devices):
        return int(devices)

    @staticmethod
    def get_parallel_devices(devices):
        return [torch.device("meta", index) for index in range(devices)]

    @staticmethod
    def auto_device_count():
        return 3

    @staticmethod
    def is_available():
        return True

    @staticmethod
    def name():
        return "imagined"


def test_the_interface_alone_is_not_an_accelerator():
    with pytest.raises(TypeError, match="abstract"):
        Accelerator()


def test_plain_defaults():
    accelerator, device = Imagined(), torch.device("meta", 0)
    assert accelerator.default_backend == "gloo"
    assert accelerator.describe(device) == "meta:0"
    assert accelerator.get_device_stats(device) == {}
    assert accelerator.rng_state() == {}
    accelerator.setup_device(device)
    accelerator.setup(None)
    accelerator.set_rng_state({"cuda": []})
    accelerator.synchronize()
    accelerator.teardown()


@pytest.mark.parametrize("kind", [CPUAccelerator, CUDAAccelerator, MPSAccelerator])
def test_questions_are_answered_without_an_instance(kind):
    assert kind.name() in {"cpu", "cuda", "mps"}
    assert isinstance(kind.is_available(), bool)
    assert isinstance(kind.auto_device_count(), int)
