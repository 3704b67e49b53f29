#pragma once

#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

/// How many workers fit on `gpus` GPUs, if each takes a fraction of one, or whole ones: more than 0, and as
/// `is_gpu_number` says.
[[nodiscard]] std::uint32_t workers_on_gpus(double each, std::uint32_t gpus) noexcept;

/// How many GPUs these workers take, with the same `each`.
[[nodiscard]] std::uint32_t gpus_for_workers(double each, std::uint32_t workers) noexcept;

/// Which of a node's GPUs its workers have. A worker that takes a fraction shares the GPU only with workers of its run;
/// a worker that takes whole GPUs shares none.
class device_ledger {
 public:
  /// The names by which CUDA_VISIBLE_DEVICES knows them.
  explicit device_ledger(std::vector<std::string> devices) : devices_(std::move(devices)) {}

  /// The devices that a worker gets: for a fraction, the one with the most left. Repeating it gives the same ones.
  /// Fails with `errc::unsatisfiable`, naming the holders of each device, and takes nothing then.
  [[nodiscard]] expected<std::vector<std::string>> take(const run_id& run, worker_id worker, double gpus);

  /// A worker's process has ended. It may have had no device.
  void give_back(const run_id& run, worker_id worker);

  /// How many devices no other run has.
  [[nodiscard]] std::uint32_t open_to(const run_id& run) const;

  [[nodiscard]] std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(devices_.size()); }

 private:
  struct holding {
    /// As indices.
    std::vector<std::size_t> devices;
    double gpus = 0;
  };

  /// How much of a device is taken, and whether by this run's workers alone.
  struct load {
    double taken = 0;
    bool is_foreign = false;
  };
  [[nodiscard]] load load_of(std::size_t device, const run_id& run) const;
  [[nodiscard]] error lack(const run_id& run, double gpus) const;

  std::vector<std::string> devices_;
  std::map<std::pair<run_id, worker_id>, holding> holdings_;
};

} // namespace troupe::actors
