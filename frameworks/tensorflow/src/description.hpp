#pragma once

#include <troupe/dtype.hpp>
#include <troupe/error.hpp>
#include <troupe/tensor.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::tensorflow {

/// What training does with a variable.
enum class variable_role : std::uint8_t {
  /// Has a gradient.
  trainable,
  /// Changed by the forward pass, such as a batch norm's averages.
  state,
  /// The state of a generator of random numbers: made anew for each shard.
  seed,
  optimizer,
};

struct variable {
  tensor_spec spec;
  variable_role role;
};

/// A pure function of the model: the names of its tensors in the graph, in order.
struct graph_function {
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
};

/// The file "assets.extra/troupe.json" that `troupe_export.py` writes into a SavedModel. Variables are in the order of
/// their roles.
///
///     gradients(trainable, state and seed, inputs, target) = loss, gradients, new state
///     apply(trainable, optimizer, mean gradients) = new trainable, new optimizer
///     evaluate(trainable, state, inputs, target) = loss, outputs
///     predict(trainable, state, inputs) = outputs
///     initialise() = all variables
struct model_description {
  std::vector<variable> variables;
  /// Shapes of one sample.
  std::vector<tensor_spec> inputs;
  tensor_spec target;
  /// Numbers of a sample's output.
  std::uint64_t outputs = 0;
  std::map<std::string, graph_function, std::less<>> functions;
  /// Identifies the model: a digest of all its files' content.
  std::string digest;
};

/// Fails with `errc::not_found` if the directory is no SavedModel of `troupe_export.py`, and with `errc::damaged`.
[[nodiscard]] expected<model_description> read_description(const std::filesystem::path& model);

} // namespace troupe::tensorflow
