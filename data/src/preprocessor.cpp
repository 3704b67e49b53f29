#include <troupe/data/preprocessor.hpp>

#include "column_preprocessor.hpp"

#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <utility>

namespace troupe::data {

namespace {

std::string prefix_of(std::string_view name) {
  return fmt::format("preprocessor/{}/", name);
}

constexpr const char* all_descriptions = "preprocessors";

expected<nlohmann::json> stored_description(const serialization::checkpoint& source, std::string_view name) {
  auto values = nlohmann::json::parse(source.content().values_json, nullptr, false);
  auto key = nlohmann::json::json_pointer{} / all_descriptions / std::string{name};
  if (!values.is_object() || !values.contains(key))
    return fail(errc::not_found, fmt::format("{} has no preprocessor '{}'", source.directory().string(), name));
  return values.at(key);
}

} // namespace

expected<void> preprocessor::inverse(batch&) const {
  return fail(errc::unsatisfiable,
              fmt::format("a preprocessor of kind {} has no inverse", description().at("kind").dump()));
}

const preprocessor::state_tensor* preprocessor::find_state(std::string_view name) const {
  auto found = state_.find(name);
  return found == state_.end() ? nullptr : &found->second;
}

void preprocessor::set_state(std::string name, dtype type, std::span<const std::byte> bytes) {
  if (tracked_)
    throw exception{errc::invalid_argument,
                    "a tracked preprocessor cannot be fitted again: fit it before preprocessor::track"};
  auto& place = state_[name];
  place.spec = {std::move(name), type, {bytes.size() / size_of(type)}};
  place.bytes.assign(bytes.begin(), bytes.end());
}

void preprocessor::list_state(const std::string& prefix, std::vector<tensor_view>& out) {
  tracked_ = true;
  for (auto& [name, tensor] : state_) {
    auto spec = tensor.spec;
    spec.name = prefix + name;
    out.push_back({std::move(spec), tensor.bytes.data()});
  }
}

expected<void> preprocessor::adopt_state(const std::string& prefix,
                                         const std::map<std::string, state_tensor>& tensors) {
  for (auto i = tensors.lower_bound(prefix); i != tensors.end() && i->first.starts_with(prefix); ++i)
    set_state(i->first.substr(prefix.size()), i->second.spec.type, i->second.bytes);
  return {};
}

void preprocessor::track(tracked_state& state, std::string_view name) {
  std::vector<tensor_view> tensors;
  list_state(prefix_of(name), tensors);
  for (auto& tensor : tensors) {
    auto size_bytes = static_cast<std::size_t>(tensor.spec.size_bytes());
    state.add(std::move(tensor), size_bytes);
  }
  state.values()[all_descriptions][std::string{name}] = description();
}

expected<void> preprocessor::restore(const serialization::checkpoint& source, std::string_view name) {
  TROUPE_TRY(auto stored, stored_description(source, name));
  if (stored != description())
    return fail(errc::mismatch, fmt::format("preprocessor '{}' in {} is {}, and this is {}", name,
                                            source.directory().string(), stored.dump(), description().dump()));
  auto prefix = prefix_of(name);
  std::map<std::string, state_tensor> tensors;
  for (const auto& entry : source.content().tensors) {
    if (!entry.spec.name.starts_with(prefix))
      continue;
    auto tensor = state_tensor{entry.spec, std::vector<std::byte>(entry.spec.size_bytes())};
    TROUPE_TRY(source.read_tensor(entry.spec.name, tensor.bytes));
    tensors.emplace(entry.spec.name, std::move(tensor));
  }
  return adopt_state(prefix, tensors);
}

expected<preprocessor_ptr> load_preprocessor(const serialization::checkpoint& source, std::string_view name) {
  TROUPE_TRY(auto stored, stored_description(source, name));
  auto made = make_preprocessor(stored);
  if (!made)
    return made;
  TROUPE_TRY((*made)->restore(source, name));
  return made;
}

nlohmann::json column_preprocessor::description() const {
  auto result = options();
  result["kind"] = kind();
  result["columns"] = columns_;
  return result;
}

expected<std::vector<column_spec>> column_preprocessor::output(std::vector<column_spec> columns) const {
  for (const auto& name : columns_) {
    TROUPE_TRY(auto index, index_of(columns, name));
    TROUPE_TRY(auto made, output_column(columns[index]));
    columns[index] = std::move(made);
  }
  return columns;
}

expected<std::size_t> column_preprocessor::index_of(std::span<const column_spec> columns,
                                                    const std::string& name) const {
  for (std::size_t i = 0; i < columns.size(); ++i)
    if (columns[i].name == name)
      return i;
  return fail(errc::not_found, fmt::format("{}: no column '{}' among {}", kind(), name, columns.size()));
}

expected<void> column_preprocessor::change(batch& samples, direction which) const {
  for (const auto& name : columns_) {
    TROUPE_TRY(auto index, index_of(samples.columns(), name));
    const auto& before = samples.columns()[index];
    TROUPE_TRY(auto made, which == direction::forward ? output_column(before) : inverse_column(before));
    auto old = samples.replace(index, std::move(made));
    auto from = std::span<const std::byte>{old.buffer.bytes().first(old.spec.size_bytes() * samples.size())};
    auto done = which == direction::forward ? apply(old.spec, from, samples.bytes(index))
                                            : apply_inverse(old.spec, from, samples.bytes(index));
    if (!done)
      return done;
    samples.recycle(std::move(old));
  }
  return {};
}

expected<column_spec> column_preprocessor::inverse_column(const column_spec&) const {
  return fail(errc::unsatisfiable, fmt::format("{} has no inverse", kind()));
}

expected<void> column_preprocessor::apply_inverse(const column_spec&, std::span<const std::byte>,
                                                  std::span<std::byte>) const {
  return fail(errc::unsatisfiable, fmt::format("{} has no inverse", kind()));
}

tl::unexpected<error> column_preprocessor::not_fitted(const column_spec& column) const {
  return fail(errc::invalid_argument, fmt::format("{}: column '{}' is not fitted: call fit first, or restore from a "
                                                  "checkpoint",
                                                  kind(), column.name));
}

namespace {

class join final : public preprocessor {
 public:
  join(std::vector<std::string> columns, std::string into) : columns_(std::move(columns)), into_(std::move(into)) {}

