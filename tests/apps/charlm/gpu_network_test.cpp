#include <charlm/gpu_network.hpp>
#include <charlm/optimizer.hpp>

#include "normals.hpp"

#include <gpu.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <doctest/doctest.h>
#include <memory>
#include <string>
#include <vector>

namespace {

using charlm::aligned_buffer;
using charlm::gpu_network;
using charlm::model;
using charlm::model_shape;
using troupe::value_or_throw;
using troupe::collectives::device;
using troupe::collectives::device_memory;
using troupe::collectives::device_stream;
using troupe::testing::has_fake_gpu;

charlm::corpus some_text() {
  static const std::vector<std::string> words{"the ", "actor ", "sends ", "its ", "gradient ", "to ", "a ", "tree. "};
  std::vector<std::uint8_t> bytes;
  for (std::uint64_t state = 1; bytes.size() < 30'000;) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    for (auto c : words[state >> 61])
      bytes.push_back(static_cast<std::uint8_t>(c));
  }
  return value_or_throw(charlm::make_corpus(std::move(bytes)));
}

std::vector<std::uint64_t> some_samples(std::size_t count, std::uint64_t bound) {
  std::vector<std::uint64_t> result(count);
  for (std::size_t i = 0; i < count; ++i)
    result[i] = i * 37 % bound;
  return result;
}

/// The network and a gradient on a GPU.
struct on_gpu {
  model_shape shape;
  charlm::corpus text = some_text();
  std::shared_ptr<device> where = value_or_throw(troupe::collectives::open_device(0));
  device_stream stream = value_or_throw(device_stream::make(where));
  gpu_network network{where, stream, shape, text, 4096};
  device_memory gradient = value_or_throw(device_memory::make(where, shape.parameter_elements() * sizeof(float)));
  device_memory loss = value_or_throw(device_memory::make(where, sizeof(double)));

  template <class T>
  std::vector<T> fetch(troupe::device_span<T> from) {
    std::vector<T> result(from.size());
    value_or_throw(stream.copy(reinterpret_cast<std::byte*>(result.data()), from.template as<std::byte>().address(),
                               from.size_bytes()));
    value_or_throw(stream.synchronize());
    return result;
  }

  double compute(const std::vector<std::uint64_t>& samples) {
    value_or_throw(stream.clear(gradient.address(), gradient.size_bytes()));
    value_or_throw(stream.clear(loss.address(), sizeof(double)));
    network.begin_step();
    network.forward_backward(samples, gradient.bytes().as<float>(), loss.bytes().as<double>(),
                             [](std::size_t, std::size_t) {});
    return fetch(loss.bytes().as<double>())[0];
  }

  std::vector<float> gradient_now() { return fetch(gradient.bytes().as<float>()); }
};

model random_model(const model_shape& shape) {
  model result{shape};
  result.initialise([](std::uint64_t i) { return normal_at(5, i); });
  return result;
}

} // namespace

TEST_CASE("a GPU computes the loss and the gradient of the host's model, and repeats them bit for bit") {
  if (!troupe::testing::has_gpu())
    return;
  on_gpu there;
  auto host = random_model(there.shape);
  there.network.initialise(host);
  for (std::size_t count : {1u, 64u, 100u, has_fake_gpu() ? 600u : 3000u}) {
    CAPTURE(count);
    auto samples = some_samples(count, there.text.training_samples());
    std::vector<std::uint64_t> positions;
    for (auto sample : samples)
      positions.push_back(there.text.training_position(sample));
    aligned_buffer wanted(there.shape.parameter_elements());
    auto loss = host.forward_backward(there.text.bytes(), positions, wanted);
    CHECK(there.compute(samples) == doctest::Approx(loss).epsilon(1e-5));
    auto gradient = there.gradient_now();
    auto largest = 0.0F;
    for (auto x : wanted)
      largest = std::max(largest, std::fabs(x));
    for (std::size_t i = 0; i < wanted.size(); ++i)
      REQUIRE(std::fabs(gradient[i] - wanted[i]) <= 1e-4F * largest);
    auto first = there.compute(samples);
    CHECK(there.compute(samples) == first);
    CHECK(std::memcmp(there.gradient_now().data(), gradient.data(), gradient.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("a GPU's update of Adam has the bits of the host's, and its held-out loss agrees with the host's") {
  if (!troupe::testing::has_gpu())
    return;
  on_gpu there;
  auto host = random_model(there.shape);
  there.network.initialise(host);
  auto moments = model{there.shape};
  auto squares = model{there.shape};
  for (std::uint64_t step = 1; step <= 5; ++step) {
    there.compute(some_samples(200, there.text.training_samples()));
    auto gradient = there.gradient_now();
    charlm::adam_update(host.parameters(), moments.parameters(), squares.parameters(), gradient, troupe::step_id{step});
    there.network.update(troupe::step_id{step}, there.gradient.bytes().as<float>());
    auto parameters = there.fetch(there.network.parameters());
    CHECK(std::memcmp(parameters.data(), host.parameters().data(), parameters.size() * sizeof(float)) == 0);
  }
  auto samples = some_samples(1000, there.text.held_out_samples());
  std::vector<std::uint64_t> positions;
  for (auto sample : samples)
    positions.push_back(there.text.held_out_position(sample));
  CHECK(there.network.held_out_loss(samples) ==
        doctest::Approx(host.loss(there.text.bytes(), positions)).epsilon(1e-5));
}
