#include "jobs.hpp"

#include <troupe/data/data_set.hpp>
#include <troupe/data/idx.hpp>
#include <troupe/data/npy.hpp>
#include <troupe/tensorflow.hpp>

#include <filesystem>
#include <string>
#include <utility>

namespace predict {

using namespace troupe;

inference::prediction_job make_keras_job(const inference::prediction_request& request) {
  const auto model = request.options.at("keras_model").get<std::string>();
  const auto input = value_or_throw(tensorflow::input_names(model)).front();
  const auto file = std::filesystem::path{request.options.at("file").get<std::string>()};
  auto rows = value_or_throw(file.extension() == ".npy" ? data::read_npy(file, input) : data::read_idx(file, input));
  return {value_or_throw(data::make_table({std::move(rows)})),
          value_or_throw(tensorflow::load_predictor(request.model, model))};
}

} // namespace predict
