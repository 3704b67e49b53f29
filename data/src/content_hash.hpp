#pragma once

#include <cstddef>
#include <cstdint>
#include <fmt/format.h>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <xxhash.h>
// The same functions with the processor's vector instructions: two to three times as fast.
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif

namespace troupe::data {

/// XXH3-128 over pieces of content. Texts and lists are hashed with their lengths, so that their boundaries count.
class content_hash {
 public:
  content_hash() : state_(XXH3_createState()) {
    if (!state_)
      throw std::bad_alloc{};
    XXH3_128bits_reset(state_.get());
  }

  void add(std::span<const std::byte> bytes) { XXH3_128bits_update(state_.get(), bytes.data(), bytes.size()); }

  void add(std::uint64_t value) { add(std::as_bytes(std::span{&value, 1})); }

  void add(std::string_view text) {
    add(std::uint64_t{text.size()});
    add(std::as_bytes(std::span{text.data(), text.size()}));
  }

  /// 32 lower-case hexadecimal digits.
  [[nodiscard]] std::string digest() const {
    auto hash = XXH3_128bits_digest(state_.get());
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
  }

 private:
  struct release {
    void operator()(XXH3_state_t* state) const noexcept { XXH3_freeState(state); }
  };

  std::unique_ptr<XXH3_state_t, release> state_;
};

} // namespace troupe::data
