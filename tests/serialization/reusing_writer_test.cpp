#include <troupe/serialization/checkpoint/reusing_writer.hpp>

#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>

#include "interposed_files.hpp"
#include "scratch.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <functional>
#include <set>
#include <sys/stat.h>

using namespace troupe;
using namespace troupe::serialization;
namespace fs = std::filesystem;

namespace {

constexpr auto page = std::uint64_t{4096};
constexpr auto policy = reuse_policy{2 * page, 8};

/// Checkpoints of one worker on real files: a tensor that changes and one that does not.
class saved_run {
 public:
  explicit saved_run(file_system& files = local_files()) : files_(files), writer_{policy, files} {}

  expected<fs::path> save(std::uint64_t step) {
    auto attempt = scratch_.path() / temporary_name({{"run"}, {step}, {7}, 1});
    auto bytes = changing(step);
    bytes.insert(bytes.end(), frozen.begin(), frozen.end());
    auto plan = plan_chunks(specs(), 1, small_limit_bytes);
    auto report = writer_.write(attempt, 0, plan, bytes);
    if (!report)
      return fail(report.error());
    auto content = sample_manifest({step});
    if (auto added = add_parts(content, specs(), plan, std::vector{*report}); !added)
      return fail(added.error());
    auto path = commit_checkpoint(scratch_.path(), attempt, content, files_);
    if (path)
      writer_.committed(*path);
    return path;
  }

  void check(const fs::path& path) {
    CAPTURE(path);
    auto stored = checkpoint::open(path);
    REQUIRE(stored);
    CHECK(stored->verify());
    auto copy = std::vector<std::byte>(frozen.size());
    REQUIRE(stored->read_tensor("frozen", copy));
    CHECK(copy == frozen);
    copy.resize(3 * page);
    REQUIRE(stored->read_tensor("changing", copy));
    CHECK(copy == changing(stored->content().step.value));
  }

  /// The size of the files that no earlier call has seen.
  std::uint64_t new_bytes(const fs::path& path) {
    auto result = std::uint64_t{0};
    for (const auto& entry : fs::directory_iterator{path}) {
      struct stat info {};
      REQUIRE(::stat(entry.path().c_str(), &info) == 0);
      if (entry.path().filename() != manifest_file_name && seen_.insert(info.st_ino).second)
        result += static_cast<std::uint64_t>(info.st_size);
    }
    return result;
  }

  [[nodiscard]] const fs::path& directory() const { return scratch_.path(); }
  [[nodiscard]] fs::path checkpoint_of(std::uint64_t step) const { return directory() / checkpoint_name({step}); }
  reusing_writer& writer() { return writer_; }

  /// Two chunks that are large enough for a file, and half of one.
  std::vector<std::byte> frozen = sample_state{{{"frozen", dtype::u8, {5 * page}}}}.bytes(0);

 private:
  static std::vector<tensor_spec> specs() {
    return {{"changing", dtype::u8, {3 * page}}, {"frozen", dtype::u8, {5 * page}}};
  }

  static std::vector<std::byte> changing(std::uint64_t step) {
    return sample_state{{{"changing", dtype::u8, {3 * page}}}, step + 1000}.bytes(0);
  }

  scratch_directory scratch_;
  file_system& files_;
  reusing_writer writer_;
  std::set<ino_t> seen_;
};

constexpr auto all_bytes = 8 * page;
constexpr auto changed_bytes = 4 * page;

fs::path own_file(const fs::path& checkpoint, std::uint32_t chunk) {
  return checkpoint / chunk_file_name(1, chunk);
}

} // namespace

TEST_CASE("unchanged chunks are written twice, then linked, and written again in every eighth checkpoint") {
  auto run = saved_run{};
  for (std::uint64_t step = 1; step <= 20; ++step) {
    CAPTURE(step);
    auto path = run.save(step);
    REQUIRE(path);
    auto is_written = step == 1 || step == 2 || step == 10 || step == 18;
    CHECK(run.new_bytes(*path) == (is_written ? all_bytes : changed_bytes));
    run.check(*path);
  }
  CHECK(run.writer().take_notices().empty());
  auto latest = open_latest(run.directory());
  REQUIRE(latest);
  CHECK(latest->found.content().step == step_id{20});
}

TEST_CASE("each checkpoint loads alone, after all others were removed") {
  for (std::uint64_t stays = 1; stays <= 5; ++stays) {
    auto run = saved_run{};
    for (std::uint64_t step = 1; step <= 5; ++step)
      REQUIRE(run.save(step));
    for (std::uint64_t step = 1; step <= 5; ++step)
      if (step != stays)
        REQUIRE(remove_checkpoint(run.checkpoint_of(step)));
    run.check(run.checkpoint_of(stays));
  }
}

