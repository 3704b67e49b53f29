#include <troupe/data/batch.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <utility>

namespace troupe::data {

void batch::reset(std::span<const column_spec> columns, std::uint64_t samples) {
  samples_ = samples;
  if (!std::ranges::equal(columns, specs_)) {
    for (auto& buffer : buffers_)
      spare_.push_back(std::move(buffer));
    buffers_.clear();
    specs_.assign(columns.begin(), columns.end());
    for (const auto& column : specs_)
      buffers_.push_back(take_buffer(column));
    return;
  }
  for (std::size_t i = 0; i < specs_.size(); ++i)
    buffers_[i].reserve(specs_[i].size_bytes() * samples);
}

std::optional<std::size_t> batch::find(std::string_view name) const noexcept {
  auto found = std::ranges::find(specs_, name, &column_spec::name);
  if (found == specs_.end())
    return std::nullopt;
  return static_cast<std::size_t>(found - specs_.begin());
}

std::size_t batch::index_of(std::string_view name) const {
  if (auto index = find(name))
    return *index;
  auto names = std::vector<std::string_view>{};
  for (const auto& column : specs_)
    names.push_back(column.name);
  throw exception{errc::not_found, fmt::format("no column '{}': the batch has '{}'", name, fmt::join(names, "', '"))};
}

std::span<std::byte> batch::bytes(std::size_t index) noexcept {
  return buffers_[index].bytes().first(specs_[index].size_bytes() * samples_);
}

std::span<const std::byte> batch::bytes(std::size_t index) const noexcept {
  return buffers_[index].bytes().first(specs_[index].size_bytes() * samples_);
}

std::span<const std::byte> batch::typed(std::string_view name, dtype type) const {
  auto index = index_of(name);
  if (specs_[index].type != type)
    throw exception{errc::mismatch, fmt::format("column '{}' is {}, but is accessed as {}", name,
                                                describe(specs_[index]), to_string(type))};
  return bytes(index);
}

tensor_view batch::tensor(std::string_view name) {
  auto index = index_of(name);
  const auto& column = specs_[index];
  auto shape = column.shape;
  shape.insert(shape.begin(), samples_);
  return {{column.name, column.type, std::move(shape)}, bytes(index).data()};
}

batch::detached_column batch::replace(std::size_t index, column_spec column) {
  auto fresh = take_buffer(column);
  return {std::exchange(specs_[index], std::move(column)), std::exchange(buffers_[index], std::move(fresh))};
}

std::size_t batch::add(column_spec column) {
  buffers_.push_back(take_buffer(column));
  specs_.push_back(std::move(column));
  return specs_.size() - 1;
}

batch::detached_column batch::remove(std::size_t index) {
  auto result = detached_column{std::move(specs_[index]), std::move(buffers_[index])};
  specs_.erase(specs_.begin() + static_cast<std::ptrdiff_t>(index));
  buffers_.erase(buffers_.begin() + static_cast<std::ptrdiff_t>(index));
  return result;
}

void batch::append(batch&& other) {
  std::ranges::move(other.specs_, std::back_inserter(specs_));
  std::ranges::move(other.buffers_, std::back_inserter(buffers_));
  other.specs_.clear();
  other.buffers_.clear();
}

/// The smallest spare buffer that is large enough, or a new one.
collectives::aligned_buffer batch::take_buffer(const column_spec& column) {
  auto wanted = column.size_bytes() * samples_;
  auto best = spare_.end();
  for (auto i = spare_.begin(); i != spare_.end(); ++i)
    if (i->size_bytes() >= wanted && (best == spare_.end() || i->size_bytes() < best->size_bytes()))
      best = i;
  if (best == spare_.end()) {
    // Drops a buffer that is too small, since it will not be large enough later either.
    if (!spare_.empty())
      spare_.pop_back();
    return collectives::aligned_buffer{static_cast<std::size_t>(wanted)};
  }
  auto result = std::move(*best);
  spare_.erase(best);
  return result;
}

} // namespace troupe::data
