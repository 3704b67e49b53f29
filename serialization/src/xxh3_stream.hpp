#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <xxhash.h>

namespace troupe::serialization {

/// `xxh3()` over bytes that come in pieces.
class xxh3_stream {
 public:
  xxh3_stream() : state_(XXH3_createState()) {
    if (!state_)
      throw std::bad_alloc{};
    XXH3_64bits_reset(state_.get());
  }

  void update(std::span<const std::byte> bytes) { XXH3_64bits_update(state_.get(), bytes.data(), bytes.size()); }

  [[nodiscard]] std::uint64_t digest() const { return XXH3_64bits_digest(state_.get()); }

 private:
  struct release {
    void operator()(XXH3_state_t* state) const noexcept { XXH3_freeState(state); }
  };

  std::unique_ptr<XXH3_state_t, release> state_;
};

} // namespace troupe::serialization
