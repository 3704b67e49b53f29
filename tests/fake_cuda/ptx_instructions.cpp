#include "ptx_machine.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

// See README.md. Chapter 9 of the PTX ISA says what each instruction does.

namespace fake_cuda::ptx {

namespace {

template <class T>
T value(const lane& on, int place) noexcept {
  const auto bits = on.registers[place];
  if constexpr (std::is_same_v<T, float>)
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  else if constexpr (std::is_same_v<T, double>)
    return std::bit_cast<double>(bits);
  else
    return static_cast<T>(bits);
}

template <class T>
void put(const lane& on, int place, T x) noexcept {
  if constexpr (std::is_same_v<T, float>)
    on.registers[place] = std::bit_cast<std::uint32_t>(x);
  else if constexpr (std::is_same_v<T, double>)
    on.registers[place] = std::bit_cast<std::uint64_t>(x);
  else
    on.registers[place] = static_cast<word>(static_cast<std::int64_t>(x));
}

/// Arithmetic in single precision that results in a NaN produces these bits, whatever the operands' bits.
template <class T>
T made(T x) noexcept {
  if constexpr (std::is_same_v<T, float>)
    return std::isnan(x) ? std::bit_cast<float>(0x7fffffffu) : x;
  else
    return x;
}

/// Signed integers wrap like unsigned ones.
template <class T>
using wide = std::conditional_t<std::is_floating_point_v<T>, T, std::uint64_t>;

struct plus {
  template <class T>
  static T of(T x, T y) {
    return static_cast<T>(static_cast<wide<T>>(x) + static_cast<wide<T>>(y));
  }
};
struct minus {
  template <class T>
  static T of(T x, T y) {
    return static_cast<T>(static_cast<wide<T>>(x) - static_cast<wide<T>>(y));
  }
};
struct times {
  template <class T>
  static T of(T x, T y) {
    return static_cast<T>(static_cast<wide<T>>(x) * static_cast<wide<T>>(y));
  }
};
struct over {
  template <class T>
  static T of(T x, T y) {
    if constexpr (std::is_integral_v<T>)
      if (y == 0)
        throw violation{"divides by zero"};
    return static_cast<T>(x / y);
  }
};
struct remainder {
  template <class T>
  static T of(T x, T y) {
    if (y == 0)
      throw violation{"divides by zero"};
    return static_cast<T>(x % y);
  }
};
struct lesser {
  template <class T>
  static T of(T x, T y) {
    return y < x ? y : x;
  }
};
struct greater {
  template <class T>
  static T of(T x, T y) {
    return x < y ? y : x;
  }
};
struct both {
  template <class T>
  static T of(T x, T y) {
    return static_cast<T>(x & y);
  }
};
struct either {
  template <class T>
  static T of(T x, T y) {
    return static_cast<T>(x | y);
  }
};
struct one_of {
  template <class T>
  static T of(T x, T y) {
    return static_cast<T>(x ^ y);
  }
};
struct with_sign_of_first {
  template <class T>
  static T of(T x, T y) {
    return std::copysign(y, x);
  }
};

template <class T, class F>
void binary(lane& on, const instruction& x) {
  put(on, x.to[0], made(F::of(value<T>(on, x.from[0]), value<T>(on, x.from[1]))));
}

/// Copies the value, including the bits of a NaN.
template <class T, class F>
void binary_of_bits(lane& on, const instruction& x) {
  put(on, x.to[0], F::of(value<T>(on, x.from[0]), value<T>(on, x.from[1])));
}

struct negated {
  template <class T>
  static T of(T x) {
    if constexpr (std::is_floating_point_v<T>)
      return -x;
    else
      return static_cast<T>(0 - static_cast<wide<T>>(x));
  }
};
struct complement {
  template <class T>
  static T of(T x) {
    return static_cast<T>(~x);
  }
};
struct magnitude {
  template <class T>
  static T of(T x) {
    return std::fabs(x);
  }
};
struct root {
  template <class T>
  static T of(T x) {
    return made(std::sqrt(x));
  }
};
struct reciprocal {
  template <class T>
  static T of(T x) {
    return made(T{1} / x);
  }
};

template <class T, class F>
void unary(lane& on, const instruction& x) {
  put(on, x.to[0], F::of(value<T>(on, x.from[0])));
}

template <class T>
void multiply_wide(lane& on, const instruction& x) {
  using twice = std::conditional_t<sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, std::int32_t, std::uint32_t>,
                                   std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>;
  put(on, x.to[0],
      static_cast<twice>(static_cast<twice>(value<T>(on, x.from[0])) * static_cast<twice>(value<T>(on, x.from[1]))));
}

/// A shift by at least the width leaves nothing, or the sign.
template <class T>
void shift_left(lane& on, const instruction& x) {
  const auto by = value<std::uint32_t>(on, x.from[1]);
  put(on, x.to[0], by < sizeof(T) * 8 ? static_cast<T>(value<std::uint64_t>(on, x.from[0]) << by) : T{0});
}
template <class T>
void shift_right(lane& on, const instruction& x) {
  constexpr std::uint32_t most = sizeof(T) * 8 - 1;
  const auto by = value<std::uint32_t>(on, x.from[1]);
  const auto from = value<T>(on, x.from[0]);
  if (by <= most)
    put(on, x.to[0], static_cast<T>(from >> by));
  else
    put(on, x.to[0], std::is_signed_v<T> ? static_cast<T>(from >> most) : T{0});
}

/// Each of the lower four hexadecimal digits of the selector chooses a byte of the two words, or its sign.
void permute_bytes(lane& on, const instruction& x) {
  const auto bytes = value<std::uint32_t>(on, x.from[0]) | value<std::uint64_t>(on, x.from[1]) << 32;
  const auto selector = value<std::uint32_t>(on, x.from[2]);
  std::uint32_t result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const auto digit = selector >> (4 * i) & 15;
    auto byte = static_cast<std::uint32_t>(bytes >> (8 * (digit & 7)) & 255);
    if ((digit & 8) != 0)
      byte = (byte & 128) != 0 ? 255 : 0;
    result |= byte << (8 * i);
  }
  put(on, x.to[0], result);
}

struct is_equal {
  template <class T>
  static bool of(T x, T y) {
    return x == y;
  }
};
struct is_less {
  template <class T>
  static bool of(T x, T y) {
    return x < y;
  }
};
struct is_greater {
  template <class T>
  static bool of(T x, T y) {
    return x > y;
  }
};
struct is_at_most {
  template <class T>
  static bool of(T x, T y) {
    return x <= y;
  }
};
struct is_at_least {
  template <class T>
  static bool of(T x, T y) {
    return x >= y;
  }
};
/// Floats: both are numbers and they differ.
struct is_other {
  template <class T>
  static bool of(T x, T y) {
    return x < y || x > y;
  }
};
struct are_numbers {
  template <class T>
  static bool of(T x, T y) {
    return !std::isnan(x) && !std::isnan(y);
  }
};
/// Either `F` holds, or one of the operands is a NaN.
template <class F>
struct or_no_numbers {
  template <class T>
  static bool of(T x, T y) {
    return !are_numbers::of(x, y) || F::of(x, y);
  }
};
struct never {
  template <class T>
  static bool of(T, T) {
    return false;
  }
};

template <class T, class F>
void compare(lane& on, const instruction& x) {
  put(on, x.to[0], static_cast<std::uint32_t>(F::of(value<T>(on, x.from[0]), value<T>(on, x.from[1]))));
}

template <class T>
void select(lane& on, const instruction& x) {
  put(on, x.to[0], value<T>(on, value<std::uint32_t>(on, x.from[2]) != 0 ? x.from[0] : x.from[1]));
}

/// Between registers, or between one register and the parts of a vector, lowest first.
template <class T>
void move(lane& on, const instruction& x) {
  if (x.width == 1) {
    put(on, x.to[0], value<T>(on, x.from[0]));
  } else if constexpr (std::is_unsigned_v<T> && sizeof(T) > 1) {
    const auto bits = sizeof(T) * 8 / static_cast<unsigned>(x.width);
    const auto mask = (word{1} << bits) - 1;
    // One side is a single register, which contains all parts.
    if (x.to[0] == x.to[1]) {
      word packed = 0;
      for (int i = 0; i < x.width; ++i)
        packed |= (on.registers[x.from[static_cast<std::size_t>(i)]] & mask) << (bits * static_cast<unsigned>(i));
      put(on, x.to[0], packed);
    } else {
      const auto packed = on.registers[x.from[0]];
      for (int i = 0; i < x.width; ++i)
        put(on, x.to[static_cast<std::size_t>(i)], packed >> (bits * static_cast<unsigned>(i)) & mask);
    }
  } else {
    throw violation{"vectors of this type are not supported"};
  }
}

/// For conversions that are exact or round to nearest.
template <class To, class From>
void convert(lane& on, const instruction& x) {
  put(on, x.to[0], static_cast<To>(value<From>(on, x.from[0])));
}

enum class space { parameters, shared, global };

template <space Where, class T>
void load(lane& on, const instruction& x) {
  const auto at = on.registers[x.from[0]] + static_cast<word>(x.offset_bytes);
  const auto size_bytes = sizeof(T) * static_cast<std::size_t>(x.width);
  const std::byte* data = Where == space::parameters ? on.memory.parameter(at, size_bytes)
                          : Where == space::shared   ? on.memory.shared(at, size_bytes, false)
                                                     : on.memory.global(at, size_bytes, false);
  for (std::size_t i = 0; i < static_cast<std::size_t>(x.width); ++i) {
    std::array<std::byte, sizeof(T)> bytes;
    std::copy_n(data + i * sizeof(T), sizeof(T), bytes.begin());
    put(on, x.to[i], std::bit_cast<T>(bytes));
  }
}

template <space Where, class T>
void store(lane& on, const instruction& x) {
  const auto at = on.registers[x.to[0]] + static_cast<word>(x.offset_bytes);
  const auto size_bytes = sizeof(T) * static_cast<std::size_t>(x.width);
  auto* data = Where == space::shared ? on.memory.shared(at, size_bytes, true) : on.memory.global(at, size_bytes, true);
  for (std::size_t i = 0; i < static_cast<std::size_t>(x.width); ++i) {
    const auto bytes = std::bit_cast<std::array<std::byte, sizeof(T)>>(value<T>(on, x.from[i]));
    std::ranges::copy(bytes, data + i * sizeof(T));
  }
}

using table = std::map<std::string, handler, std::less<>>;

template <class T>
void add_memory(table& all, const std::string& type) {
  all["ld.param." + type] = load<space::parameters, T>;
  all["ld.shared." + type] = load<space::shared, T>;
  all["ld.global." + type] = load<space::global, T>;
  all["st.shared." + type] = store<space::shared, T>;
  all["st.global." + type] = store<space::global, T>;
}

template <class T>
void add_bits(table& all, const std::string& type) {
  all["mov." + type] = move<T>;
  all["selp." + type] = select<T>;
}

template <class T>
void add_logic(table& all, const std::string& type) {
  all["and." + type] = binary_of_bits<T, both>;
  all["or." + type] = binary_of_bits<T, either>;
  all["xor." + type] = binary_of_bits<T, one_of>;
}

template <class T>
void add_order(table& all, const std::string& type) {
  all["setp.eq." + type] = compare<T, is_equal>;
  all["setp.lt." + type] = compare<T, is_less>;
  all["setp.gt." + type] = compare<T, is_greater>;
  all["setp.le." + type] = compare<T, is_at_most>;
  all["setp.ge." + type] = compare<T, is_at_least>;
  all["setp.ne." + type] = compare<T, is_other>;
}

template <class T>
void add_integer(table& all, const std::string& type) {
  add_memory<T>(all, type);
  add_bits<T>(all, type);
  add_order<T>(all, type);
  all["add." + type] = binary<T, plus>;
  all["sub." + type] = binary<T, minus>;
  all["mul.lo." + type] = binary<T, times>;
  all["div." + type] = binary<T, over>;
  all["rem." + type] = binary<T, remainder>;
  all["min." + type] = binary<T, lesser>;
  all["max." + type] = binary<T, greater>;
  all["shr." + type] = shift_right<T>;
  if constexpr (std::is_signed_v<T>)
    all["neg." + type] = unary<T, negated>;
  if constexpr (sizeof(T) < 8)
    all["mul.wide." + type] = multiply_wide<T>;
}

template <class T>
void add_untyped(table& all, const std::string& type) {
  add_memory<T>(all, type);
  add_bits<T>(all, type);
  add_logic<T>(all, type);
  all["not." + type] = unary<T, complement>;
  all["shl." + type] = shift_left<T>;
  all["setp.eq." + type] = compare<T, is_equal>;
  all["setp.ne." + type] = compare<T, is_other>;
}

template <class T>
void add_float(table& all, const std::string& type) {
  add_memory<T>(all, type);
  add_bits<T>(all, type);
  add_order<T>(all, type);
  all["setp.equ." + type] = compare<T, or_no_numbers<is_equal>>;
  all["setp.neu." + type] = compare<T, or_no_numbers<is_other>>;
  all["setp.ltu." + type] = compare<T, or_no_numbers<is_less>>;
  all["setp.gtu." + type] = compare<T, or_no_numbers<is_greater>>;
  all["setp.leu." + type] = compare<T, or_no_numbers<is_at_most>>;
  all["setp.geu." + type] = compare<T, or_no_numbers<is_at_least>>;
  all["setp.num." + type] = compare<T, are_numbers>;
  all["setp.nan." + type] = compare<T, or_no_numbers<never>>;
  all["add.rn." + type] = binary<T, plus>;
  all["sub.rn." + type] = binary<T, minus>;
  all["mul.rn." + type] = binary<T, times>;
  all["div.rn." + type] = binary<T, over>;
  all["rcp.rn." + type] = unary<T, reciprocal>;
  all["sqrt.rn." + type] = unary<T, root>;
  all["neg." + type] = unary<T, negated>;
  all["abs." + type] = unary<T, magnitude>;
  all["copysign." + type] = binary_of_bits<T, with_sign_of_first>;
}

template <class To, class From>
void add_conversion(table& all, const std::string& to, const std::string& from) {
  // Conversions of integers need no rounding mode. Conversions of floats need one unless they widen.
  if constexpr (std::is_integral_v<To> == std::is_integral_v<From>) {
    if constexpr (std::is_integral_v<To> || sizeof(To) > sizeof(From))
      all["cvt." + to + "." + from] = convert<To, From>;
    else if constexpr (sizeof(To) < sizeof(From))
      all["cvt.rn." + to + "." + from] = convert<To, From>;
  } else if constexpr (std::is_integral_v<From>) {
    all["cvt.rn." + to + "." + from] = convert<To, From>;
  }
}

template <class From>
void add_conversions(table& all, const std::string& from) {
  add_conversion<std::uint16_t, From>(all, "u16", from);
  add_conversion<std::uint32_t, From>(all, "u32", from);
  add_conversion<std::uint64_t, From>(all, "u64", from);
  add_conversion<std::int16_t, From>(all, "s16", from);
  add_conversion<std::int32_t, From>(all, "s32", from);
  add_conversion<std::int64_t, From>(all, "s64", from);
  add_conversion<float, From>(all, "f32", from);
  add_conversion<double, From>(all, "f64", from);
}

table make_table() {
  table all;
  add_memory<std::uint8_t>(all, "u8");
  add_memory<std::int8_t>(all, "s8");
  add_memory<std::uint8_t>(all, "b8");
  add_integer<std::uint16_t>(all, "u16");
  add_integer<std::int16_t>(all, "s16");
  add_integer<std::uint32_t>(all, "u32");
  add_integer<std::int32_t>(all, "s32");
  add_integer<std::uint64_t>(all, "u64");
  add_integer<std::int64_t>(all, "s64");
  add_untyped<std::uint16_t>(all, "b16");
  add_untyped<std::uint32_t>(all, "b32");
  add_untyped<std::uint64_t>(all, "b64");
  add_float<float>(all, "f32");
  add_float<double>(all, "f64");
  add_logic<std::uint32_t>(all, "pred");
  all["mov.pred"] = move<std::uint32_t>;
  all["prmt.b32"] = permute_bytes;
  // All addresses are generic here.
  all["cvta.to.global.u64"] = move<std::uint64_t>;
  add_conversions<std::uint8_t>(all, "u8");
  add_conversions<std::int8_t>(all, "s8");
  add_conversions<std::uint16_t>(all, "u16");
  add_conversions<std::int16_t>(all, "s16");
  add_conversions<std::uint32_t>(all, "u32");
  add_conversions<std::int32_t>(all, "s32");
  add_conversions<std::uint64_t>(all, "u64");
  add_conversions<std::int64_t>(all, "s64");
  add_conversions<float>(all, "f32");
  add_conversions<double>(all, "f64");
  return all;
}

} // namespace

handler find_handler(std::string_view name) {
  static const auto& all = *new table{make_table()};
  const auto found = all.find(name);
  return found == all.end() ? nullptr : found->second;
}

} // namespace fake_cuda::ptx
