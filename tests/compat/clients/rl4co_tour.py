"""rl4co: an attention model that learns short tours by REINFORCE."""

import json
import logging
import warnings

import torch
from lightning.pytorch import seed_everything
from rl4co.envs import TSPEnv
from rl4co.envs.routing import TSPGenerator
from rl4co.models import REINFORCE, AttentionModelPolicy
from rl4co.utils import RL4COTrainer

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    seed_everything(13)
    env = TSPEnv(TSPGenerator(num_loc=8))
    policy = AttentionModelPolicy(env_name=env.name, embed_dim=16, num_encoder_layers=1, num_heads=2)
    model = REINFORCE(
        env,
        policy,
        baseline="rollout",
        batch_size=32,
        train_data_size=128,
        val_data_size=64,
        test_data_size=64,
        optimizer_kwargs={"lr": 1e-3},
    )
    trainer = RL4COTrainer(
        max_epochs=2,
        accelerator="cpu",
        devices=1,
        logger=None,
        precision="32-true",
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    tested = trainer.test(model, verbose=False)
    trainer.save_checkpoint("tour.ckpt")
    again = REINFORCE.load_from_checkpoint("tour.ckpt", load_baseline=False, weights_only=False)
    print(
        json.dumps(
            {
                "loss": metrics["train/loss"],
                "reward": metrics["val/reward"],
                "tested": tested,
                "loaded": sum(parameter.sum().item() for parameter in again.policy.parameters()),
            }
        )
    )
