#include "trainer/program_offers.hpp"

#include <caf/all.hpp>

#include <exception>

namespace troupe::actors {

void program_offers::make(std::uint32_t node, std::uint64_t connection, const std::string& address) {
  self_->system().spawn<caf::detached>([trainer = caf::actor_cast<caf::weak_actor_ptr>(self_->ctrl()), offer = offer_,
                                        cluster = cluster_, address, stop = stop_.get_token(),
                                        message = program_offered{node, connection, {}, {}}]() mutable {
    try {
      message.notice = value_or_throw(offer(cluster, address, stop));
    } catch (const exception& x) {
      message.reason = x.reason();
    } catch (const std::exception& x) {
      message.reason = {errc::unreachable, x.what()};
    }
    if (auto strong = trainer.lock())
      caf::anon_send(caf::actor_cast<trainer_interface>(strong), std::move(message));
  });
}

} // namespace troupe::actors
