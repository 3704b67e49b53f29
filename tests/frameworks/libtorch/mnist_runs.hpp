#pragma once

#include "program_runs.hpp"

#include <built.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace troupe::testing {

/// Runs of the program mnist on generated files: bright bars on noise, whose position is the class.
struct mnist_runs : program_runs {
  mnist_runs() { write_set("images", "labels", 320); }

  void write_set(const std::string& images_name, const std::string& labels_name, int count) const {
    std::string images("\0\0\x08\x03", 4);
    std::string labels("\0\0\x08\x01", 4);
    for (auto n : {count, 28, 28})
      images += big_endian(n);
    labels += big_endian(count);
    std::uint64_t state = 99;
    for (int i = 0; i < count; ++i) {
      auto label = i * 7 % 10;
      labels += static_cast<char>(label);
      for (int pixel = 0; pixel < 28 * 28; ++pixel) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        auto noise = static_cast<unsigned>(state >> 58u);
        auto row = pixel / 28;
        images += static_cast<char>(noise + (row / 2 == label + 2 ? 180u : 0u));
      }
    }
    write_file(scratch.path() / images_name, images);
    write_file(scratch.path() / labels_name, labels);
  }

  static std::string big_endian(int n) {
    return {static_cast<char>(n >> 24), static_cast<char>(n >> 16), static_cast<char>(n >> 8), static_cast<char>(n)};
  }

  [[nodiscard]] std::string file(const std::string& which) const { return (scratch.path() / which).string(); }

  [[nodiscard]] child_process start(const std::string& name, std::vector<std::string> more,
                                    const std::string& program = built("bin/mnist")) {
    std::vector<std::string> argv{program, "--storage", file("runs"), "--name", name};
    for (const auto& which : {std::string{"images"}, std::string{"labels"}})
      if (std::ranges::find(more, "--" + which) == more.end())
        argv.insert(argv.end(), {"--" + which, file(which)});
    argv.insert(argv.end(), more.begin(), more.end());
    return {{std::move(argv), {{"TROUPE_KEYS", file("keys")}}}, scratch.path() / ("output-" + name)};
  }

  [[nodiscard]] outcome run(const std::string& name, std::vector<std::string> more) {
    auto process = start(name, std::move(more));
    return end(name, process);
  }
};

} // namespace troupe::testing