TEST_CASE("a changed chunk goes back to the part's file") {
  auto run = saved_run{};
  for (std::uint64_t step = 1; step <= 3; ++step)
    REQUIRE(run.save(step));
  run.frozen[2 * page + 5] ^= std::byte{1};
  auto path = run.save(4);
  REQUIRE(path);
  run.check(*path);
  CHECK(fs::exists(own_file(*path, 0)));
  CHECK_FALSE(fs::exists(own_file(*path, 1)));
  REQUIRE(run.save(5));
  path = run.save(6);
  REQUIRE(path);
  CHECK(fs::equivalent(own_file(*path, 1), own_file(run.checkpoint_of(5), 1)));
  run.check(*path);
}

TEST_CASE("the next checkpoint detects, reports and rewrites a damaged file, and rewrites a missing one") {
  struct harm {
    std::string what;
    std::function<void(const fs::path&)> do_to;
    bool is_told;
  };
  for (const auto& each : std::vector<harm>{
           {"a flipped bit", [](const auto& path) { flip_bit(path, 2 * page - 1); }, true},
           {"a short file", [](const auto& path) { fs::resize_file(path, 2 * page - 1); }, true},
           {"a long file", [](const auto& path) { fs::resize_file(path, 2 * page + 1); }, true},
           {"no file", [](const auto& path) { fs::remove(path); }, false},
           {"no checkpoint", [](const auto& path) { fs::remove_all(path.parent_path()); }, false},
       }) {
    CAPTURE(each.what);
    auto run = saved_run{};
    for (std::uint64_t step = 1; step <= 3; ++step)
      REQUIRE(run.save(step));
    auto before = own_file(run.checkpoint_of(3), 0);
    each.do_to(before);
    auto path = run.save(4);
    REQUIRE(path);
    run.check(*path);
    CHECK_FALSE((fs::exists(before) && fs::equivalent(own_file(*path, 0), before)));
    auto notices = run.writer().take_notices();
    REQUIRE(notices.size() == (each.is_told ? 1 : 0));
    if (each.is_told)
      CHECK(notices[0].find(before.string()) != std::string::npos);
    // The new file can be linked.
    auto next = run.save(5);
    REQUIRE(next);
    CHECK(fs::equivalent(own_file(*next, 0), own_file(*path, 0)));
    run.check(*next);
  }
}

TEST_CASE("where links are not possible, or exhausted, everything is written") {
  for (auto cause : {EMLINK, EPERM, EXDEV, EOPNOTSUPP}) {
    auto files =
        interposed_files{local_files(), [&](operation what, const fs::path&) {
                           return what == operation::link ? verdict{verdict::kind::failed, cause, {}} : verdict{};
                         }};
    auto run = saved_run{files};
    for (std::uint64_t step = 1; step <= 4; ++step) {
      auto path = run.save(step);
      REQUIRE(path);
      CHECK(run.new_bytes(*path) == all_bytes);
      run.check(*path);
    }
    CHECK(run.writer().take_notices().empty());
  }
}

TEST_CASE("a new worker knows nothing, and writes everything") {
  auto run = saved_run{};
  for (std::uint64_t step = 1; step <= 3; ++step)
    run.new_bytes(value_or_throw(run.save(step)));
  run.writer() = reusing_writer{policy};
  auto path = run.save(4);
  REQUIRE(path);
  CHECK(run.new_bytes(*path) == all_bytes);
  run.check(*path);
}

TEST_CASE("a part that is no longer needed is aborted, and bytes that do not match the plan are refused") {
  auto scratch = scratch_directory{};
  auto plan = plan_chunks(std::vector<tensor_spec>{{"w", dtype::u8, {9000}}}, 1, small_limit_bytes);
  auto bytes = std::vector<std::byte>(9000);
  auto writer = reusing_writer{};
  auto stop = std::stop_source{};
  stop.request_stop();
  CHECK(writer.write(scratch.path() / "a", 0, plan, bytes, stop.get_token()).error().code == errc::aborted);
  auto few = std::span{bytes}.first(8999);
  CHECK(writer.write(scratch.path() / "b", 0, plan, few).error().code == errc::invalid_argument);
  CHECK(writer.write(scratch.path() / "c", 1, plan, {}).error().code == errc::invalid_argument);
}

TEST_CASE("a link keeps a file's bytes when its first name is removed, and never replaces a name") {
  auto scratch = scratch_directory{};
  overwrite_file(scratch.path() / "a", "bytes");
  auto& files = local_files();
  auto linked = files.link(scratch.path() / "a", scratch.path() / "b");
  REQUIRE(linked);
  CHECK(*linked);
  REQUIRE(files.remove(scratch.path() / "a"));
  CHECK(read_file(scratch.path() / "b") == "bytes");
  CHECK(files.link(scratch.path() / "a", scratch.path() / "c").error().code == errc::not_found);
  overwrite_file(scratch.path() / "c", "other");
  CHECK(files.link(scratch.path() / "b", scratch.path() / "c").error().code == errc::already_exists);
  CHECK(read_file(scratch.path() / "c") == "other");
}
