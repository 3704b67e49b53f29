#!/usr/bin/env python3
"""Exports a Keras model of 28 by 28 images for the program keras: keras_model.py DIRECTORY"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../frameworks/tensorflow/python"))

import keras
from keras import layers
from troupe_export import export


def make_model():
    return keras.Sequential([
        layers.Input((28, 28)), layers.Rescaling(1 / 255), layers.Reshape((28, 28, 1)),
        layers.Conv2D(16, 3, padding="same", use_bias=False), layers.BatchNormalization(), layers.ReLU(), layers.MaxPooling2D(),
        layers.Conv2D(32, 3, padding="same", activation="relu"), layers.MaxPooling2D(),
        layers.Flatten(), layers.Dropout(0.25), layers.Dense(10)])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    keras.utils.set_random_seed(1)
    export(sys.argv[1], make_model(), keras.optimizers.Adam(2e-3),
           keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum"),
           inputs={"image": ("float32", (28, 28))}, target=("label", "int64", ()))
