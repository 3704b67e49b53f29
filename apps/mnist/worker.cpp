// The worker processes of mnist, and of predict for its checkpoints. A separate program, so that the drivers start
// without loading LibTorch.
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
  std::fputs("mnist-worker: this is the worker program of mnist and predict; run one of these\n", stderr);
  return 2;
}
