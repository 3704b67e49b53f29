#pragma once

#include <troupe/dtype.hpp>
#include <troupe/error.hpp>
#include <troupe/load_options.hpp>
#include <troupe/tensor.hpp>
#include <troupe/tensor_memory.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::serialization {
class checkpoint;
struct manifest;
} // namespace troupe::serialization

namespace troupe {

/// The checkpoint that a run begins with, local or streamed.
class state_source {
 public:
  virtual ~state_source() = default;

  [[nodiscard]] virtual const serialization::manifest& content() const = 0;
  /// For people.
  [[nodiscard]] virtual std::string name() const = 0;
  /// Copies a tensor's bytes to `target`, which has exactly its size, and verifies the copy. Fails with `errc::damaged`
  /// or `errc::io_error`; `target` then holds anything.
  [[nodiscard]] virtual expected<void> read_tensor(std::size_t index, std::span<std::byte> target) const = 0;
};

/// The state of a run: the tensors that outlive a step. Tracked tensors are saved in checkpoints, restored when the run
/// resumes, compared between replicas, and identified by `state_sha256`. Used from the training thread only.
class tracked_state {
 public:
  tracked_state();
  tracked_state(const tracked_state&) = delete;
  tracked_state& operator=(const tracked_state&) = delete;
  ~tracked_state();

  /// Tracks memory that the caller keeps alive, in place and of one size until the training function returns: a vector
  /// that is assigned or resized moves, and is lost. If the run resumes from a checkpoint, the memory holds its values
  /// when this returns; otherwise it is unchanged. Names are unique. `shape` may be omitted for a vector. Throws
  /// `exception`: `errc::invalid_argument` (the name is taken, or shape and size differ), `errc::damaged`. If the
  /// checkpoint lacks the tensor, or has it with another type or shape, the memory is unchanged; the first step,
  /// evaluation or checkpoint then reports all such tensors at once.
  template <std::ranges::contiguous_range Values>
  requires std::ranges::borrowed_range<Values>
  void track(std::string name, Values&& values, std::vector<std::uint64_t> shape = {}) {
    auto elements = std::span{values};
    using element = typename decltype(elements)::element_type;
    static_assert(!std::is_const_v<element>, "tracked memory is restored in place: it must be writable");
    if (shape.empty())
      shape = {elements.size()};
    add({{std::move(name), dtype_of<element>, std::move(shape)}, reinterpret_cast<std::byte*>(elements.data())},
        elements.size_bytes());
  }

  /// Tracks a tensor of any type. `size_bytes` is what the caller's memory has.
  void add(tensor_view tensor, std::size_t size_bytes);

  /// Tracks a tensor that only `memory` can access, for example on a GPU (see <troupe/tensor_memory.hpp>). Restored
  /// before this returns. Throws `exception` as the other `track` does, and with the errors of `memory`.
  void track(std::string name, dtype type, std::vector<std::uint64_t> shape, std::shared_ptr<tensor_memory> memory);

  /// For what is tracked as a copy of something else: `load` is called before each step's body with the step's number,
  /// `store` after it. What they use lives until the training function returns.
  void around_body(std::function<void(std::uint64_t step)> load, std::function<void()> store) {
    copies_.push_back({std::move(load), std::move(store)});
  }
  /// Called by the runtime.
  void begin_body(std::uint64_t step) const {
    for (const auto& each : copies_)
      each.load(step);
  }
  void end_body() const {
    for (const auto& each : copies_)
      each.store();
  }

  /// Small values that are saved with the state and are part of its identity: an object. Restored before the training
  /// function begins.
  [[nodiscard]] nlohmann::json& values() noexcept { return *values_; }
  [[nodiscard]] const nlohmann::json& values() const noexcept { return *values_; }

  /// `data` is null for tensors that a `tensor_memory` accesses.
  [[nodiscard]] std::span<const tensor_view> tensors() const noexcept { return tensors_; }
  [[nodiscard]] std::vector<tensor_spec> specs() const;