  [[nodiscard]] nlohmann::json description() const override {
    return {{"kind", "column_join"}, {"columns", columns_}, {"into", into_}};
  }

  [[nodiscard]] expected<std::vector<column_spec>> output(std::vector<column_spec> columns) const override {
    std::uint64_t width = 0;
    for (const auto& name : columns_) {
      auto found = std::ranges::find(columns, name, &column_spec::name);
      if (found == columns.end())
        return fail(errc::not_found, fmt::format("column_join: no column '{}' among {}", name, columns.size()));
      if (found->type != dtype::f32 || found->categories)
        return fail(errc::mismatch,
                    fmt::format("column_join: column '{}' is {}, and only f32 numbers are joined: scale "
                                "or encode it first",
                                name, describe(*found)));
      width += found->elements();
      columns.erase(found);
    }
    if (std::ranges::find(columns, into_, &column_spec::name) != columns.end())
      return fail(errc::invalid_argument, fmt::format("column_join: column '{}' already exists", into_));
    columns.push_back({into_, dtype::f32, {width}, {}});
    return columns;
  }

  void fit(const data_set& training, exact_reduction&) override {
    (void)value_or_throw(output({training.columns().begin(), training.columns().end()}));
  }

  [[nodiscard]] expected<void> transform(batch& samples) const override {
    TROUPE_TRY(auto made, output({samples.columns().begin(), samples.columns().end()}));
    auto width = made.back().elements();
    auto target = samples.add(std::move(made.back()));
    std::uint64_t offset = 0;
    for (const auto& name : columns_) {
      auto index = samples.index_of(name);
      auto own = samples.columns()[index].elements();
      auto from = samples.bytes(index);
      auto to = samples.bytes(target);
      for (std::uint64_t i = 0; i < samples.size(); ++i)
        std::ranges::copy(from.subspan(i * own * sizeof(float), own * sizeof(float)),
                          to.subspan((i * width + offset) * sizeof(float)).begin());
      offset += own;
    }
    for (const auto& name : columns_)
      samples.recycle(samples.remove(samples.index_of(name)));
    return {};
  }

 private:
  std::vector<std::string> columns_;
  std::string into_;
};

class chained final : public preprocessor {
 public:
  explicit chained(std::vector<preprocessor_ptr> parts) : parts_(std::move(parts)) {}

  [[nodiscard]] nlohmann::json description() const override {
    auto parts = nlohmann::json::array();
    for (const auto& part : parts_)
      parts.push_back(part->description());
    return {{"kind", "chain"}, {"parts", std::move(parts)}};
  }

  [[nodiscard]] expected<std::vector<column_spec>> output(std::vector<column_spec> columns) const override {
    for (const auto& part : parts_) {
      auto made = part->output(std::move(columns));
      if (!made)
        return made;
      columns = std::move(*made);
    }
    return columns;
  }

  void fit(const data_set& training, exact_reduction& reduction) override {
    // Does not own `training`: the view does not outlive this call.
    auto view = data_set_ptr{&training, [](const data_set*) {}};
    for (const auto& part : parts_) {
      part->fit(*view, reduction);
      view = value_or_throw(transformed(view, part));
    }
  }

  [[nodiscard]] expected<void> transform(batch& samples) const override {
    for (const auto& part : parts_)
      TROUPE_TRY(part->transform(samples));
    return {};
  }

