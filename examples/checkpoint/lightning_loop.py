#!/usr/bin/env python3
"""PyTorch Lightning: a callback that saves and stops in time, and `ckpt_path` to go on."""

import argparse

import gsub_train
import lightning
import torch


class StopInTime(lightning.Callback):
    """Saves a checkpoint now and then, and when the job has to stop."""

    def __init__(self, folder, every):
        self.folder, self.every = folder, every

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        # True on all ranks where it is on one
        stopping = trainer.strategy.reduce_boolean_decision(gsub_train.stopping(), all=False)
        if stopping or trainer.global_step % self.every == 0:
            path = f"{self.folder}/{trainer.global_step}.ckpt"
            trainer.save_checkpoint(path)  # on all ranks: it may be sharded
            gsub_train.checkpointed(path, trainer.global_step)
        if stopping:
            trainer.should_stop = True


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.mse_loss(self.layer(batch), batch.sum(1, keepdim=True))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=500, help="steps between checkpoints")
    parser.add_argument("--folder", default="checkpoints")
    wanted = parser.parse_args()

    # Before the Trainer: Lightning leaves a handler of SIGUSR1 alone, and its own would requeue the job by itself
    gsub_train.watch()
    lightning.seed_everything(0)
    batches = torch.utils.data.DataLoader(torch.randn(320, 4), batch_size=32)
    trainer = lightning.Trainer(
        accelerator="auto",
        devices=1,
        max_steps=wanted.steps,
        callbacks=[StopInTime(wanted.folder, wanted.every)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    found = gsub_train.latest(wanted.folder, "*.ckpt")
    if found:
        print(f"goes on from {found}", flush=True)
    trainer.fit(Line(), batches, ckpt_path=found)
    if gsub_train.stopping() and trainer.global_step < wanted.steps:
        gsub_train.stop()
    print(f"final step {trainer.global_step}")


if __name__ == "__main__":
    main()
