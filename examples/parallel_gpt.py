"""The small GPT over a mesh of three dimensions: pipeline, shard and tensor at once.

Run it (8 processes; on one machine they are started for you):

    python examples/parallel_gpt.py
    python examples/parallel_gpt.py --pipeline 2 --shard 1 --tensor 2 --max_steps 100
    torchrun --nnodes 2 --nproc-per-node 8 ... examples/parallel_gpt.py --pipeline 2 --shard 4 --tensor 2

The module is that of gpt.py, unchanged; the mesh has the slowest link outermost: stages, then data, then matrices.
"""

from __future__ import annotations

import argparse

from gpt import GPT, Text

import lightlib as L
from lightlib.strategies import MeshStrategy, Pipeline


def main() -> None:
    """Train for a while, then print the loss and the path of the checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for axis in ("pipeline", "shard", "tensor"):
        parser.add_argument(f"--{axis}", type=int, default=2)
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--num_nodes", type=int, default=1)
    parser.add_argument("--max_steps", type=int, default=40)
    args = parser.parse_args()

    L.seed_everything(0)
    strategy = MeshStrategy(
        pipeline=Pipeline(args.pipeline, schedule=args.schedule, microbatches=args.microbatches),
        shard=args.shard,
        tensor=args.tensor,
    )
    trainer = L.Trainer(
        strategy=strategy,
        devices=args.pipeline * args.shard * args.tensor // args.num_nodes,
        num_nodes=args.num_nodes,
        max_steps=args.max_steps,
        log_every_n_steps=min(50, args.max_steps),
        gradient_clip_val=1.0,
        val_check_interval=args.max_steps,
        check_val_every_n_epoch=None,
    )
    trainer.fit(GPT(depth=4), Text())
    if trainer.is_global_zero:
        print(f"validation loss {trainer.callback_metrics['val_loss']:.3f} after {trainer.global_step} steps")
        print(f"one full checkpoint: {trainer.checkpoint_callback.best_model_path}")


if __name__ == "__main__":
    main()
