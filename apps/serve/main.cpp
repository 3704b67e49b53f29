// Serves predictions over HTTP: with checkpoints of charlm, trees, learn_table and keras, and with ONNX models. Those
// of LibTorch are served by troupe-serve-libtorch, which this program becomes, also while no checkpoint is there.
#include <serve/command.hpp>

int main(int argc, char** argv) {
  return serve::run({"troupe-serve", "Serves the predictions of a model over HTTP.", predict::load_model,
                     [](predict::model_kind kind) { return kind != predict::model_kind::mnist; },
                     "troupe-serve-libtorch"},
                    argc, argv);
}
