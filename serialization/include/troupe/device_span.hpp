#pragma once

#include <cstddef>
#include <type_traits>

namespace troupe {

/// Elements in the memory of a GPU, which it does not own. The host cannot access them, so there is no `data()`,
/// iterator or `operator[]`; kernels, libraries and copies take `address()`.
template <class T>
class device_span {
 public:
  using element_type = T;

  constexpr device_span() noexcept = default;
  constexpr device_span(T* address, std::size_t size) noexcept : address_(address), size_(size) {}
  template <class U>
  requires std::is_convertible_v<U (*)[], T (*)[]>
  constexpr device_span(device_span<U> other) noexcept : address_(other.address()), size_(other.size()) {}

  /// For a kernel call or a copy. Not to be dereferenced here.
  [[nodiscard]] constexpr T* address() const noexcept { return address_; }
  [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
  [[nodiscard]] constexpr std::size_t size_bytes() const noexcept { return size_ * sizeof(T); }
  [[nodiscard]] constexpr bool empty() const noexcept { return size_ == 0; }

  [[nodiscard]] constexpr device_span first(std::size_t count) const noexcept { return {address_, count}; }
  [[nodiscard]] constexpr device_span subspan(std::size_t offset) const noexcept {
    return {address_ + offset, size_ - offset};
  }
  [[nodiscard]] constexpr device_span subspan(std::size_t offset, std::size_t count) const noexcept {
    return {address_ + offset, count};
  }

  /// The same memory as elements of another type.
  template <class U>
  [[nodiscard]] device_span<U> as() const noexcept {
    static_assert(std::is_const_v<U> || !std::is_const_v<T>, "the elements are const");
    return {reinterpret_cast<U*>(address_), size_bytes() / sizeof(U)};
  }

 private:
  T* address_ = nullptr;
  std::size_t size_ = 0;
};

} // namespace troupe
