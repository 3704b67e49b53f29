#include <troupe/app.hpp>

// Does not compile.
int main(int argc, char** argv) {
  const auto rate = argc > 1 ? 0.5 : 0.25;
  auto train = troupe::function{"train", [rate](troupe::train_context& ctx) { ctx.report({{"rate", rate}}); }};
  auto app = troupe::app{argc, argv, {train}};
}
