"""Prints what TensorBoard's own reader finds in a directory, as JSON: tag -> [[step, value], ...]."""
import json
import sys

from tensorboard.backend.event_processing import plugin_event_accumulator
from tensorboard.util import tensor_util

reader = plugin_event_accumulator.EventAccumulator(sys.argv[1], size_guidance={"tensors": 0})
reader.Reload()
print(json.dumps({
    tag: [[event.step, float(tensor_util.make_ndarray(event.tensor_proto))] for event in reader.Tensors(tag)]
    for tag in reader.Tags()["tensors"]
}))
