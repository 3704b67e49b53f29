#include "jobs.hpp"
#include "models.hpp"

#include <troupe/data/text.hpp>

#include <string>
#include <utility>

namespace predict {

using namespace troupe;

inference::prediction_job make_charlm_job(const inference::prediction_request& request) {
  auto model = load_charlm_model(request.model);
  auto text = value_or_throw(
      data::read_text(request.options.at("file").get<std::string>(), model.inputs.front().shape.front()));
  return {text.held_out, std::move(model.predictor)};
}

} // namespace predict
