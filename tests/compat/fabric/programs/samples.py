"""The samples that each process of a Fabric reads, by kind of loader, and its next random number."""

import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, SubsetRandomSampler


def samples(devices):
    """Read loaders of each kind for two epochs."""
    fabric = Fabric(accelerator="cpu", devices=devices, strategy="ddp")
    fabric.launch()
    fabric.seed_everything(7)
    data = torch.arange(11)
    loaders = {
        "in order": DataLoader(data, batch_size=2),
        "shuffled": DataLoader(data, batch_size=2, shuffle=True),
        "drop last": DataLoader(data, batch_size=2, shuffle=True, drop_last=True),
        "subset": DataLoader(data, batch_size=2, sampler=SubsetRandomSampler([1, 3, 5, 7, 9])),
    }
    loaders = {name: fabric.setup_dataloaders(loader) for name, loader in loaders.items()}
    off = DataLoader(data, batch_size=4, shuffle=True)
    loaders["off"] = fabric.setup_dataloaders(off, use_distributed_sampler=False)
    read = {name: [[batch.tolist() for batch in loader] for _ in range(2)] for name, loader in loaders.items()}
    found = [None] * devices
    seen = [
        read,
        {name: type(loader.sampler).__name__ for name, loader in loaders.items()},
        round(torch.rand(()).item(), 6),
    ]
    torch.distributed.all_gather_object(found, seen)
    return {"found": found}
