// The worker processes of mnist, and those of predict with its checkpoints. A program of its own, so that the drivers
// are started without LibTorch.
#include <mnist/prediction.hpp>
#include <mnist/training.hpp>

#include <troupe/app.hpp>
#include <troupe/libtorch.hpp>

#include <cstdio>

int main(int argc, char** argv) {
  auto framework = troupe::libtorch::make_framework();
  auto predicting = troupe::inference::prediction_function("predict", mnist::make_prediction_job);
  predicting.frameworks = {framework};
  auto program = troupe::app{argc, argv, {{"train", mnist::train, {framework}}, predicting}};
  std::fputs("mnist-worker: the workers of mnist and predict, which start it; run one of these\n", stderr);
  return 2;
}
