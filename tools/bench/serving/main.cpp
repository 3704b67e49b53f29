// How fast a predictor is by itself: the limit of a server. Prints microseconds for a row, alone and in batches.
//   troupe-bare-predictor CHECKPOINT [SECONDS]
#include "libtorch_model.hpp"

#include <predict/models.hpp>

#include <troupe/data/batch.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <vector>

namespace {

using namespace troupe;

void measure(predict::loaded_model& model, std::uint64_t rows, double seconds) {
  using clock = std::chrono::steady_clock;
  data::batch batch;
  std::vector<float> out(rows * model.predictor->outputs().size());
  std::uint64_t calls = 0;
  const auto begin = clock::now();
  auto passed = 0.0;
  for (; passed < seconds; ++calls) {
    batch.reset(model.inputs, rows);
    for (std::size_t i = 0; i < model.inputs.size(); ++i)
      std::ranges::fill(batch.bytes(i), std::byte{0});
    value_or_throw(model.predictor->predict(batch, out));
    passed = std::chrono::duration<double>{clock::now() - begin}.count();
  }
  const auto done = static_cast<double>(calls * rows);
  std::printf("%8llu rows at once %12.0f rows/s %10.1f us/row\n", static_cast<unsigned long long>(rows), done / passed,
              passed / done * 1e6);
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: troupe-bare-predictor CHECKPOINT [SECONDS]\n");
    return 2;
  }
  try {
    const auto source = value_or_throw(serialization::checkpoint::open(argv[1]));
    auto model = value_or_throw(predict::kind_of(source)) == predict::model_kind::mnist
                     ? bench::load_libtorch_model(source)
                     : predict::load_model(source, {});
    for (std::uint64_t rows : {1, 8, 32})
      measure(model, rows, argc > 2 ? std::atof(argv[2]) : 2);
    return 0;
  } catch (const std::exception& x) {
    std::fprintf(stderr, "troupe-bare-predictor: %s\n", x.what());
    return 1;
  }
}
