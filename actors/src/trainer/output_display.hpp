#pragma once

#include "local_messages.hpp"

#include <caf/fwd.hpp>
#include <caf/typed_actor.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace troupe::actors {

/// Shows workers' lines to users on a separate thread, so that a terminal or pager that stops reading blocks nothing
/// else. While too much is waiting, new lines are dropped and counted. Used in one thread.
class output_display {
 public:
  using show_function = std::function<void(rank_id, const std::string& line)>;

  output_display(caf::actor_system& system, show_function show);
  /// Returns once everything is shown.
  ~output_display();
  output_display(const output_display&) = delete;
  output_display& operator=(const output_display&) = delete;

  void show(const append_output& message);

 private:
  using displaying_actor = caf::typed_actor<caf::result<void>(append_output)>;

  caf::actor_system& system_;
  displaying_actor actor_;
  /// Of lines that the actor has yet to show, in bytes.
  std::shared_ptr<std::atomic<std::size_t>> waiting_ = std::make_shared<std::atomic<std::size_t>>(0);
  std::uint64_t left_out_ = 0;
};

} // namespace troupe::actors