  // -- the bytes, in any memory. Throw `exception` with the errors of a `tensor_memory`.

  /// Copies a range of tensor `index` to `target`.
  void copy_out(std::size_t index, std::uint64_t offset_bytes, std::span<std::byte> target) const;
  /// Copies `source` over a range of tensor `index`.
  void copy_in(std::size_t index, std::uint64_t offset_bytes, std::span<const std::byte> source);
  using byte_sink = std::function<void(std::span<const std::byte>)>;
  /// Hands a range of tensor `index` to `look`, in order: at once and in place where it can, else in pieces.
  void look_at(std::size_t index, std::uint64_t offset_bytes, std::uint64_t size_bytes, const byte_sink& look) const;
  /// The memory of a range of tensor `index`, to be read or filled in place; empty if it is not host memory.
  [[nodiscard]] std::span<std::byte> in_place(std::size_t index, std::uint64_t offset_bytes,
                                              std::uint64_t size_bytes) const noexcept;
  /// The memory of some tensor that is not in host memory; null if all are.
  [[nodiscard]] std::shared_ptr<tensor_memory> distant_memory() const noexcept;

  /// Begins with a checkpoint's state instead of what `track` finds. Called by the runtime before the training
  /// function.
  void restore_from(std::shared_ptr<const state_source> source, load_options options = {});
  void restore_from(std::shared_ptr<const serialization::checkpoint> source, load_options options = {});

  /// Throws `exception` with `errc::mismatch` unless the checkpoint and what is tracked have the same tensors, as far
  /// as the options want it: names all that are missing, not tracked, or of another type or shape.
  void check_restored() const;

  /// The same while more may be tracked: names those that are missing, or of another type or shape, so far.
  void check_restored_so_far() const;

  /// The names in the checkpoint that are not tracked.
  [[nodiscard]] std::vector<std::string> untouched() const;

  /// A digest of everything that is tracked, tensors and values; tells whether anything changed.
  [[nodiscard]] std::uint64_t digest() const;

  /// A digest of one slice of the state; successive numbers cycle through it.
  [[nodiscard]] std::uint64_t digest_of_slice(std::uint64_t number) const;

  /// The parts that the slices belong to, named as in `name_of_part`, with their numbers of slices, in the order of
  /// `digest_of_slice`.
  [[nodiscard]] std::vector<std::pair<std::string, std::uint64_t>> slices() const;

  /// A digest of each tensor, in order of tracking, and one of the values behind them.
  [[nodiscard]] std::vector<std::uint64_t> digests() const;

  /// The part of the digest at `index` of `digests()`: "tensor 'weights'", "values()".
  [[nodiscard]] std::string name_of_part(std::size_t index) const;

  /// The identity of the state: 64 hexadecimal digits; empty when nothing is tracked.
  [[nodiscard]] std::string sha256() const;

 private:
  struct tracked_copy {
    std::function<void(std::uint64_t step)> load;
    std::function<void()> store;
  };

  void check_new(const tensor_spec& spec, std::uint64_t size_bytes) const;
  [[nodiscard]] std::uint64_t digest_of(std::size_t index, std::uint64_t offset_bytes, std::uint64_t size_bytes) const;
  void keep(tensor_view tensor, std::shared_ptr<tensor_memory> memory);
  [[nodiscard]] std::optional<std::size_t> find_in_source(const std::string& name) const;
  void check(bool is_complete) const;

  std::vector<tensor_view> tensors_;
  /// Of each tensor; null where it has `data`.
  std::vector<std::shared_ptr<tensor_memory>> memories_;
  std::vector<tracked_copy> copies_;
  /// Behind a pointer, so that who tracks tensors need not compile JSON.
  std::unique_ptr<nlohmann::json> values_;
  std::shared_ptr<const state_source> source_;
  load_options options_;
  /// Tensors that the checkpoint lacks, or has with another type or shape.
  std::vector<std::string> missing_;
  std::vector<std::string> different_;
};

} // namespace troupe
