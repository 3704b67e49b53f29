#include "memory_disk.hpp"

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

namespace troupe::serialization {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t sector_bytes = 512;

using content = std::vector<std::byte>;

/// Bytes written at an offset, or a reserved size.
struct file_change {
  std::size_t offset = 0;
  content bytes;
  std::size_t reserved = 0;
};

void put_bytes(content& target, std::size_t offset, std::span<const std::byte> bytes) {
  target.resize(std::max(target.size(), offset + bytes.size()));
  std::ranges::copy(bytes, target.begin() + static_cast<std::ptrdiff_t>(offset));
}

void garble(std::span<std::byte> bytes, std::uint32_t seed) {
  auto state = seed * std::uint64_t{2654435769} + 1;
  for (auto& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(state >> 56);
  }
}

/// How many of `size` bytes are written by a torn write: whole sectors, but not all.
std::size_t torn_size(std::size_t size, std::uint32_t seed) {
  auto sectors = (size + sector_bytes - 1) / sector_bytes;
  return sectors == 0 ? 0 : seed % sectors * sector_bytes;
}

void apply(content& target, const file_change& change, fate decided) {
  if (decided.what == fate::kind::lost)
    return;
  auto bytes = change.bytes;
  auto offset = change.offset;
  if (change.reserved > target.size()) {
    offset = target.size();
    bytes.assign(change.reserved - target.size(), std::byte{});
  }
  if (decided.what == fate::kind::torn)
    bytes.resize(torn_size(bytes.size(), decided.seed));
  if (decided.what == fate::kind::garbled)
    garble(bytes, decided.seed);
  put_bytes(target, offset, bytes);
}

tl::unexpected<error> failed(int cause, std::string_view doing, const fs::path& path) {
  return fail(file_error(cause, doing, path));
}

} // namespace

struct memory_disk::node {
  /// A removed name, an added name and its target; atomic.
  struct entry_change {
    std::string removed;
    std::string added;
    node_pointer what;
  };
  using entries = std::map<std::string, node_pointer>;

  explicit node(bool directory) : is_directory(directory) {}

  static void apply(entries& target, const entry_change& change) {
    if (!change.removed.empty())
      target.erase(change.removed);
    if (!change.added.empty())
      target[change.added] = change.what;
  }

  void change_entry(entry_change change) {
    apply(names, change);
    unsynced_entries.push_back(std::move(change));
  }

  void change_file(file_change change) {
    serialization::apply(bytes, change, {});
    unsynced_bytes.push_back(std::move(change));
  }

  bool is_directory;
  content bytes;
  content device_bytes;
  std::vector<file_change> unsynced_bytes;
  entries names;
  entries device_names;
  std::vector<entry_change> unsynced_entries;
};

class memory_disk::handle : public file {
 public:
  handle(memory_disk& disk, node_pointer node, fs::path path)
      : file(std::move(path)), disk_(&disk), node_(std::move(node)) {}

  expected<std::uint64_t> size_bytes() const override {
    if (node_->is_directory)
      return fail(errc::damaged, path().string() + " is not a regular file");
    return node_->bytes.size();
  }

  expected<void> reserve(std::uint64_t size_bytes) override {
    disk_->change();
    if (size_bytes > node_->bytes.size())
      node_->change_file({0, {}, size_bytes});
    return {};
  }

  expected<void> write_at(std::uint64_t offset_bytes, std::span<const std::byte> bytes) override {
    disk_->change();
    if (!bytes.empty())
      node_->change_file({offset_bytes, {bytes.begin(), bytes.end()}, 0});
    return {};
  }

  expected<void> read_at(std::uint64_t offset_bytes, std::span<std::byte> target) const override {
    const auto& bytes = node_->bytes;
    if (offset_bytes > bytes.size() || target.size() > bytes.size() - offset_bytes)
      return fail(errc::damaged, path().string() + " is truncated: it ends at byte " + std::to_string(bytes.size()));
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset_bytes), target.size(), target.begin());
    return {};
  }

  expected<void> sync() override {
    disk_->change();
    if (!disk_->sync_is_a_lie || !disk_->sync_is_a_lie(path()))
      for (const auto& change : node_->unsynced_bytes)
        apply(node_->device_bytes, change, {});
    node_->unsynced_bytes.clear();
    return {};
  }

  void drop_cached() const noexcept override {
    if (node_->unsynced_bytes.empty())
      node_->bytes = node_->device_bytes;
  }

 private:
  memory_disk* disk_;
  node_pointer node_;
};

memory_disk::memory_disk() : root_(make_node(true)) {}

memory_disk::node_pointer memory_disk::make_node(bool is_directory) {
  return nodes_.emplace_back(std::make_shared<node>(is_directory));
}

memory_disk::node_pointer memory_disk::find(const fs::path& path) const {
  auto result = root_;
  for (const auto& name : path.relative_path()) {
    if (name.empty())
      continue;
    auto found = result->names.find(name.string());
    if (found == result->names.end())
      return nullptr;
    result = found->second;
  }
  return result;
}

void memory_disk::forget_removed() {
  auto named = std::set<const node*>{};
  auto visit = [&](auto& self, const node_pointer& each) {
    if (!each || !named.insert(each.get()).second)
      return;
    for (const auto& [name, what] : each->names)
      self(self, what);
    for (const auto& [name, what] : each->device_names)
      self(self, what);
    for (const auto& change : each->unsynced_entries)
      self(self, change.what);
  };
  visit(visit, root_);
  std::erase_if(nodes_, [&](const node_pointer& each) { return !named.contains(each.get()); });
}

