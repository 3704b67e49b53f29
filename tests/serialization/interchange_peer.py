"""The other side of the interchange tests: Python's own readers and writers of the formats.

interchange_peer.py probe            exits with 0 where numpy and safetensors can be imported
interchange_peer.py write DIRECTORY  writes peer.safetensors and NPY files, and prints what is in them
interchange_peer.py read FILE...     prints what is in files

What is in a file is printed as one line of JSON: {file: {tensor: [dtype, shape, SHA-256 of the bytes in the order of C]}};
an NPY file's only tensor has no name.
"""

import hashlib
import json
import os
import sys

import numpy
import safetensors
import safetensors.numpy

NUMPY_TYPES = ["float32", "float64", "float16", "int8", "int16", "int32", "int64",
               "uint8", "uint16", "uint32", "uint64", "bool"]
SHAPES = [(), (0,), (1,), (7,), (3, 0, 2), (2, 3, 5)]


def array(dtype, shape):
    count = int(numpy.prod(shape))
    return (numpy.arange(count, dtype="int64") * 37 % 101).astype(dtype).reshape(shape)


def described(dtype, shape, data):
    return [dtype, list(shape), hashlib.sha256(data).hexdigest()]


def read(path):
    if path.endswith(".npy"):
        values = numpy.load(path, allow_pickle=False)
        values = values.astype(values.dtype.newbyteorder("<"))
        return {"": described(values.dtype.name, values.shape, values.tobytes("C"))}
    # Both ways in which Python users read them, where NumPy supports the dtype.
    with open(path, "rb") as file:
        content = {name: described(entry["dtype"], entry["shape"], bytes(entry["data"]))
                   for name, entry in safetensors.deserialize(file.read())}
    with safetensors.safe_open(path, framework="numpy") as file:
        for name, (dtype, shape, _) in content.items():
            if dtype != "BF16":
                assert list(file.get_tensor(name).shape) == shape
    return content


def write(directory):
    arrays = {f"{dtype} {shape}": array(dtype, shape) for dtype in NUMPY_TYPES for shape in SHAPES}
    safetensors.numpy.save_file(arrays, os.path.join(directory, "arrays.safetensors"), metadata={"format": "pt"})
    # NumPy has no bf16. Newer versions take an address, older ones the bytes.
    data = numpy.arange(12, dtype="uint8")
    if hasattr(safetensors, "TensorSpec"):
        raw = {"bf16": safetensors.TensorSpec(dtype="bfloat16", shape=[3, 2], data_ptr=data.ctypes.data, data_len=12)}
    else:
        raw = {"bf16": {"dtype": "bfloat16", "shape": [3, 2], "data": data.tobytes()}}
    with open(os.path.join(directory, "bf16.safetensors"), "wb") as file:
        file.write(safetensors.serialize(raw))
    paths = ["arrays.safetensors", "bf16.safetensors"]
    for dtype in NUMPY_TYPES:
        for number, shape in enumerate(SHAPES):
            for order in "CF":
                for byteorder in "<>":
                    values = numpy.asarray(array(dtype, shape), order=order)
                    values = values.astype(values.dtype.newbyteorder(byteorder))
                    path = f"{dtype}-{number}-{order}-{'big' if byteorder == '>' else 'little'}.npy"
                    with open(os.path.join(directory, path), "wb") as file:
                        version = [(1, 0), (2, 0), (3, 0)][number % 3]
                        numpy.lib.format.write_array(file, values, version=version)
                    paths.append(path)
    print(json.dumps({path: read(os.path.join(directory, path)) for path in paths}))


if sys.argv[1] == "write":
    write(sys.argv[2])
elif sys.argv[1] == "read":
    print(json.dumps({path: read(path) for path in sys.argv[2:]}))
