#include "variables.hpp"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>

namespace troupe::tensorflow {

namespace {

bool is_one_of(variable_role role, std::initializer_list<variable_role> roles) {
  return std::ranges::find(roles, role) != roles.end();
}

} // namespace

std::vector<std::int64_t> shape_of(const tensor_spec& spec) {
  return {spec.shape.begin(), spec.shape.end()};
}

variables::variables(const model_description& model) {
  for (const auto& each : model.variables)
    all_.push_back({&each, collectives::aligned_buffer{std::max<std::size_t>(1, each.spec.size_bytes())}});
}

void variables::initialise(model& from) {
  const auto values = from.call("initialise", {});
  for (std::size_t i = 0; i < all_.size(); ++i)
    copy(values[i], bytes(i));
}

std::span<std::byte> variables::bytes(std::size_t index) noexcept {
  return all_[index].memory.bytes().first(all_[index].described->spec.size_bytes());
}

void variables::append(std::vector<tensor_argument>& arguments, std::initializer_list<variable_role> roles) {
  each(roles, [&](std::size_t index) {
    const auto& spec = all_[index].described->spec;
    arguments.push_back({spec.type, shape_of(spec), bytes(index)});
  });
}

void variables::each(std::initializer_list<variable_role> roles,
                     const std::function<void(std::size_t index)>& function) const {
  for (std::size_t i = 0; i < all_.size(); ++i)
    if (is_one_of(all_[i].described->role, roles))
      function(i);
}

void copy(const tensor_result& from, std::span<std::byte> target) {
  if (from.bytes().size() != target.size())
    throw exception{errc::mismatch, fmt::format("a function of the SavedModel returned {} bytes for a variable of {}",
                                                from.bytes().size(), target.size())};
  // TensorFlow may return what it was given.
  if (!target.empty() && from.bytes().data() != target.data())
    std::memcpy(target.data(), from.bytes().data(), target.size());
}

void append_samples(std::vector<tensor_argument>& arguments, const model_description& model, model_columns& columns,
                    const data::batch& samples, with_target target) {
  for (std::size_t i = 0; i < model.inputs.size(); ++i)
    arguments.push_back(columns.take(samples, model.inputs[i], i));
  if (target == with_target::yes)
    arguments.push_back(columns.take(samples, model.target, model.inputs.size()));
}

} // namespace troupe::tensorflow
