// troupe-serve for models of LibTorch, which takes half a second to load.
#include <mnist/prediction.hpp>
#include <serve/command.hpp>

int main(int argc, char** argv) {
  return serve::run({"troupe-serve", "Serves the predictions of a model of LibTorch over HTTP.",
                     [](const troupe::serialization::checkpoint& source, const predict::model_files& files) {
                       if (troupe::value_or_throw(predict::kind_of(source)) != predict::model_kind::mnist)
                         return predict::load_model(source, files);
                       auto model = mnist::load_model(source);
                       return predict::loaded_model{std::move(model.predictor), std::move(model.inputs)};
                     },
                     [](predict::model_kind) { return std::optional<std::string>{}; }},
                    argc, argv);
}
