#pragma once

#include "scratch_runs.hpp"

#include <troupe/data/text.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/interchange/npy.hpp>

#include <doctest/doctest.h>
#include <http_client.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

/// Servers of charlm's models, and clients that know what they should answer.
namespace troupe::testing {

inline constexpr std::size_t outputs = 2;

/// The held-out rows of the text, as NPY rows of u8: the context, then the target.
struct text_rows {
  std::size_t width = 0;
  std::vector<std::uint8_t> numbers;

  [[nodiscard]] std::size_t size() const { return numbers.size() / width; }
  [[nodiscard]] std::string npy(std::size_t first, std::size_t count) const {
    auto result = value_or_throw(serialization::make_npy_head({{}, dtype::u8, {count, width}}));
    result.append(reinterpret_cast<const char*>(numbers.data() + first * width), count * width);
    return result;
  }
  [[nodiscard]] std::string json(std::size_t first, std::size_t count) const {
    auto rows = nlohmann::json::array();
    for (auto row = first; row < first + count; ++row) {
      const auto all = std::span{numbers}.subspan(row * width, width);
      rows.push_back({{"context", std::vector<int>(all.begin(), all.end() - 1)}, {"target", all.back()}});
    }
    return nlohmann::json{{"inputs", std::move(rows)}}.dump();
  }
};

/// charlm's runs, their predictions by `predict`, and servers.
struct serving_scene : scratch_runs {
  /// Trains until `steps`, or trains on.
  void train(const std::string& steps) {
    const auto done = run(charlm("model", {"--steps", steps, "--workers", "1"}));
    INFO(done.err);
    REQUIRE(done.status == exit_status{0, {}});
  }

  [[nodiscard]] std::filesystem::path checkpoint(std::uint64_t step) const {
    return run_directory("model") / "checkpoints" / serialization::checkpoint_name(step_id{step});
  }

  [[nodiscard]] text_rows rows() const {
    const auto source = value_or_throw(serialization::checkpoint::open(checkpoint(12)));
    const auto& tensors = source.content().tensors;
    const auto context =
        tensors[*source.find("hidden.weight")].spec.shape[1] / tensors[*source.find("embedding")].spec.shape[1];
    const auto text = value_or_throw(data::read_text(this->text(), context)).held_out;
    text_rows result{context + 1, {}};
    for (std::uint64_t i = 0; i < text->size(); ++i) {
      const auto window = text->bytes().subspan(text->position(i), context + 1);
      result.numbers.insert(result.numbers.end(), window.begin(), window.end());
    }
    return result;
  }

  /// What the program `predict` predicts for all rows with a checkpoint.
  [[nodiscard]] std::vector<float> predictions(std::uint64_t step) {
    const auto file = path("predictions-" + std::to_string(step) + ".npy");
    const auto done = run({predict_program(), "--checkpoint", checkpoint(step).string(), "--file", text().string(),
                           "--output", file.string(), "--workers", "1", "--storage", path("predictions").string()});
    INFO(done.err);
    REQUIRE(done.status == exit_status{0, {}});
    const auto array = value_or_throw(serialization::read_npy(file));
    std::vector<float> result(array.bytes.size() / sizeof(float));
    std::memcpy(result.data(), array.bytes.data(), array.bytes.size());
    return result;
  }

