#include "process_library.hpp"
#include "variables.hpp"

#include <troupe/tensorflow.hpp>
#include <troupe/training/gradient_layout.hpp>

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace troupe::tensorflow {

namespace {

/// Differs from the streams available to users.
constexpr std::uint32_t own_stream = 0xfffffffeu;

/// The model's digest, among the values of the state.
constexpr const char* digest_value = "tensorflow model";

std::span<const float> floats_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}

std::span<float> floats_of(std::span<std::byte> bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

} // namespace

class replica::impl {
 public:
  impl(train_context& ctx, const std::filesystem::path& directory)
      : ctx_(ctx), model_(process_library(), directory), variables_(model_.description()) {
    require_same_model(directory);
    variables_.initialise(model_);
    find_rate();
    add_gradient();
    variables_.each({variable_role::trainable, variable_role::state, variable_role::optimizer}, [&](std::size_t index) {
      ctx_.state().add({variables_[index].spec, variables_.bytes(index).data()}, variables_.bytes(index).size());
    });
  }

  void schedule(training::schedule factor) {
    if (!rate_)
      throw exception{errc::invalid_argument,
                      "the model's optimizer has no variable \"learning_rate\" for replica.schedule: export it with a "
                      "number as its learning rate"};
    factor_ = std::move(factor);
  }

  [[nodiscard]] std::uint64_t gradient_elements() const noexcept { return layout_.elements(); }
  [[nodiscard]] std::size_t outputs() const noexcept { return model_.description().outputs; }

  void compute(shard& into, const data::batch& samples) {
    if (samples.size() == 0)
      return;
    fill_seeds(into);
    std::vector<tensor_argument> arguments;
    variables_.append(arguments, {variable_role::trainable});
    variables_.append(arguments, {variable_role::state, variable_role::seed});
    append_samples(arguments, model_.description(), columns_, samples, with_target::yes);
    const auto results = model_.call("gradients", arguments);
    into.add("loss", static_cast<double>(floats_of(results.front().bytes()).front()));
    for (const auto& each : parts_) {
      const auto found = floats_of(results[each.result].bytes());
      const auto target = into.gradient().subspan(each.place.first, each.place.elements);
      if (found.size() != target.size())
        throw exception{errc::mismatch, fmt::format("the SavedModel gave a gradient of {} numbers for '{}'",
                                                    found.size(), variables_[each.variable].spec.name)};
      if (variables_[each.variable].role == variable_role::trainable) {
        std::ranges::transform(target, found, target.begin(), std::plus{});
        continue;
      }
      const auto present = floats_of(variables_.bytes(each.variable));
      const auto weight = static_cast<float>(samples.size());
      for (std::size_t i = 0; i < target.size(); ++i)
        target[i] += (found[i] - present[i]) * weight;
    }
  }

  void apply(step& current) {
    const auto mean = current.all_reduce();
    if (factor_)
      floats_of(variables_.bytes(*rate_)).front() = static_cast<float>(first_rate_ * (*factor_)(current.number()));
    std::vector<tensor_argument> arguments;
    variables_.append(arguments, {variable_role::trainable});
    variables_.append(arguments, {variable_role::optimizer});
    for (const auto& each : parts_) {
      const auto of_part = mean.subspan(each.place.first, each.place.elements);
      if (variables_[each.variable].role == variable_role::trainable)
        arguments.push_back({dtype::f32, shape_of(variables_[each.variable].spec), std::as_bytes(of_part)});
      else
        std::ranges::transform(floats_of(variables_.bytes(each.variable)), of_part,
                               floats_of(variables_.bytes(each.variable)).begin(), std::plus{});
    }
    const auto results = model_.call("apply", arguments);
    auto next = results.begin();
    variables_.each({variable_role::trainable, variable_role::optimizer},
                    [&](std::size_t index) { copy(*next++, variables_.bytes(index)); });
  }

  [[nodiscard]] evaluation evaluate(const data::batch& samples) {
    evaluation result;
    if (samples.size() == 0)
      return result;
    std::vector<tensor_argument> arguments;
    variables_.append(arguments, {variable_role::trainable});
    variables_.append(arguments, {variable_role::state, variable_role::seed});
    append_samples(arguments, model_.description(), columns_, samples, with_target::yes);
    const auto results = model_.call("evaluate", arguments);
    result.loss = static_cast<double>(floats_of(results[0].bytes()).front());
    const auto outputs = floats_of(results[1].bytes());
    result.outputs.assign(outputs.begin(), outputs.end());
    return result;
  }

 private:
  /// A variable's part of the gradient: its gradient, or its change.
  struct gradient_part {
    std::size_t variable;
    /// Among the results of "gradients".
    std::size_t result;
    training::gradient_layout::part place;
  };

  void require_same_model(const std::filesystem::path& directory) {
    auto& kept = ctx_.state().values()[digest_value];
    if (!kept.is_null() && kept != model_.description().digest)
      throw exception{errc::mismatch, fmt::format("{} is not the model that the run began with: use that, or another "
                                                  "run's name",
                                                  directory.string())};
    kept = model_.description().digest;
  }

  void find_rate() {
    variables_.each({variable_role::optimizer}, [&](std::size_t index) {
      const auto& spec = variables_[index].spec;
      if (spec.type == dtype::f32 && spec.shape.empty() && spec.name.ends_with("/learning_rate")) {
        rate_ = index;
        first_rate_ = static_cast<double>(floats_of(variables_.bytes(index)).front());
      }
    });
  }

  void add_gradient() {
    std::vector<gradient_tensor> names;
    // After the loss: gradients, then what has changed, seeds among it.
    std::size_t result = 1;
    variables_.each({variable_role::trainable, variable_role::state, variable_role::seed}, [&](std::size_t index) {
      const auto& [spec, role] = variables_[index];
      if (role != variable_role::seed) {
        const auto part = layout_[layout_.add(spec.size_bytes() / sizeof(float))];
        parts_.push_back({index, result, part});
        names.push_back({spec.name, part.first, part.elements});
      }
      ++result;
    });
    ctx_.name_gradient(std::move(names));
  }

  /// Dropout's random numbers are those of the step and shard.
  void fill_seeds(const shard& of) {
    auto random = of.random(own_stream);
    variables_.each({variable_role::seed}, [&](std::size_t index) {
      const auto size = size_of(variables_[index].spec.type);
      const auto bytes = variables_.bytes(index);
      for (std::size_t place = 0; place < bytes.size(); place += size) {
        // Not negative, whatever the type.
        const auto number = std::uint64_t{random()} & (size == 1 ? 0x7fu : 0x7fffu | (size > 2 ? 0x7fffffffu : 0u));
        std::memcpy(bytes.data() + place, &number, size);
      }
    });
  }

  train_context& ctx_;
  model model_;
  variables variables_;
  model_columns columns_;
  training::gradient_layout layout_;
  std::vector<gradient_part> parts_;
  /// The optimizer's learning rate, if it has one, and its value in the export.
  std::optional<std::size_t> rate_;
  double first_rate_ = 0;
  std::optional<training::schedule> factor_;
};

replica::replica(train_context& ctx, const std::filesystem::path& model) : impl_(std::make_unique<impl>(ctx, model)) {}

replica::~replica() = default;
replica::replica(replica&&) noexcept = default;
replica& replica::operator=(replica&&) noexcept = default;

void replica::schedule(training::schedule factor) {
  impl_->schedule(std::move(factor));
}

std::uint64_t replica::gradient_elements() const noexcept {
  return impl_->gradient_elements();
}

void replica::compute(shard& into, const data::batch& samples) {
  impl_->compute(into, samples);
}

void replica::apply(step& step) {
  impl_->apply(step);
}

evaluation replica::evaluate(const data::batch& samples) {
  return impl_->evaluate(samples);
}

std::size_t replica::outputs() const noexcept {
  return impl_->outputs();
}

} // namespace troupe::tensorflow
