#include "remote/remote_predictor.hpp"

#include <memory>
#include <utility>

namespace troupe::serving {

namespace {

constexpr int most_losses = 3;

expected<served_model> load_over(replica_links::lease lease, const std::filesystem::path& checkpoint,
                                 checkpoint_route route) {
  TROUPE_TRY(send_checkpoint(lease.stream(), checkpoint, route));
  TROUPE_TRY(auto face, receive_loaded(lease.stream()));
  return served_model{
      std::make_unique<remote_predictor>(std::move(lease), std::move(face.library), std::move(face.outputs)),
      std::move(face.inputs)};
}

} // namespace

remote_predictor::remote_predictor(replica_links::lease lease, std::string library, std::vector<std::string> outputs)
    : lease_(std::move(lease)), library_(std::move(library)), outputs_(std::move(outputs)) {}

expected<void> remote_predictor::predict(data::batch& rows, std::span<float> out) {
  const auto result = [&]() -> expected<void> {
    TROUPE_TRY(send_rows(lease_.stream(), rows));
    return receive_outputs(lease_.stream(), out);
  }();
  if (!result && result.error().code == errc::worker_lost)
    is_usable_ = false;
  return result;
}

expected<served_model> load_remotely(replica_links& links, const std::filesystem::path& checkpoint,
                                     checkpoint_route route) {
  for (int losses = 1;; ++losses) {
    TROUPE_TRY(auto lease, links.take(checkpoint.string()));
    auto loaded = load_over(std::move(lease), checkpoint, route);
    if (loaded || loaded.error().code != errc::worker_lost || losses == most_losses)
      return loaded;
  }
}

} // namespace troupe::serving
