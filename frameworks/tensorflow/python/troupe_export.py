"""Exports a Keras model for Troupe, which trains it without Python.

    import keras
    from troupe_export import export

    model = keras.Sequential([keras.layers.Input((28, 28)), keras.layers.Flatten(), keras.layers.Dense(10)])
    export("model", model, keras.optimizers.Adam(1e-3),
           keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum"),
           inputs={"image": ("float32", (28, 28))}, target=("label", "int64", ()))

Writes a SavedModel whose functions are pure: they take all variables and return the new ones, so that Troupe keeps them. Names and
shapes are those of one sample. The loss is a sum over the samples.
"""
import json
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import tensorflow as tf

FORMAT = 1


def _spec(variable):
    return tf.TensorSpec(variable.shape, variable.dtype)


def _flat_specs(groups):
    return [spec for group in groups for spec in group]


def _split(values, groups):
    result, first = [], 0
    for group in groups:
        result.append(list(values[first:first + len(group)]))
        first += len(group)
    return result


def _function(groups, body):
    """A tf.function of one flat list of tensors, whose results are named in their order."""
    specs = _flat_specs(groups)

    def flat(*values):
        return {f"out_{i:04d}": value for i, value in enumerate(body(*_split(values, groups)))}

    return tf.function(flat, input_signature=[
        tf.TensorSpec(spec.shape, spec.dtype, f"in_{i:04d}") for i, spec in enumerate(specs)])


def _described(variables, role):
    result = []
    for variable in variables:
        own = "seed" if role == "state" and variable.path.endswith("seed_generator_state") else role
        if own in ("state", "trainable") and variable.dtype != "float32":
            raise ValueError(f"variable {variable.path} is {variable.dtype}: Troupe trains models of float32")
        result.append({"name": variable.path, "dtype": variable.dtype, "shape": list(variable.shape), "role": own})
    return result


def export(directory, model, optimizer, loss, inputs, target):
    """inputs: {name: (dtype, shape)} in the order of the model's; target: (name, dtype, shape)."""
    trainable = list(model.trainable_variables)
    state = list(model.non_trainable_variables)
    optimizer.build(trainable)
    of_optimizer = list(optimizer.variables)
    described = _described(trainable, "trainable") + _described(state, "state") + _described(of_optimizer, "optimizer")
    names = [each["name"] for each in described]
    if len(set(names)) != len(names):
        raise ValueError("two variables have the same name: give the model's layers names")

    of_trainable, of_state, slots = [list(map(_spec, each)) for each in (trainable, state, of_optimizer)]
    x_specs = [tf.TensorSpec((None, *shape), dtype) for dtype, shape in inputs.values()]
    y_specs = [tf.TensorSpec((None, *target[2]), target[1])]

    def call(weights, kept, x, training):
        return model.stateless_call(weights, kept, x[0] if len(x) == 1 else x, training=training)

    def gradients(weights, kept, x, y):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            outputs, new_state = call(weights, kept, x, True)
            total = tf.cast(loss(y[0], outputs), tf.float32)
        found = tape.gradient(total, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return [total, *map(tf.convert_to_tensor, found), *new_state]

    changed = [variable.value for variable in trainable + of_optimizer]

    def apply(weights, own, mean):
        # Keras has no pure form of it for TensorFlow: the variables are written, used, and read again.
        for variable, value in zip(changed, weights + own):
            variable.assign(value)
        optimizer.apply(mean, trainable)
        return [variable.read_value() for variable in changed]

    def evaluate(weights, kept, x, y):
        outputs, _ = call(weights, kept, x, False)
        return [tf.cast(loss(y[0], outputs), tf.float32), outputs]

    def predict(weights, kept, x):
        return [call(weights, kept, x, False)[0]]

    first = [tf.constant(variable.numpy()) for variable in trainable + state + of_optimizer]
    functions = {
        "gradients": _function([of_trainable, of_state, x_specs, y_specs], gradients),
        "apply": _function([of_trainable, slots, of_trainable], apply),
        "evaluate": _function([of_trainable, of_state, x_specs, y_specs], evaluate),
        "predict": _function([of_trainable, of_state, x_specs], predict),
        "initialise": _function([], lambda: [tf.identity(value) for value in first]),
    }
    module = tf.Module()
    module.kept = changed
    tf.saved_model.save(module, directory, signatures=functions)

    from tensorflow.python.tools import saved_model_utils
    signatures = saved_model_utils.get_meta_graph_def(directory, "serve").signature_def
    in_order = lambda tensors: [tensors[name].name for name in sorted(tensors)]
    description = {
        "format": FORMAT,
        "tensorflow": tf.__version__,
        "variables": described,
        "inputs": [{"name": name, "dtype": dtype, "shape": list(shape)} for name, (dtype, shape) in inputs.items()],
        "target": {"name": target[0], "dtype": target[1], "shape": list(target[2])},
        "output": [int(size) if size is not None else -1 for size in model.output_shape[1:]],
        "functions": {name: {"inputs": in_order(signatures[name].inputs), "outputs": in_order(signatures[name].outputs)}
                      for name in functions},
    }
    os.makedirs(os.path.join(directory, "assets.extra"), exist_ok=True)
    with open(os.path.join(directory, "assets.extra", "troupe.json"), "w") as file:
        json.dump(description, file, indent=1)
