#include "variables.hpp"

#include <troupe/tensorflow.hpp>

#include <cstring>
#include <fmt/format.h>
#include <string>
#include <utility>

namespace troupe::tensorflow {

namespace {

class model_predictor final : public inference::predictor {
 public:
  model_predictor(library_ptr library, const std::filesystem::path& directory)
      : library_(std::string{"TensorFlow "} + library->functions().TF_Version()),
        model_(std::move(library), directory),
        variables_(model_.description()) {
    for (std::uint64_t i = 0; i < model_.description().outputs; ++i)
      outputs_.push_back(fmt::format("output_{}", i));
  }

  /// Reads the variables. The generators' seeds stay zero: a prediction draws nothing.
  [[nodiscard]] expected<void> load(const serialization::checkpoint& source) {
    std::string differences;
    expected<void> result;
    variables_.each({variable_role::trainable, variable_role::state}, [&](std::size_t index) {
      const auto& spec = variables_[index].spec;
      const auto found = source.find(spec.name);
      if (!found || source.content().tensors[*found].spec != spec)
        differences += fmt::format("{}'{}'{}", differences.empty() ? "" : ", ", spec.name,
                                   found ? " has another type or shape" : " is missing");
      else if (result && differences.empty())
        result = source.read_tensor(*found, variables_.bytes(index));
    });
    if (!differences.empty())
      return fail(errc::mismatch,
                  fmt::format("{} is of another model: variable {}", source.directory().string(), differences));
    return result;
  }

  const std::vector<std::string>& outputs() const noexcept override { return outputs_; }
  std::string library() const override { return library_; }

  expected<void> predict(data::batch& rows, std::span<float> out) override {
    if (rows.size() == 0)
      return {};
    try {
      std::vector<tensor_argument> arguments;
      variables_.append(arguments, {variable_role::trainable});
      variables_.append(arguments, {variable_role::state, variable_role::seed});
      append_samples(arguments, model_.description(), columns_, rows, with_target::no);
      const auto results = model_.call("predict", arguments);
      if (results.front().bytes().size() != out.size_bytes())
        return fail(errc::mismatch, fmt::format("the model gave {} bytes for {} rows of {} outputs",
                                                results.front().bytes().size(), rows.size(), outputs_.size()));
      std::memcpy(out.data(), results.front().bytes().data(), out.size_bytes());
      return {};
    } catch (const exception& x) {
      return fail(x.reason());
    }
  }

 private:
  std::string library_;
  model model_;
  variables variables_;
  model_columns columns_;
  std::vector<std::string> outputs_;
};

} // namespace

expected<std::vector<data::column_spec>> input_columns(const std::filesystem::path& model) {
  TROUPE_TRY(auto description, read_description(model));
  std::vector<data::column_spec> result;
  for (auto& each : description.inputs)
    result.push_back({std::move(each.name), each.type, std::move(each.shape), {}});
  return result;
}

expected<std::vector<std::string>> input_names(const std::filesystem::path& model) {
  TROUPE_TRY(auto description, read_description(model));
  std::vector<std::string> result;
  for (const auto& each : description.inputs)
    result.push_back(each.name);
  return result;
}

expected<inference::predictor_ptr> load_predictor(const serialization::checkpoint& source,
                                                  const std::filesystem::path& model,
                                                  const std::filesystem::path& asked) {
  TROUPE_TRY(auto path, find_library(asked));
  TROUPE_TRY(auto functions, library::open(path));
  try {
    auto result = std::make_unique<model_predictor>(std::move(functions), model);
    TROUPE_TRY(result->load(source));
    return result;
  } catch (const exception& x) {
    return fail(x.reason());
  }
}

} // namespace troupe::tensorflow