  [[nodiscard]] child_process serve(std::vector<std::string> more = {},
                                    std::map<std::string, std::string> environment = {}) {
    std::vector<std::string> argv{troupe_program(), "serve", run_directory("model").string(), "--port", "0"};
    argv.insert(argv.end(), more.begin(), more.end());
    return start(std::move(argv), std::move(environment));
  }
};

inline std::uint16_t port_of(child_process& server) {
  // By either program.
  const std::string mark = ": listening on http://127.0.0.1:";
  if (!becomes_true([&] { return server.out().find('\n') != std::string::npos || !server.running(); }) ||
      !server.out().starts_with("troupe-serve") || !contains(server.out(), mark))
    throw std::runtime_error{"the server did not start: " + server.out() + server.err()};
  return static_cast<std::uint16_t>(std::stoul(server.out().substr(server.out().find(mark) + mark.size())));
}

/// Whether a response holds these predictions, bit for bit.
inline bool holds(const http_response& found, const float* expected, std::size_t count) {
  std::vector<float> numbers;
  if (found.headers.at("content-type") == "application/json") {
    const auto document = nlohmann::json::parse(found.body);
    for (const auto& row : document.at("outputs"))
      for (const auto& each : row)
        numbers.push_back(std::strtof(each.dump().c_str(), nullptr));
  } else {
    const auto layout =
        value_or_throw(serialization::parse_npy_header(std::as_bytes(std::span{found.body}), found.body.size()));
    numbers.resize((found.body.size() - layout.offset_bytes) / sizeof(float));
    std::memcpy(numbers.data(), found.body.data() + layout.offset_bytes, numbers.size() * sizeof(float));
  }
  return numbers.size() == count && std::memcmp(numbers.data(), expected, count * sizeof(float)) == 0;
}

inline std::uint64_t step_of(const http_response& found) {
  return std::stoull(found.headers.at("troupe-model-step"));
}

/// Clients that ask for random rows until they are told to stop, each over one connection after the other.
class load {
 public:
  struct tally {
    std::uint64_t right = 0;
    std::uint64_t wrong = 0;
    /// Begun, and without a whole response.
    std::uint64_t cut = 0;
    /// Refused or closed before a byte of the response.
    std::uint64_t refused = 0;
    std::uint64_t last_step = 0;
    std::uint64_t steps_back = 0;
    std::string first_wrong = {};
  };

  load(std::uint16_t port, const text_rows& rows, std::map<std::uint64_t, std::vector<float>> expected, int clients)
      : port_(port), rows_(rows), expected_(std::move(expected)) {
    for (auto i = 0; i < clients; ++i)
      threads_.emplace_back([this, i] { run(static_cast<unsigned>(i)); });
  }
  ~load() { (void)finish(); }

  [[nodiscard]] tally now() {
    const auto lock = std::lock_guard{mutex_};
    return all_;
  }

  tally finish() {
    is_over_ = true;
    for (auto& each : threads_)
      if (each.joinable())
        each.join();
    return now();
  }

  /// Ends at the first refusal: the server is gone.
  void expect_end() { is_ending_ = true; }

 private:
  void run(unsigned seed) {
    auto random = std::mt19937{seed};
    auto client = std::make_unique<http_client>(port_);
    auto last = std::uint64_t{0};
    while (!is_over_) {
      const auto count = 1 + random() % 9;
      const auto first = random() % (rows_.size() - count);
      const auto body = random() % 3 == 0 ? rows_.json(first, count) : rows_.npy(first, count);
      const auto found = client->exchange(http_request("POST", "/v1/predict", body));
      const auto lock = std::lock_guard{mutex_};
      if (!found) {
        ++(client->has_part() ? all_.cut : all_.refused);
        if (is_ending_)
          return;
        client = std::make_unique<http_client>(port_);
        continue;
      }
      const auto expected = found->status == 200 ? expected_.find(step_of(*found)) : expected_.end();
      if (expected == expected_.end() || !holds(*found, expected->second.data() + first * outputs, count * outputs)) {
        if (all_.wrong++ == 0)
          all_.first_wrong =
              fmt::format("{} rows from {}: {} {}", count, first, found->status, found->body.substr(0, 300));
        continue;
      }
      ++all_.right;
      all_.steps_back += step_of(*found) < last ? 1 : 0;
      last = step_of(*found);
      all_.last_step = std::max(all_.last_step, last);
      if (found->headers.contains("connection"))
        client = std::make_unique<http_client>(port_);
    }
  }

  std::uint16_t port_;
  const text_rows& rows_;
  std::map<std::uint64_t, std::vector<float>> expected_;
  std::atomic<bool> is_over_ = false;
  std::atomic<bool> is_ending_ = false;
  std::mutex mutex_;
  tally all_;
  std::vector<std::thread> threads_;
};

} // namespace troupe::testing