void memory_disk::change() const {
  if (before_change)
    before_change(*this);
}

std::size_t memory_disk::unsynced() const {
  auto result = std::size_t{0};
  for (const auto& node : nodes_)
    result += node->unsynced_bytes.size() + node->unsynced_entries.size();
  return result;
}

std::unique_ptr<memory_disk> memory_disk::after_crash(const std::vector<fate>& fates) const {
  auto result = std::make_unique<memory_disk>();
  auto copies = std::map<const node*, node_pointer>{{root_.get(), result->root_}};
  for (const auto& node : nodes_)
    if (node != root_)
      copies.emplace(node.get(), result->make_node(node->is_directory));
  auto next = fates.begin();
  for (const auto& node : nodes_) {
    auto& copy = *copies.at(node.get());
    copy.device_bytes = node->device_bytes;
    for (const auto& change : node->unsynced_bytes)
      apply(copy.device_bytes, change, *next++);
    auto names = node->device_names;
    for (const auto& change : node->unsynced_entries)
      if (next++->what == fate::kind::kept)
        node::apply(names, change);
    for (const auto& [name, target] : names)
      copy.device_names.emplace(name, copies.at(target.get()));
    copy.bytes = copy.device_bytes;
    copy.names = copy.device_names;
  }
  return result;
}

std::vector<std::byte> memory_disk::bytes_at(const fs::path& path) const {
  return find(path)->bytes;
}

void memory_disk::put(const fs::path& path, std::vector<std::byte> bytes) {
  auto target = find(path);
  target->device_bytes = target->bytes = std::move(bytes);
}

bool memory_disk::is_same(const fs::path& a, const fs::path& b) const {
  auto one = find(a);
  return one && one == find(b);
}

void memory_disk::spoil(const fs::path& path, std::size_t offset) {
  find(path)->device_bytes.at(offset) ^= std::byte{0x10};
}

expected<std::unique_ptr<file>> memory_disk::open(const fs::path& path) {
  if (auto found = find(path))
    return std::make_unique<handle>(*this, std::move(found), path);
  return failed(ENOENT, "opening", path);
}

expected<std::unique_ptr<file>> memory_disk::create(const fs::path& path) {
  change();
  auto above = find(path.parent_path());
  if (!above)
    return failed(ENOENT, "creating", path);
  if (above->names.contains(path.filename().string()))
    return failed(EEXIST, "creating", path);
  auto made = make_node(false);
  above->change_entry({{}, path.filename().string(), made});
  return std::make_unique<handle>(*this, std::move(made), path);
}

expected<std::optional<entry_kind>> memory_disk::look_at(const fs::path& path) {
  auto found = find(path);
  if (!found)
    return std::nullopt;
  return found->is_directory ? entry_kind::directory : entry_kind::file;
}

expected<std::vector<directory_entry>> memory_disk::list(const fs::path& path) {
  auto found = find(path);
  if (!found)
    return failed(ENOENT, "listing", path);
  if (!found->is_directory)
    return failed(ENOTDIR, "listing", path);
  auto result = std::vector<directory_entry>{};
  for (const auto& [name, what] : found->names)
    result.push_back({name, what->is_directory ? entry_kind::directory : entry_kind::file});
  return result;
}

expected<void> memory_disk::make_directory(const fs::path& path) {
  change();
  auto above = find(path.parent_path());
  if (!above)
    return failed(ENOENT, "creating the directory", path);
  if (above->names.contains(path.filename().string()))
    return failed(EEXIST, "creating the directory", path);
  above->change_entry({{}, path.filename().string(), make_node(true)});
  return {};
}

expected<void> memory_disk::rename(const fs::path& from, const fs::path& to, if_taken what) {
  change();
  auto above = find(from.parent_path());
  auto moved = find(from);
  if (!moved || above != find(to.parent_path()))
    return failed(moved ? EXDEV : ENOENT, "renaming " + from.string() + " to", to);
  if (find(to) && (what == if_taken::refuse || moved->is_directory))
    return failed(EEXIST, "renaming " + from.string() + " to", to);
  above->change_entry({from.filename().string(), to.filename().string(), std::move(moved)});
  return {};
}

expected<bool> memory_disk::link(const fs::path& from, const fs::path& to) {
  change();
  auto found = find(from);
  auto above = find(to.parent_path());
  if (!found || found->is_directory || !above)
    return failed(found && found->is_directory ? EISDIR : ENOENT, "linking " + from.string() + " to", to);
  if (above->names.contains(to.filename().string()))
    return failed(EEXIST, "linking " + from.string() + " to", to);
  above->change_entry({{}, to.filename().string(), std::move(found)});
  return true;
}

expected<void> memory_disk::remove(const fs::path& path) {
  change();
  auto found = find(path);
  if (!found)
    return failed(ENOENT, "removing", path);
  if (!found->names.empty())
    return failed(ENOTEMPTY, "removing", path);
  find(path.parent_path())->change_entry({path.filename().string(), {}, nullptr});
  return {};
}

expected<void> memory_disk::sync_directory(const fs::path& path) {
  change();
  auto found = find(path);
  if (!found)
    return failed(ENOENT, "opening", path);
  for (const auto& change : found->unsynced_entries)
    node::apply(found->device_names, change);
  found->unsynced_entries.clear();
  forget_removed();
  return {};
}

} // namespace troupe::serialization
