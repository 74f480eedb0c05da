#!/usr/bin/env python3
"""A loop of one's own in PyTorch that stops in time and goes on: one process, or the ranks of torchrun."""

import argparse
import os

import gsub_train
import torch
import torch.distributed as dist


def any_rank(here):
    """Whether any rank says so. All hear of a signal, but not at the same step: none may stop alone."""
    if not dist.is_initialized():
        return here
    flag = torch.tensor(int(here), device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag.item())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=500, help="steps between checkpoints")
    parser.add_argument("--folder", default="checkpoints")
    wanted = parser.parse_args()

    gsub_train.watch()  # from here on; `stopping` would do it at the first step
    device, rank, ranks = torch.device("cpu"), 0, 1
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if dist.is_torchelastic_launched():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1).to(device)
    together = torch.nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    done, loss = 0, torch.tensor(torch.nan)
    found = gsub_train.latest(wanted.folder, "*.pt")
    if found:
        state = torch.load(found, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
        print(f"goes on from {found}, step {done}", flush=True)

    for step in range(done + 1, wanted.steps + 1):
        # Each step's data depend on the step alone. Where they do not, what they depend on belongs in the checkpoint
        numbers = torch.Generator().manual_seed(step * ranks + rank)
        inputs = torch.randn(32, 4, generator=numbers).to(device)
        loss = torch.nn.functional.mse_loss(together(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        stopping = any_rank(gsub_train.stopping())
        if step % wanted.every == 0 or stopping:
            print(f"step {step} loss {loss.item():.5f}", flush=True)
            if rank == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                with gsub_train.saving(f"{wanted.folder}/{step}.pt", step) as part:
                    torch.save(state, part)
            if dist.is_initialized():
                dist.barrier()  # no rank ends before the checkpoint is there
        if stopping and step < wanted.steps:
            gsub_train.stop()
    print(f"final loss {loss.item():.9f} after {wanted.steps} steps")


if __name__ == "__main__":
    main()
