#include <troupe/collectives/shared_pool.hpp>

#include <algorithm>
#include <cstring>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <functional>
#include <map>
#include <new>
#include <random>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <vector>

using namespace troupe;
using namespace troupe::collectives;

namespace {

constexpr std::size_t page = 4096;

std::shared_ptr<shared_pool> make_pool(std::uint64_t capacity_bytes) {
  return value_or_throw(shared_pool::make(capacity_bytes));
}

/// A peer's view.
class view {
 public:
  explicit view(const shared_pool& pool)
      : size_bytes_(pool.capacity_bytes()),
        data_(static_cast<const std::byte*>(::mmap(nullptr, size_bytes_, PROT_READ, MAP_SHARED, pool.fd(), 0))) {
    REQUIRE(data_ != MAP_FAILED);
  }
  view(const view&) = delete;
  view& operator=(const view&) = delete;
  ~view() { ::munmap(const_cast<std::byte*>(data_), size_bytes_); }
  const std::byte* data() const { return data_; }

 private:
  std::size_t size_bytes_;
  const std::byte* data_;
};

} // namespace

TEST_CASE("a peer sees every block at its offset, including later writes") {
  const auto pool = make_pool(64 * page);
  const view theirs{*pool};
  for (auto size : {std::size_t{1}, page, page + 1, 5 * page}) {
    auto* block = static_cast<std::byte*>(pool->allocate(size));
    CHECK(reinterpret_cast<std::uintptr_t>(block) % page == 0);
    CHECK(pool->contains(block, size));
    std::memset(block, static_cast<int>(size % 251), size);
    CHECK(std::memcmp(theirs.data() + pool->offset_of(block), block, size) == 0);
    block[size - 1] = std::byte{77};
    CHECK(theirs.data()[pool->offset_of(block) + size - 1] == std::byte{77});
  }
}

TEST_CASE("only ranges that lie completely in the pool are contained") {
  const auto pool = make_pool(8 * page);
  const auto other = make_pool(8 * page);
  auto* block = static_cast<std::byte*>(pool->allocate(8 * page));
  CHECK(pool->contains(block, 8 * page));
  CHECK(pool->contains(block + 100, page));
  CHECK(pool->contains(block + 8 * page - 1, 1));
  CHECK(!pool->contains(block + 8 * page - 1, 2));
  CHECK(!pool->contains(block - 1, 2));
  CHECK(!other->contains(block, 1));
  std::byte local{};
  CHECK(!pool->contains(&local, 1));
  CHECK(pool->offset_of(block + 123) == 123);
}

TEST_CASE("freed memory is reused, adjacent blocks as one") {
  const auto pool = make_pool(8 * page);
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i)
    blocks.push_back(pool->allocate(2 * page));
  CHECK_THROWS_AS((void)pool->allocate(1), std::bad_alloc);
  // In an order in which each block merges with a neighbour on either side.
  pool->deallocate(blocks[0], 2 * page);
  pool->deallocate(blocks[2], 2 * page);
  CHECK_THROWS_AS((void)pool->allocate(3 * page), std::bad_alloc);
  pool->deallocate(blocks[1], 2 * page);
  auto* six = pool->allocate(6 * page);
  CHECK(six == blocks[0]);
  pool->deallocate(six, 6 * page);
  pool->deallocate(blocks[3], 2 * page);
  CHECK(pool->allocate(8 * page) == blocks[0]);
}

TEST_CASE("a full pool throws, and stays usable") {
  const auto pool = make_pool(3 * page);
  CHECK_THROWS_AS((void)pool->allocate(3 * page + 1), std::bad_alloc);
  CHECK_THROWS_AS((void)pool->allocate(SIZE_MAX), std::bad_alloc);
  CHECK_THROWS_AS((void)pool->allocate(SIZE_MAX - page), std::bad_alloc);
  CHECK_THROWS_AS((void)pool->allocate(page, 2 * page), std::bad_alloc);
  auto* all = pool->allocate(3 * page, page);
  CHECK_THROWS_AS((void)pool->allocate(1), std::bad_alloc);
  pool->deallocate(all, 3 * page);
  CHECK(pool->allocate(2 * page + 1) == all);
}

