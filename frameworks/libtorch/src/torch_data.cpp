#include <troupe/libtorch/torch_data.hpp>

#include "element_types.hpp"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <span>

namespace troupe::libtorch {

namespace {

data::column_spec column_of(const at::Tensor& tensor, std::string name) {
  if (!tensor.defined())
    throw exception{errc::invalid_argument, fmt::format("the first sample of a torch::data set has no '{}'", name)};
  const auto type = dtype_from(tensor.scalar_type());
  if (!type)
    throw exception{errc::invalid_argument, fmt::format("'{}' of a torch::data set is {}, which Troupe does not have",
                                                        name, c10::toString(tensor.scalar_type()))};
  std::vector<std::uint64_t> shape;
  for (auto n : tensor.sizes())
    shape.push_back(static_cast<std::uint64_t>(n));
  return {std::move(name), *type, std::move(shape), {}};
}

bool is_of(const at::Tensor& tensor, const data::column_spec& column) {
  return tensor.defined() && dtype_from(tensor.scalar_type()) == column.type &&
         std::ranges::equal(tensor.sizes(), column.shape,
                            [](auto a, auto b) { return static_cast<std::uint64_t>(a) == b; });
}

class examples final : public data::data_set {
 public:
  examples(std::uint64_t size, example_source source, std::string name)
      : size_(size), source_(std::move(source)), fingerprint_(data::fingerprint_of("torch::data " + name)) {
    const auto first = value_or_throw(make(0));
    columns_ = {column_of(first.data, "data"), column_of(first.target, "target")};
  }

  [[nodiscard]] std::uint64_t size() const noexcept override { return size_; }
  [[nodiscard]] std::span<const data::column_spec> columns() const noexcept override { return columns_; }
  [[nodiscard]] std::string fingerprint() const override { return fingerprint_; }

 protected:
  [[nodiscard]] expected<void> read(std::span<const std::uint64_t> samples, data::batch& out) const override {
    const auto lock = std::scoped_lock{mutex_};
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const auto example = make(samples[i]);
      if (!example)
        return fail(example.error());
      TROUPE_TRY(copy(samples[i], example->data, columns_[0], out.bytes(0), i));
      TROUPE_TRY(copy(samples[i], example->target, columns_[1], out.bytes(1), i));
    }
    return {};
  }

 private:
  [[nodiscard]] expected<torch::data::Example<>> make(std::uint64_t sample) const {
    try {
      return source_(sample);
    } catch (const c10::Error& x) {
      return fail(errc::user_error,
                  fmt::format("sample {} of a torch::data set: {}", sample, x.what_without_backtrace()));
    } catch (const std::exception& x) {
      return fail(errc::user_error, fmt::format("sample {} of a torch::data set: {}", sample, x.what()));
    }
  }

  [[nodiscard]] static expected<void> copy(std::uint64_t sample, const at::Tensor& tensor,
                                           const data::column_spec& column, std::span<std::byte> out, std::size_t row) {
    if (!is_of(tensor, column))
      return fail(errc::mismatch, fmt::format("sample {} of a torch::data set: its '{}' is not {}, as that of sample 0 "
                                              "is",
                                              sample, column.name, data::describe(column)));
    const auto values = tensor.to(at::kCPU).contiguous();
    std::copy_n(static_cast<const std::byte*>(values.data_ptr()), column.size_bytes(),
                out.subspan(row * column.size_bytes()).begin());
    return {};
  }

  std::uint64_t size_;
  example_source source_;
  std::string fingerprint_;
  std::vector<data::column_spec> columns_;
  /// torch::data sets need not be thread-safe.
  mutable std::mutex mutex_;
};

} // namespace

data::data_set_ptr adapt_examples(std::uint64_t size, example_source source, std::string name) {
  if (size == 0)
    throw exception{errc::invalid_argument, "a torch::data set without samples"};
  if (name.empty())
    throw exception{errc::invalid_argument, "a torch::data set needs a name that identifies its content"};
  return std::make_shared<const examples>(size, std::move(source), std::move(name));
}

} // namespace troupe::libtorch
