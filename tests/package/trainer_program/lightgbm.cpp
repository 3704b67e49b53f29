#include <troupe/lightgbm.hpp>

#include <troupe/data/column.hpp>
#include <troupe/troupe.hpp>

#include <cstdio>
#include <vector>

/// A table of eight rows.
troupe::lightgbm::training_sets read_rows(const troupe::train_context&) {
  auto x = std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8};
  auto y = x;
  return {troupe::value_or_throw(troupe::data::make_table(
      {troupe::data::make_column("x", std::move(x)), troupe::data::make_column("y", std::move(y))}))};
}

// lightgbm_program LIBRARY
int main(int argc, char** argv) {
  auto train = troupe::lightgbm::training_function("train", read_rows);
  auto app = troupe::app{argc, argv, {train}};
  try {
    auto library = troupe::value_or_throw(troupe::lightgbm::find_library(argc > 1 ? argv[1] : ""));
    auto trainer = troupe::lightgbm::make_trainer(app, train, {.features = {"x"}, .label = "y", .library = library});
    auto result = trainer.fit();
    std::printf("%llu rounds\n", static_cast<unsigned long long>(result.steps));
    return trainer.exit_code();
  } catch (const std::exception& x) {
    std::fprintf(stderr, "%s\n", x.what());
    return 1;
  }
}
