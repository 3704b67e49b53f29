#pragma once

#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace gpt {

/// The sizes of a model. Its checkpoints contain them and the characters of its vocabulary.
struct network_shape {
  std::int64_t vocabulary = 0;
  std::int64_t block = 64;
  std::int64_t layers = 4;
  std::int64_t heads = 4;
  std::int64_t embedding = 128;
};

/// Layer normalisation with a scale but no bias.
struct layer_norm : torch::nn::Module {
  torch::Tensor weight;

  explicit layer_norm(std::int64_t elements) { weight = register_parameter("weight", torch::ones({elements})); }

  torch::Tensor forward(const torch::Tensor& x) { return torch::layer_norm(x, weight.sizes(), weight, {}, 1e-5); }
};

inline torch::nn::Linear make_linear(std::int64_t in, std::int64_t out) {
  return torch::nn::Linear{torch::nn::LinearOptions{in, out}.bias(false)};
}

/// Causal self-attention and a feed-forward part, each with a residual connection.
struct transformer_block : torch::nn::Module {
  std::int64_t heads;
  std::shared_ptr<layer_norm> attention_norm;
  torch::nn::Linear query_key_value;
  torch::nn::Linear attention_output;
  std::shared_ptr<layer_norm> feed_forward_norm;
  torch::nn::Linear hidden;
  torch::nn::Linear hidden_output;
  torch::nn::Dropout dropout;

  transformer_block(const network_shape& shape, double drop)
      : heads(shape.heads),
        attention_norm(register_module("attention_norm", std::make_shared<layer_norm>(shape.embedding))),
        query_key_value(register_module("query_key_value", make_linear(shape.embedding, 3 * shape.embedding))),
        attention_output(register_module("attention_output", make_linear(shape.embedding, shape.embedding))),
        feed_forward_norm(register_module("feed_forward_norm", std::make_shared<layer_norm>(shape.embedding))),
        hidden(register_module("hidden", make_linear(shape.embedding, 4 * shape.embedding))),
        hidden_output(register_module("hidden_output", make_linear(4 * shape.embedding, shape.embedding))),
        dropout(register_module("dropout", torch::nn::Dropout{drop})) {}

  torch::Tensor attend(const torch::Tensor& x, const torch::Tensor& mask) {
    auto batch = x.size(0);
    auto length = x.size(1);
    auto each = x.size(2) / heads;
    auto parts = query_key_value->forward(x).view({batch, length, 3, heads, each}).permute({2, 0, 3, 1, 4});
    auto weights = torch::matmul(parts[0], parts[1].transpose(2, 3)) / std::sqrt(static_cast<double>(each)) + mask;
    auto values = torch::matmul(dropout->forward(torch::softmax(weights, 3)), parts[2]);
    return attention_output->forward(values.transpose(1, 2).reshape(x.sizes()));
  }

  torch::Tensor forward(torch::Tensor x, const torch::Tensor& mask) {
    x = x + dropout->forward(attend(attention_norm->forward(x), mask));
    auto inner = torch::gelu(hidden->forward(feed_forward_norm->forward(x)));
    return x + dropout->forward(hidden_output->forward(inner));
  }
};

/// A small GPT-2 without biases, as in nanoGPT. One matrix serves as token embedding and output layer.
struct network : torch::nn::Module {
  network_shape shape;
  torch::nn::Embedding tokens;
  torch::nn::Embedding positions;
  torch::nn::Dropout dropout;
  std::vector<std::shared_ptr<transformer_block>> blocks;
  std::shared_ptr<layer_norm> last_norm;

  network(const network_shape& s, double drop)
      : shape(s),
        tokens(register_module("tokens", torch::nn::Embedding{s.vocabulary, s.embedding})),
        positions(register_module("positions", torch::nn::Embedding{s.block, s.embedding})),
        dropout(register_module("dropout", torch::nn::Dropout{drop})) {
    for (std::int64_t i = 0; i < s.layers; ++i)
      blocks.push_back(register_module("block_" + std::to_string(i), std::make_shared<transformer_block>(shape, drop)));
    last_norm = register_module("last_norm", std::make_shared<layer_norm>(s.embedding));
    initialise();
  }

  /// Scores of the next token after each of `input` (i64 {samples, length}): {samples, length, vocabulary}.
  torch::Tensor forward(const torch::Tensor& input) {
    auto length = input.size(1);
    auto x = tokens->forward(input) + positions->forward(torch::arange(length, input.options()));
    x = dropout->forward(x);
    auto never = torch::full({length, length}, -std::numeric_limits<float>::infinity(), x.options());
    auto mask = torch::triu(never, 1);
    for (auto& block : blocks)
      x = block->forward(x, mask);
    return torch::linear(last_norm->forward(x), tokens->weight);
  }

 private:
  void initialise() {
    auto guard = torch::NoGradGuard{};
    auto into_the_sum = 0.02 / std::sqrt(2.0 * static_cast<double>(shape.layers));
    for (auto& each : named_parameters())
      if (each.value().dim() > 1)
        torch::nn::init::normal_(each.value(), 0.0, each.key().ends_with("_output.weight") ? into_the_sum : 0.02);
  }
};

/// The name of the state's value that describes the model.
inline constexpr const char* description_value = "gpt";

inline nlohmann::json describe(const network_shape& shape, const std::vector<std::uint8_t>& characters) {
  return {{"characters", characters},
          {"block_size", shape.block},
          {"layers", shape.layers},
          {"heads", shape.heads},
          {"embedding", shape.embedding}};
}

} // namespace gpt
