"""Trains on a CSV table with XGBoost's own Python package: one process of a distributed run, started by `run`."""
import json
import sys
import time

import numpy
import xgboost

table_path, rank, world, rounds, parameters, tracker, report = sys.argv[1:8]
rank, world, rounds = int(rank), int(world), int(rounds)


class clock(xgboost.callback.TrainingCallback):
    """Records when each round ended."""

    def __init__(self):
        self.times = []

    def after_iteration(self, model, epoch, evals_log):
        self.times.append(time.time())
        return False


def main():
    table = numpy.loadtxt(table_path, delimiter=",", skiprows=1, dtype=numpy.float32)
    held_out = len(table) // 10
    training, validation = table[:-held_out], table[-held_out:]

    def part_of(rows):
        return rows[len(rows) * rank // world : len(rows) * (rank + 1) // world]

    def matrix(rows):
        mine = part_of(rows)
        return xgboost.DMatrix(mine[:, :-1], label=mine[:, -1], nthread=1)

    times = clock()
    with xgboost.collective.CommunicatorContext(**json.loads(tracker), DMLC_TASK_ID=str(rank)):
        train, held = matrix(training), matrix(validation)
        results = {}
        xgboost.train(json.loads(parameters), train, rounds, evals=[(train, "train"), (held, "validation")],
                      evals_result=results, verbose_eval=False, callbacks=[times])
    if rank == 0:
        with open(report, "w") as out:
            json.dump({"first": times.times[0], "last": times.times[-1],
                       "loss": results["validation"]["rmse"][-1]}, out)


main()
