"""pina-mathlab: a physics-informed network for a Poisson problem in one dimension."""

import json
import warnings

import torch
from lightning.pytorch import Callback, seed_everything
from pina import Condition, Trainer
from pina.domain import CartesianDomain
from pina.equation import Equation, FixedValue
from pina.model import FeedForward
from pina.operator import laplacian
from pina.problem import SpatialProblem
from pina.solver import PINN


def poisson(points, output):
    force = torch.sin(points.extract(["x"]) * torch.pi)
    return laplacian(output, points, components=["u"], d=["x"]) - force


class Poisson(SpatialProblem):
    output_variables = ["u"]  # noqa: RUF012  pina's own way
    spatial_domain = CartesianDomain({"x": [0, 1]})
    domains = {  # noqa: RUF012  pina's own way
        "left": CartesianDomain({"x": 0.0}),
        "right": CartesianDomain({"x": 1.0}),
        "inside": spatial_domain,
    }
    conditions = {  # noqa: RUF012  pina's own way
        "left": Condition(domain="left", equation=FixedValue(0.0)),
        "right": Condition(domain="right", equation=FixedValue(0.0)),
        "inside": Condition(domain="inside", equation=Equation(poisson)),
    }


class Losses(Callback):
    def __init__(self):
        self.train = []

    def on_train_epoch_end(self, trainer, pl_module):
        self.train.append(trainer.callback_metrics["train_loss"].item())


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    seed_everything(11)
    problem = Poisson()
    problem.discretise_domain(20, "grid", domains=["inside"])
    problem.discretise_domain(1, domains=["left", "right"])
    network = FeedForward(1, 1, layers=[10, 10])
    losses = Losses()
    trainer = Trainer(
        solver=PINN(problem, network),
        max_epochs=20,
        accelerator="cpu",
        train_size=1.0,
        val_size=0.0,
        test_size=0.0,
        callbacks=[losses],
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.train()
    print(json.dumps({"loss": losses.train[-1], "losses": losses.train}))