  [[nodiscard]] expected<void> inverse(batch& samples) const override {
    for (auto part = parts_.rbegin(); part != parts_.rend(); ++part)
      TROUPE_TRY((*part)->inverse(samples));
    return {};
  }

  void list_state(const std::string& prefix, std::vector<tensor_view>& out) override {
    for (std::size_t i = 0; i < parts_.size(); ++i)
      parts_[i]->list_state(fmt::format("{}{}.", prefix, i), out);
  }

  [[nodiscard]] expected<void> adopt_state(const std::string& prefix,
                                           const std::map<std::string, state_tensor>& tensors) override {
    for (std::size_t i = 0; i < parts_.size(); ++i)
      TROUPE_TRY(parts_[i]->adopt_state(fmt::format("{}{}.", prefix, i), tensors));
    return {};
  }

 private:
  std::vector<preprocessor_ptr> parts_;
};

} // namespace

preprocessor_ptr column_join(std::vector<std::string> columns, std::string into) {
  return std::make_shared<join>(std::move(columns), std::move(into));
}

preprocessor_ptr chain(std::vector<preprocessor_ptr> parts) {
  return std::make_shared<chained>(std::move(parts));
}

namespace {

unknown_category unknown_of(const nlohmann::json& x) {
  auto text = x.at("unknown").get<std::string>();
  if (text != "refused" && text != "own_category")
    throw exception{errc::damaged, fmt::format("'{}' is not a treatment of unknown categories", text)};
  return text == "refused" ? unknown_category::refused : unknown_category::own_category;
}

vector_norm norm_of(const nlohmann::json& x) {
  auto text = x.at("norm").get<std::string>();
  if (text == "l1")
    return vector_norm::l1;
  if (text == "l2")
    return vector_norm::l2;
  if (text == "max")
    return vector_norm::max;
  throw exception{errc::damaged, fmt::format("'{}' is not a norm", text)};
}

preprocessor_ptr make(const nlohmann::json& x) {
  auto kind = x.at("kind").get<std::string>();
  if (kind == "chain") {
    std::vector<preprocessor_ptr> parts;
    for (const auto& part : x.at("parts"))
      parts.push_back(make(part));
    return chain(std::move(parts));
  }
  auto columns = x.at("columns").get<std::vector<std::string>>();
  if (kind == "standard_scaler")
    return standard_scaler(std::move(columns));
  if (kind == "min_max_scaler")
    return min_max_scaler(std::move(columns), x.at("low").get<double>(), x.at("high").get<double>());
  if (kind == "mean_imputer")
    return mean_imputer(std::move(columns));
  if (kind == "normaliser")
    return normaliser(std::move(columns), norm_of(x));
  if (kind == "rescaler")
    return rescaler(std::move(columns), x.at("factor").get<double>());
  if (kind == "one_hot_encoder")
    return one_hot_encoder(std::move(columns), unknown_of(x));
  if (kind == "ordinal_encoder")
    return ordinal_encoder(std::move(columns), unknown_of(x));
  if (kind == "column_join")
    return column_join(std::move(columns), x.at("into").get<std::string>());
  throw exception{
      errc::not_found,
      fmt::format("no preprocessor of kind '{}': create a kind of your own yourself, and restore it", kind)};
}

} // namespace

expected<preprocessor_ptr> make_preprocessor(const nlohmann::json& description) {
  try {
    return make(description);
  } catch (const exception& x) {
    return fail(x.reason());
  } catch (const nlohmann::json::exception& x) {
    return fail(errc::damaged, fmt::format("invalid description of a preprocessor: {}", x.what()));
  }
}

namespace {

class transformed_set final : public data_set {
 public:
  transformed_set(data_set_ptr set, std::shared_ptr<const preprocessor> how, std::vector<column_spec> columns)
      : set_(std::move(set)), how_(std::move(how)), columns_(std::move(columns)) {}

  [[nodiscard]] std::uint64_t size() const noexcept override { return set_->size(); }
  [[nodiscard]] std::span<const column_spec> columns() const noexcept override { return columns_; }
  [[nodiscard]] std::string fingerprint() const override {
    return fingerprint_of(fmt::format("transformed {} {}", set_->fingerprint(), how_->description().dump()));
  }

 protected:
  [[nodiscard]] expected<void> read(std::span<const std::uint64_t> samples, batch& out) const override {
    TROUPE_TRY(set_->fetch(samples, out));
    return how_->transform(out);
  }

 private:
  data_set_ptr set_;
  std::shared_ptr<const preprocessor> how_;
  std::vector<column_spec> columns_;
};

} // namespace

expected<data_set_ptr> transformed(data_set_ptr set, std::shared_ptr<const preprocessor> how) {
  TROUPE_TRY(auto columns, how->output({set->columns().begin(), set->columns().end()}));
  return std::make_shared<const transformed_set>(std::move(set), std::move(how), std::move(columns));
}

} // namespace troupe::data
