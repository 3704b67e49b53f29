#include "model.hpp"

#include <troupe/data/conversion.hpp>

#include <array>
#include <charconv>
#include <fmt/format.h>
#include <utility>

namespace troupe::tensorflow {

namespace {

/// A ConfigProto: `intra_op_parallelism_threads` (2) and `inter_op_parallelism_threads` (5) are 1. Sums depend on the
/// number of threads.
constexpr std::array<unsigned char, 4> one_thread{2 << 3, 1, 5 << 3, 1};

template <class Object>
std::unique_ptr<Object, void (*)(Object*)> own(Object* object, void (*release)(Object*)) {
  return {object, release};
}

void keep(void*, std::size_t, void*) {}

} // namespace

model::model(library_ptr from, const std::filesystem::path& directory)
    : library_(std::move(from)),
      description_(value_or_throw(read_description(directory))),
      status_(own(library_->functions().TF_NewStatus(), library_->functions().TF_DeleteStatus)),
      graph_(own(library_->functions().TF_NewGraph(), library_->functions().TF_DeleteGraph)),
      session_(nullptr, session_deleter{&library_->functions()}) {
  const auto& tf = library_->functions();
  const auto options = own(tf.TF_NewSessionOptions(), tf.TF_DeleteSessionOptions);
  tf.TF_SetConfig(options.get(), one_thread.data(), one_thread.size(), status_.get());
  check("the number of threads");
  const char* tag = "serve";
  session_.reset(tf.TF_LoadSessionFromSavedModel(options.get(), nullptr, directory.c_str(), &tag, 1, graph_.get(),
                                                 nullptr, status_.get()));
  check(directory.c_str());
  for (const auto& [name, each] : description_.functions) {
    auto& loaded = functions_[name];
    for (const auto& tensor : each.inputs)
      loaded.inputs.push_back(find(tensor));
    for (const auto& tensor : each.outputs)
      loaded.outputs.push_back(find(tensor));
  }
}

void model::session_deleter::operator()(TF_Session* session) const {
  const auto status = own(functions->TF_NewStatus(), functions->TF_DeleteStatus);
  functions->TF_DeleteSession(session, status.get());
}

void model::check(const char* what) const {
  const auto& tf = library_->functions();
  if (tf.TF_GetCode(status_.get()) != 0)
    throw exception{errc::user_error, fmt::format("TensorFlow: {}: {}", what, tf.TF_Message(status_.get()))};
}

/// "PartitionedCall:2" is the third output of the operation PartitionedCall.
graph_tensor model::find(const std::string& tensor) const {
  const auto colon = tensor.rfind(':');
  int index = 0;
  if (colon != std::string::npos)
    std::from_chars(tensor.data() + colon + 1, tensor.data() + tensor.size(), index);
  auto* operation = library_->functions().TF_GraphOperationByName(graph_.get(), tensor.substr(0, colon).c_str());
  if (operation == nullptr)
    throw exception{errc::damaged,
                    fmt::format("the SavedModel has no tensor '{}', which its description names", tensor)};
  return {operation, index};
}

std::vector<tensor_result> model::call(std::string_view function, std::span<const tensor_argument> arguments) {
  const auto& tf = library_->functions();
  const auto& called = functions_.find(function)->second;
  std::vector<std::unique_ptr<TF_Tensor, void (*)(TF_Tensor*)>> tensors;
  std::vector<TF_Tensor*> inputs;
  for (const auto& each : arguments) {
    // TensorFlow only reads it, and copies it unless it is aligned.
    tensors.emplace_back(tf.TF_NewTensor(*tensorflow_type(each.type), each.shape.data(),
                                         static_cast<int>(each.shape.size()), const_cast<std::byte*>(each.bytes.data()),
                                         each.bytes.size(), keep, nullptr),
                         tf.TF_DeleteTensor);
    inputs.push_back(tensors.back().get());
  }
  std::vector<TF_Tensor*> outputs(called.outputs.size());
  tf.TF_SessionRun(session_.get(), nullptr, called.inputs.data(), inputs.data(), static_cast<int>(inputs.size()),
                   called.outputs.data(), outputs.data(), static_cast<int>(outputs.size()), nullptr, 0, nullptr,
                   status_.get());
  check(std::string{function}.c_str());
  std::vector<tensor_result> result;
  result.reserve(outputs.size());
  for (auto* each : outputs)
    result.emplace_back(tf, each);
  return result;
}

tensor_argument model_columns::take(const data::batch& samples, const tensor_spec& wanted, std::size_t place) {
  const auto index = samples.index_of(wanted.name);
  const auto& column = samples.columns()[index];
  if (column.shape != wanted.shape)
    throw exception{errc::mismatch,
                    fmt::format("the model takes '{}' as {}, and the data has {}", wanted.name,
                                data::describe(data::column_spec{wanted.name, wanted.type, wanted.shape, {}}),
                                data::describe(column))};
  tensor_argument result{wanted.type, {static_cast<std::int64_t>(samples.size())}, samples.bytes(index)};
  for (auto each : wanted.shape)
    result.shape.push_back(static_cast<std::int64_t>(each));
  if (column.type == wanted.type)
    return result;
  if (converted_.size() <= place)
    converted_.resize(place + 1);
  auto& memory = converted_[place];
  memory.resize(samples.size() * column.elements() * size_of(wanted.type));
  value_or_throw(data::convert(samples.bytes(index), column.type, wanted.type, memory.data()));
  result.bytes = memory;
  return result;
}

} // namespace troupe::tensorflow