TEST_CASE("a capacity is whole pages, and uses no memory before allocation") {
  CHECK(make_pool(1)->capacity_bytes() == page);
  const auto pool = make_pool(0);
  CHECK(pool->capacity_bytes() >= std::uint64_t{64} << 20);
  struct stat status = {};
  REQUIRE(::fstat(pool->fd(), &status) == 0);
  CHECK(static_cast<std::uint64_t>(status.st_size) == pool->capacity_bytes());
  CHECK(status.st_blocks == 0);
  auto* block = pool->allocate(10 * page);
  REQUIRE(::fstat(pool->fd(), &status) == 0);
  CHECK(status.st_blocks * 512 == 10 * page);
  pool->deallocate(block, 10 * page);
}

TEST_CASE("holders of the descriptor cannot write, resize, punch or reseal the file") {
  const auto pool = make_pool(4 * page);
  auto* block = static_cast<std::byte*>(pool->allocate(4 * page));
  std::memset(block, 1, 4 * page);
  const auto path = "/proc/self/fd/" + std::to_string(pool->fd());
  const unique_fd again{::open(path.c_str(), O_RDWR | O_CLOEXEC)};
  for (auto fd : {pool->fd(), again.get()}) {
    if (fd < 0)
      continue;
    CHECK(::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    CHECK(::mmap(nullptr, page, PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    auto* readable = ::mmap(nullptr, page, PROT_READ, MAP_SHARED, fd, 0);
    REQUIRE(readable != MAP_FAILED);
    CHECK(::mprotect(readable, page, PROT_READ | PROT_WRITE) != 0);
    CHECK(::madvise(readable, page, MADV_REMOVE) != 0);
    ::munmap(readable, page);
    CHECK(::pwrite(fd, "x", 1, 0) < 0);
    CHECK(::ftruncate(fd, 0) != 0);
    CHECK(::ftruncate(fd, 8 * page) != 0);
    CHECK(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, page) != 0);
    CHECK(::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) != 0);
  }
  CHECK(std::all_of(block, block + 4 * page, [](std::byte x) { return x == std::byte{1}; }));
  // The owner can still write.
  block[0] = std::byte{2};
  CHECK(view{*pool}.data()[0] == std::byte{2});
}

TEST_CASE("a peer's view outlives the pool") {
  auto pool = make_pool(2 * page);
  const view theirs{*pool};
  std::memset(pool->allocate(page), 9, page);
  pool.reset();
  CHECK(theirs.data()[page - 1] == std::byte{9});
}

TEST_CASE("random blocks from several threads never overlap, and all memory is free again at the end") {
  const auto seed = std::random_device{}();
  INFO("seed ", seed);
  constexpr std::size_t pages = 256;
  const auto pool = make_pool(pages * page);
  std::vector<int> bad(4);
  std::vector<std::thread> threads;
  for (unsigned mine = 0; mine < 4; ++mine)
    threads.emplace_back([&, mine] {
      std::mt19937 random{seed + mine};
      std::vector<std::pair<std::byte*, std::size_t>> blocks;
      const auto give_back = [&](std::size_t i) {
        const auto [at, size] = blocks[i];
        bad[mine] += std::all_of(at, at + size, [&](std::byte x) { return x == std::byte(mine + 1); }) ? 0 : 1;
        pool->deallocate(at, size);
        blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i));
      };
      for (int i = 0; i < 1000; ++i) {
        if (!blocks.empty() && random() % 2 == 0)
          give_back(random() % blocks.size());
        const std::size_t size = 1 + random() % (8 * page);
        try {
          auto* at = static_cast<std::byte*>(pool->allocate(size));
          std::memset(at, static_cast<int>(mine + 1), size);
          blocks.emplace_back(at, size);
        } catch (const std::bad_alloc&) {
          if (!blocks.empty())
            give_back(0);
        }
      }
      while (!blocks.empty())
        give_back(0);
    });
  for (auto& x : threads)
    x.join();
  CHECK(bad == std::vector<int>(4));
  CHECK(pool->offset_of(pool->allocate(pages * page)) == 0);
}
