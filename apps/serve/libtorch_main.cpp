// troupe-serve for models of LibTorch, which takes half a second to load.
#include <mnist/prediction.hpp>
#include <serve/command.hpp>

#include <malloc.h>

int main(int argc, char** argv) {
  // The C library returns a batch's activations to the system otherwise, and the next batch faults in every page again.
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  return serve::run({"troupe-serve-libtorch",
                     "Serves the predictions of a model of LibTorch over HTTP.",
                     [](const troupe::serialization::checkpoint& source, const predict::model_files& files) {
                       if (troupe::value_or_throw(predict::kind_of(source)) != predict::model_kind::mnist)
                         return predict::load_model(source, files);
                       return mnist::load_model(source);
                     },
                     [](predict::model_kind) { return true; },
                     {}},
                    argc, argv);
}
