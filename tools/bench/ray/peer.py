"""Ray Train's side of run: steps.cpp does the same under Troupe. Every step sleeps, sums a gradient over the workers, applies it, and
leaves a line "RANK PID STEP TIME" in a file of its process.
  peer.py WORKERS STEPS STEP_MS ELEMENTS CHECKPOINT_EVERY REPORT_EVERY DIRECTORY"""
import os
import sys
import tempfile
import time

os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray  # noqa: E402
import ray.train  # noqa: E402
import ray.train.torch  # noqa: E402


def train(job):
    import torch

    torch.set_num_threads(1)
    rank = ray.train.get_context().get_world_rank()
    workers = ray.train.get_context().get_world_size()
    log = open(os.path.join(job["directory"], f"log-{os.getpid()}"), "w", buffering=1)
    weights = torch.zeros(job["elements"])
    gradient = torch.zeros(job["elements"])
    step = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            saved = torch.load(os.path.join(directory, "state.pt"))
            step, weights = saved["step"], saved["weights"]
    while step < job["steps"]:
        step += 1
        time.sleep(job["step_ms"] / 1000)
        gradient.fill_(1.0)
        torch.distributed.all_reduce(gradient)
        weights += gradient / workers
        log.write(f"{rank} {os.getpid()} {step} {time.time():.6f}\n")
        if job["checkpoint_every"] and step % job["checkpoint_every"] == 0:
            # All ranks report equally often; one of them provides the state.
            with tempfile.TemporaryDirectory() as directory:
                kept = None
                if rank == 0:
                    torch.save({"step": step, "weights": weights}, os.path.join(directory, "state.pt"))
                    kept = ray.train.Checkpoint.from_directory(directory)
                ray.train.report({"weight": float(weights[0])}, checkpoint=kept)
        elif step % job["report_every"] == 0:
            ray.train.report({"weight": float(weights[0])})


def main():
    workers, steps, step_ms, elements, checkpoint_every, report_every, directory = sys.argv[1:]
    # Workers mostly sleep, so Ray may use as many processors as it wants.
    ray.init(num_cpus=int(workers) + 1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config={"steps": int(steps), "step_ms": float(step_ms), "elements": int(elements),
                           "checkpoint_every": int(checkpoint_every), "report_every": int(report_every), "directory": directory},
        scaling_config=ray.train.ScalingConfig(num_workers=int(workers)),
        run_config=ray.train.RunConfig(name="steps", storage_path=directory, failure_config=ray.train.FailureConfig(max_failures=-1)))
    with open(os.path.join(directory, "fit"), "w") as file:
        file.write(f"{time.time():.6f}")
    trainer.fit()


main()
