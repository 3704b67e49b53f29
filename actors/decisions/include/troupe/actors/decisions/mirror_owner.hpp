#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace troupe::actors {

/// The driver that copies to a run's mirror: the content of `owner.json` there. Drivers of one run on several hosts
/// have no directory in common whose lock would keep them apart.
struct mirror_owner {
  std::string run;
  /// Greater than that of all drivers before; 0 before the driver has one.
  std::uint64_t claim = 0;
  /// The driver's own, random.
  std::string token;
  std::string host;
  std::uint32_t pid = 0;
  /// When the driver began, as events.jsonl has it.
  std::string time;

  bool operator==(const mirror_owner&) const = default;
};

/// One line.
[[nodiscard]] std::string to_json(const mirror_owner& owner);
/// Nothing if the text is no record.
[[nodiscard]] std::optional<mirror_owner> parse_mirror_owner(std::string_view json);

/// For people: "the driver with process id 7 on host-a, since ...".
[[nodiscard]] std::string describe(const mirror_owner& owner);

/// The claim of a driver that begins, and finds this record. `known` is one that is known from elsewhere; 0 if none is.
[[nodiscard]] std::uint64_t next_claim(const std::optional<mirror_owner>& found, std::uint64_t known);

enum class mirror_standing : std::uint8_t {
  /// The record is the driver's own.
  owns = 1,
  /// It writes its record, and owns the mirror.
  takes = 2,
  /// A later driver has the mirror, or one that took it at the same time and was the last to write.
  superseded = 3,
};

/// Where the driver `own`, which has a claim, stands when it finds this record.
[[nodiscard]] mirror_standing standing_of(const mirror_owner& own, const std::optional<mirror_owner>& found);

} // namespace troupe::actors
