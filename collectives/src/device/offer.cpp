#include <troupe/collectives/device_offer.hpp>

#include <fmt/format.h>
#include <sstream>

namespace troupe::collectives {

expected<std::vector<device_offer>> exchange_device_offers(generation_id generation, const device_offer& mine,
                                                           const address_exchange& exchange) {
  const auto head = fmt::format("device1 {}", generation);
  TROUPE_TRY(auto blobs, exchange(head + '\n' + mine.device + '\n' + mine.nccl + '\n'));
  std::vector<device_offer> result;
  for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
    std::istringstream lines{blobs[rank]};
    std::string first;
    device_offer offer;
    if (!std::getline(lines, first) || first != head || !std::getline(lines, offer.device) ||
        !std::getline(lines, offer.nccl))
      return fail(errc::mismatch,
                  fmt::format("rank {}'s device offer is from another generation than {}", rank, generation));
    result.push_back(std::move(offer));
  }
  return result;
}

} // namespace troupe::collectives
