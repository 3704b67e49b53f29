"""Prints the outputs of apps/keras's model for images, with the variables of NPY files: outputs.py APPS_KERAS VARIABLES IMAGES COUNT

VARIABLES is a directory of NPY files, named as the variables with "," for "/".
"""
import os
import sys

sys.path.insert(0, sys.argv[1])
import numpy
from keras_model import make_model

model = make_model()
for variable in model.trainable_variables + model.non_trainable_variables:
    path = os.path.join(sys.argv[2], variable.path.replace("/", ",") + ".npy")
    if os.path.exists(path):
        variable.assign(numpy.load(path))
    else:
        print("not in the checkpoint:", variable.path)
with open(sys.argv[3], "rb") as file:
    images = numpy.frombuffer(file.read()[16:], numpy.uint8).reshape(-1, 28, 28)[:int(sys.argv[4])]
for row in model(images.astype("float32"), training=False).numpy():
    print(*("%.9g" % value for value in row))
