#pragma once

#include <cstdint>

/// Defines CAF's `inspect` for a struct: `TROUPE_INSPECT(worker_output, run, worker, lines)` behind the struct, in its
/// namespace. The fields travel in this order.
#define TROUPE_INSPECT(type, ...)                                                                                      \
  template <class Inspector>                                                                                           \
  bool inspect(Inspector& f, type& x) {                                                                                \
    return f.object(x).fields(__VA_OPT__(TROUPE_RESCAN(TROUPE_FIELDS(__VA_ARGS__))));                                  \
  }

/// Defines `inspect` for an enum of 8 bits without gaps. Fails for a number outside `first` to `last`.
// NOLINTBEGIN(bugprone-macro-parentheses): a type stands in none.
#define TROUPE_INSPECT_ENUM(type, first, last)                                                                         \
  template <class Inspector>                                                                                           \
  bool inspect(Inspector& f, type& x) {                                                                                \
    auto get = [&x] { return static_cast<std::uint8_t>(x); };                                                          \
    auto set = [&x](std::uint8_t value) {                                                                              \
      x = static_cast<type>(value);                                                                                    \
      return !(x < type::first) && !(type::last < x);                                                                  \
    };                                                                                                                 \
    return f.apply(get, set);                                                                                          \
  }
// NOLINTEND(bugprone-macro-parentheses)

// A macro cannot call itself, but each scan of its result expands one field more. 25 scans are made.
#define TROUPE_FIELDS(name, ...)                                                                                       \
  f.field(#name, x.name) __VA_OPT__(, TROUPE_NEXT_FIELDS TROUPE_NO_ARGUMENTS(__VA_ARGS__))
#define TROUPE_NEXT_FIELDS() TROUPE_FIELDS
#define TROUPE_NO_ARGUMENTS ()
#define TROUPE_RESCAN(...)                                                                                             \
  TROUPE_RESCAN_5(TROUPE_RESCAN_5(TROUPE_RESCAN_5(TROUPE_RESCAN_5(TROUPE_RESCAN_5(__VA_ARGS__)))))
#define TROUPE_RESCAN_5(...) TROUPE_RESCAN_1(TROUPE_RESCAN_1(TROUPE_RESCAN_1(TROUPE_RESCAN_1(__VA_ARGS__))))
#define TROUPE_RESCAN_1(...) __VA_ARGS__
