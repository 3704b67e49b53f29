#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <xxhash.h>

namespace troupe::data {

/// XXH3-128 over pieces of content. Texts and lists go in with their lengths, so that no two contents run together.
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
    std::string result;
    for (auto word : {hash.high64, hash.low64})
      for (int shift = 60; shift >= 0; shift -= 4)
        result += "0123456789abcdef"[(word >> shift) & 15u];
    return result;
  }

 private:
  struct release {
    void operator()(XXH3_state_t* state) const noexcept { XXH3_freeState(state); }
  };

  std::unique_ptr<XXH3_state_t, release> state_;
};

} // namespace troupe::data
