// The worker processes of mnist, and of predict for its checkpoints. A separate program, so that the drivers start
// without loading LibTorch.
#include <mnist/prediction.hpp>
#include <mnist/training.hpp>

#include <troupe/app.hpp>
#include <troupe/libtorch.hpp>

#include <cstdio>

int main(int argc, char** argv) {
  auto framework = troupe::libtorch::make_framework();
  auto train = troupe::function{"train", mnist::train, {framework}};
  auto predict = troupe::inference::prediction_function("predict", mnist::make_prediction_job);
  predict.frameworks = {framework};
  auto program = troupe::app{argc, argv, {train, predict}};
  std::fputs("mnist-worker: this is the worker program of mnist and predict; run one of these\n", stderr);
  return 2;
}
