#pragma once

#include "remote/replica_links.hpp"
#include "remote/replica_messages.hpp"

#include <troupe/inference/predictor.hpp>
#include <troupe/serving/served_model.hpp>

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace troupe::serving {

/// A model in the process of a replica.
class remote_predictor final : public inference::predictor {
 public:
  remote_predictor(replica_links::lease lease, std::string library, std::vector<std::string> outputs);

  const std::vector<std::string>& outputs() const noexcept override { return outputs_; }
  std::string library() const override { return library_; }

  /// Fails as the model there does; with `errc::worker_lost` once the process is gone.
  expected<void> predict(data::batch& rows, std::span<float> out) override;
  bool is_usable() const noexcept override { return is_usable_; }

 private:
  replica_links::lease lease_;
  std::string library_;
  std::vector<std::string> outputs_;
  bool is_usable_ = true;
};

/// Loads the model of a checkpoint in one of the processes. Fails as loading there does, with `errc::worker_lost` if
/// three processes have ended meanwhile, and with `errc::stopped` once `links` are closed.
[[nodiscard]] expected<served_model> load_remotely(replica_links& links, const std::filesystem::path& checkpoint,
                                                   checkpoint_route route);

} // namespace troupe::serving
