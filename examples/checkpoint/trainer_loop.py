#!/usr/bin/env python3
"""Hugging Face's Trainer: a callback that saves and stops in time, and `resume_from_checkpoint` to go on."""

import argparse

import gsub_train
import torch
import transformers


class StopInTime(transformers.TrainerCallback):
    """Saves a checkpoint when the job has to stop, and tells of each that the Trainer has saved."""

    def on_step_end(self, args, state, control, **more):
        if self.any_rank(gsub_train.stopping()):
            control.should_save = True
            control.should_training_stop = True

    def on_save(self, args, state, control, **more):
        path = f"{args.output_dir}/checkpoint-{state.global_step}"
        gsub_train.checkpointed(path, state.global_step)

    def any_rank(self, here):
        """Whether any rank says so. All hear of a signal, but not at the same step: none may stop alone."""
        if not torch.distributed.is_initialized():
            return here
        flag = torch.tensor(int(here), device="cuda" if torch.cuda.is_available() else "cpu")
        torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
        return bool(flag.item())


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        out = self.layer(x)
        return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=500, help="steps between checkpoints")
    parser.add_argument("--folder", default="checkpoints")
    wanted = parser.parse_args()

    gsub_train.watch()
    transformers.set_seed(0)
    points = [{"x": x, "labels": x.sum(0, keepdim=True)} for x in torch.randn(320, 4)]
    arguments = transformers.TrainingArguments(
        output_dir=wanted.folder,
        max_steps=wanted.steps,
        save_strategy="steps",
        save_steps=wanted.every,
        save_total_limit=2,
        per_device_train_batch_size=32,
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = transformers.Trainer(Line(), arguments, train_dataset=points, callbacks=[StopInTime()])
    # The Trainer saves its own state last: a folder without it was cut off
    found = gsub_train.latest(wanted.folder, "checkpoint-*", having="trainer_state.json")
    if found:
        print(f"goes on from {found}", flush=True)
    trainer.train(resume_from_checkpoint=found)
    if gsub_train.stopping() and trainer.state.global_step < wanted.steps:
        gsub_train.stop()
    print(f"final step {trainer.state.global_step}")


if __name__ == "__main__":
    main()
