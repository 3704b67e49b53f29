#include "gloo_ring.hpp"

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace troupe::bench {

namespace {

/// Gloo's own ring, in place.
class raw_gloo_ring final : public contender {
 public:
  raw_gloo_ring(std::shared_ptr<gloo::Context> context, shared_floats data)
      : context_(std::move(context)), data_(std::move(data)) {}

  std::span<float> input() override { return *data_; }

  void run() override {
    auto options = gloo::AllreduceOptions{context_};
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options.setOutput(data_->data(), data_->size());
    options.setReduceFunction(&add);
    gloo::allreduce(options);
  }

  std::span<const float> result() const override { return *data_; }

 private:
  static void add(void* sum, const void* left, const void* right, std::size_t n) {
    gloo::sum<float>(sum, left, right, n);
  }

  std::shared_ptr<gloo::Context> context_;
  shared_floats data_;
};

/// Gloo's rendezvous store. All ranks set their own key at the same time, before they read each other's.
class link_store final : public gloo::rendezvous::Store {
 public:
  explicit link_store(rank_link& link) : link_(link) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    const auto keys = link_.exchange(key);
    const auto blobs = link_.exchange({data.data(), data.size()});
    for (std::size_t r = 0; r < keys.size(); ++r)
      blobs_[keys[r]].assign(blobs[r].begin(), blobs[r].end());
  }

  std::vector<char> get(const std::string& key) override { return blobs_.at(key); }
  void wait(const std::vector<std::string>&) override {}

 private:
  rank_link& link_;
  std::map<std::string, std::vector<char>> blobs_;
};

class connected_gloo final : public gloo_peer {
 public:
  explicit connected_gloo(rank_link& link)
      : context_(
            std::make_shared<gloo::rendezvous::Context>(static_cast<int>(link.rank()), static_cast<int>(link.size()))) {
    auto device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr{"127.0.0.1"});
    auto store = link_store{link};
    context_->connectFullMesh(store, device);
  }

  std::unique_ptr<contender> make(shared_floats data) override {
    return std::make_unique<raw_gloo_ring>(context_, std::move(data));
  }

 private:
  std::shared_ptr<gloo::rendezvous::Context> context_;
};

} // namespace

std::shared_ptr<gloo_peer> connect_gloo(rank_link& link) {
  return std::make_shared<connected_gloo>(link);
}

} // namespace troupe::bench
