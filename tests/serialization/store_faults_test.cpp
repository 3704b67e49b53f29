// I/O errors at every operation of a store's life.
#include "checkpoint_scenario.hpp"
#include "interposed_files.hpp"
#include "memory_disk.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

using namespace troupe;
using namespace troupe::serialization;
namespace fs = std::filesystem;

namespace {

/// Fails one operation, or all from one on.
class faulty_files : public interposed_files {
 public:
  enum class lasting : std::uint8_t { once, for_good };

  faulty_files(file_system& below, std::size_t first, int cause, lasting how)
      : interposed_files(below, [this](operation what, const fs::path& path) { return decide(what, path); }),
        first_(first),
        cause_(cause),
        how_(how) {}

  void repair() { repaired_ = true; }
  [[nodiscard]] std::size_t operations() const noexcept { return operations_; }
  [[nodiscard]] const std::vector<fs::path>& failed_at() const noexcept { return failed_at_; }

 private:
  verdict decide(operation what, const fs::path& path) {
    auto number = operations_++;
    auto is_hit = how_ == lasting::once ? number == first_ : number >= first_;
    if (repaired_ || !is_hit || what == operation::drop_cached)
      return {};
    failed_at_.push_back(path);
    return {verdict::kind::failed, cause_, {}};
  }

  std::size_t first_;
  int cause_;
  lasting how_;
  bool repaired_ = false;
  std::size_t operations_ = 0;
  std::vector<fs::path> failed_at_;
};

std::size_t operations_of_scenario(checkpoint_scenario::shape sizes) {
  auto disk = memory_disk{};
  auto counting = faulty_files{disk, ~std::size_t{0}, EIO, faulty_files::lasting::once};
  REQUIRE(checkpoint_scenario{counting, sizes}.run());
  return counting.operations();
}

bool names_any(const error& reason, const std::vector<fs::path>& paths) {
  return std::ranges::any_of(
      paths, [&](const fs::path& path) { return reason.message.find(path.string()) != std::string::npos; });
}

void break_at(std::size_t operation, int cause, faulty_files::lasting how, checkpoint_scenario::shape sizes) {
  CAPTURE(operation);
  CAPTURE(std::strerror(cause));
  auto disk = memory_disk{};
  auto broken = faulty_files{disk, operation, cause, how};
  auto scenario = checkpoint_scenario{broken, sizes};
  auto done = scenario.run();
  if (!done) {
    CHECK((done.error().code == errc::io_error || done.error().code == errc::damaged));
    CHECK_MESSAGE(done.error().message.find(std::strerror(cause)) != std::string::npos, done.error().message);
    CHECK_MESSAGE(names_any(done.error(), broken.failed_at()), done.error().message);
  }
  broken.repair();
  auto flaw = scenario.find_flaw();
  CHECK_MESSAGE(!flaw, flaw.value_or(""));
  // A later attempt, under another name.
  auto next = checkpoint_scenario{disk, sizes, scenario.promises()};
  auto gone_on = next.go_on();
  CHECK_MESSAGE(gone_on, (gone_on ? std::string{} : gone_on.error().message));
  flaw = next.find_flaw();
  CHECK_MESSAGE(!flaw, flaw.value_or(""));
}

} // namespace

TEST_CASE("an I/O error at any operation loses no checkpoint, and is reported with its place") {
  using lasting = faulty_files::lasting;
  auto break_everywhere = [](int cause, lasting how, checkpoint_scenario::shape sizes) {
    auto operations = operations_of_scenario(sizes);
    CHECK(operations > 200);
    for (std::size_t i = 0; i < operations; ++i)
      break_at(i, cause, how, sizes);
  };
  for (auto cause : {EIO, ENOSPC, EDQUOT, EROFS})
    break_everywhere(cause, lasting::once, {});
  for (auto cause : {EIO, ENOSPC})
    break_everywhere(cause, lasting::for_good, {});
  break_everywhere(EIO, lasting::once, {1, 8192, 1});
  for (auto cause : {EIO, ENOSPC, EMLINK})
    break_everywhere(cause, lasting::once, checkpoint_scenario::with_frozen_tensor());
}

TEST_CASE("an attempt whose commit failed is repeated under another name") {
  auto operations = operations_of_scenario({});
  for (std::size_t i = 0; i < operations; ++i) {
    CAPTURE(i);
    auto disk = memory_disk{};
    auto broken = faulty_files{disk, i, EIO, faulty_files::lasting::once};
    auto scenario = checkpoint_scenario{broken, {}};
    auto taken = scenario.take({10}, 1);
    if (taken)
      return;
    auto again = scenario.take({10}, 2);
    CHECK_MESSAGE(again, (again ? std::string{} : again.error().message));
    CHECK_FALSE(scenario.find_flaw());
  }
  FAIL("every operation of the scenario failed the first checkpoint");
}
